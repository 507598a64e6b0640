"""The runs below a folder, a row each, by the ends of their files, which ranks may be writing.

Whoever made the folders chose what is in them: nothing is taken on trust, no link leads out, and
no look is in the way of a run.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config.errors import UserError
from ..config.finding import number, printable
from ..config.reading import read_file, read_object
from ..data.lock import LOCK, RANK_LOCK, is_held
from ..logging.metrics_read import newest_records

if TYPE_CHECKING:
    from ..config.plan import Plan

QUEUED, RUNNING, SUCCESS, MISSED = "queued", "running", "success", "missed"
STOPPED, FAILED, KILLED = "stopped", "failed", "killed"
STATUSES = (QUEUED, RUNNING, SUCCESS, MISSED, STOPPED, FAILED, KILLED)
OPEN = (QUEUED, RUNNING)
"""Of these more is to come without anybody's doing."""
SUBMISSION = "submission.json"
"""In the folder of a job: its scheduler, its id there and how many runs it has."""

_LOCKS = {LOCK, RANK_LOCK}
_OF_A_RUN = {"environment.json", "metrics.jsonl", "result.json", RANK_LOCK}
_OF_A_JOB = {"job.sh", "exit_code", ".job.lock"}
_RUN_OF_A_JOB = re.compile(r"run_[0-9]{1,6}")
_DEPTH = 5
"""Of folders above a run: results/SWEEP/TRIAL/NAME/TIME/run_0."""
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z(?:-\d{1,2})?")
_CONFIG_BYTES = 1 << 16
_VALUE = re.compile(r"^(name|  nodes|  ranks_per_node|  target): (.{1,200})$", re.M)
"""What a row needs of a config as we write it: to read all of it takes 100 times as long."""
_SHOWN_CHARACTERS = 300


class Found(NamedTuple):
    """The folder of a run, or of a job that has none yet, and the names in it."""

    folder: Path
    names: frozenset[str]
    job: Path | None
    """The folder of its job; of a job without a run: its own."""


class Progress(NamedTuple):
    """How far a run has come that has not ended; None where it has not said."""

    step: int
    steps: int
    """At most: it ends at the first evaluation that reaches the target."""
    epoch: float
    epochs: int
    loss: float | None
    left_s: float | None
    """At most, by the images/s of the last log point; evaluations come on top."""


class RunRow(NamedTuple):
    """What `rn50 runs` says of a run; None where its files do not."""

    folder: Path
    status: str
    """One of STATUSES; empty: of a job that has no run yet, its scheduler knows."""
    name: str | None
    started: str | None
    """UTC, by the name of its folder, else the time of its config."""
    time_to_train_s: float | None = None
    """Of a run that reached its target."""
    elapsed_s: float | None = None
    """The run's clock at its last record or its end."""
    eval_accuracy: float | None = None
    target: float | None = None
    images_per_s: float | None = None
    """Over the whole run; of one that has not ended, at its last log point."""
    ranks: int | None = None
    verdict: str | None = None
    """Of `rn50 log check`, for a run that ended by itself."""
    resumable: bool = False
    reason: str | None = None
    scheduler: str | None = None
    job: str | None = None
    """Its id at the scheduler."""
    job_folder: Path | None = None
    progress: Progress | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        progress = self.progress and self.progress._asdict()
        job_folder = self.job_folder and str(self.job_folder)
        paths = {"folder": str(self.folder), "job_folder": job_folder}
        return self._asdict() | paths | {"progress": progress}


def read_runs(folders: list[Path], known: Mapping[Path, RunRow] | None = None) -> list[RunRow]:
    """The rows of all runs in or below these folders, the newest first.

    Args:
        known: rows of a look before; those of ended runs that nobody has taken up are kept.
    """
    rows = {}
    for found in (found for folder in folders for found in find_runs(folder)):
        row = (known or {}).get(found.folder)
        may_change = found.job == found.folder or found.names & _LOCKS
        if row is None or row.status in OPEN or may_change:
            row = read_run(found)
        rows[found.folder] = row
    return sorted(rows.values(), key=lambda row: (row.started or "", row.folder), reverse=True)


def find_runs(folder: Path, depth: int = _DEPTH, job: Path | None = None) -> Iterator[Found]:
    """The runs in and below `folder`, and the jobs without one; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:  # removed meanwhile, or not ours to read
        return
    names = frozenset(kinds)
    below = sorted(name for name, is_folder in kinds.items() if is_folder and name[0] != ".")
    if names & _OF_A_RUN:
        taken_up = bool(names & _OF_A_JOB)  # a run of `rn50 launch` that a job goes on with
        yield Found(folder, names, folder if taken_up else job)
    elif names & _OF_A_JOB:
        runs = [name for name in below if _RUN_OF_A_JOB.fullmatch(name)]
        found = [one for name in runs for one in find_runs(folder / name, 0, folder)]
        yield from found or [Found(folder, names, folder)]
    elif depth:
        for name in below:
            yield from find_runs(folder / name, depth - 1)


def read_run(found: Found) -> RunRow:
    """The row of a run's folder, or what is known of a job without a run."""
    folder, names, job = found
    config = _config(folder)
    submission = read_object(job / SUBMISSION) if job else {}
    row = RunRow(
        folder,
        "",
        _text(config.get("name", "").strip("'\"")) or None,
        _started(folder),
        target=_number(config.get("target")),
        ranks=_ranks(config),
        scheduler=_text(submission.get("scheduler")),
        job=_text(submission.get("job")),
        job_folder=job,
    )
    if not names & _OF_A_RUN:
        return row
    result = read_object(folder / "result.json") if "result.json" in names else {}
    status, reason = _status(folder, names, result)
    row = row._replace(status=status, reason=reason)
    last = {}
    if status == RUNNING or number(result.get("eval_accuracy")) is None:
        last = newest_records(folder / "metrics.jsonl", "train", "eval")
    train, evaluation = last.get("train", {}), last.get("eval", {})
    ended_s = number(result.get("time_to_train_s"))
    times = [number(record.get("time_s")) for record in last.values()]
    ranks = result.get("ranks")
    return row._replace(
        time_to_train_s=ended_s if status == SUCCESS else None,
        elapsed_s=max((s for s in times if s is not None), default=None)
        if ended_s is None
        else ended_s,
        eval_accuracy=_first(result.get("eval_accuracy"), evaluation.get("accuracy")),
        target=_first(result.get("target"), row.target),
        images_per_s=_first(result.get("images_per_s"), train.get("images_per_s")),
        ranks=ranks if type(ranks) is int else row.ranks,
        verdict=_verdict(result) if status in (SUCCESS, MISSED) else None,
        resumable=status in (STOPPED, FAILED, KILLED) and _is_resumable(folder, result),
        progress=_progress(folder, train) if status == RUNNING else None,
    )


def _status(folder: Path, names: frozenset[str], result: Mapping[str, Any]) -> tuple[str, str]:
    """The status of a run, and why it has it."""
    locks = names & _LOCKS
    if any(is_held(folder / lock) for lock in locks):
        return RUNNING, ""
    reason = _text(result.get("reason")) or _text(result.get("stopped")) or ""
    said = result.get("status")
    if said == SUCCESS:
        return SUCCESS, reason
    if said in ("aborted", "failed"):
        if "stopped" in result or reason.startswith("stopped by "):
            return STOPPED, reason
        return MISSED if said == "aborted" else FAILED, reason
    if locks:
        return KILLED, "its processes are gone and left no result"
    failures = sorted(name for name in names if name.startswith("failure_"))
    said = read_object(folder / failures[0]).get("reason") if failures else None
    return FAILED, _text(said) or "left no result"


def _is_resumable(folder: Path, result: Mapping[str, Any]) -> bool:
    """Has it a checkpoint, and does its result not say that to go on would end there again?"""
    if "reason" in result and "--resume" not in str(result.get("next")):
        return False
    with suppress(OSError), os.scandir(folder / "checkpoint") as entries:
        return any(e.name.startswith("step_") and e.name.endswith(".ckpt") for e in entries)
    return False


def _progress(folder: Path, train: Mapping[str, Any]) -> Progress | None:
    """How far a run is by its last log point; None: it is in start-up, or its config is odd."""
    step, rate = train.get("step"), number(train.get("images_per_s"))
    path = folder / "config.yaml"
    try:
        plan = _plan(path, path.stat().st_mtime_ns)
    except (OSError, UserError):
        return None
    step = min(max(step, 0), plan.last_step) if type(step) is int else 0
    return Progress(
        step=step,
        steps=plan.last_step,
        epoch=plan.epoch_at(step),
        epochs=plan.eval_epochs[-1],
        loss=number(train.get("loss")),
        left_s=plan.images_left(step) / rate if rate and rate > 0 else None,
    )


@lru_cache(maxsize=256)
def _plan(path: Path, changed_ns: int) -> Plan:
    """The plan of a config, read anew where it has changed: 0.1 s that a watched run would miss."""
    from ..config.load import load  # which loads pydantic: a list without a running run needs none
    from ..config.plan import build_plan

    del changed_ns
    return build_plan(load(path, within=path.parent).run)


def _config(folder: Path) -> dict[str, str]:
    with suppress(OSError):
        text = read_file(folder / "config.yaml", _CONFIG_BYTES, within=folder).decode(
            errors="replace"
        )
        return {key.strip(): value for key, value in _VALUE.findall(text)}
    return {}


def _ranks(config: Mapping[str, str]) -> int | None:
    nodes, per_node = config.get("nodes", ""), config.get("ranks_per_node", "")
    whole = re.compile(r"[0-9]{1,9}")
    return int(nodes) * int(per_node) if all(map(whole.fullmatch, (nodes, per_node))) else None


def _started(folder: Path) -> str | None:
    for name in (folder.name, folder.parent.name):
        if stamp := _STAMP.fullmatch(name):
            return "{}-{}-{}T{}:{}:{}Z".format(*stamp.groups())
    with suppress(OSError, ValueError, OverflowError):
        changed = time.gmtime((folder / "config.yaml").lstat().st_mtime)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", changed)
    return None


def _verdict(result: Mapping[str, Any]) -> str | None:
    for key in ("check", "official_checker"):
        found = result.get(key)
        if isinstance(found, dict) and (verdict := _text(found.get("verdict"))):
            return verdict
    return None


def _first(*values: Any) -> float | None:
    return next((n for value in values if (n := number(value)) is not None), None)


def _number(text: str | None) -> float | None:
    try:
        return number(float(text or ""))
    except ValueError:
        return None


def _text(value: Any) -> str | None:
    """A text from a file, short and safe to print; None: it is none."""
    return printable(value[:_SHOWN_CHARACTERS]) if isinstance(value, str) and value else None
