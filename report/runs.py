"""The runs below a folder, a row each, from small files and the ends of large ones, which ranks may
be writing. No link is followed and no lock is taken."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..host.errors import UserError, reason_of
from ..host.finding import first_number, number, printable
from ..host.lock import held
from ..logging.metrics_read import newest_records
from ..logging.records import (
    ABORTED,
    FAILED,
    LAUNCH,
    SUCCESS,
    Brief,
    Environment,
    Result,
    Submission,
    Verdict,
)
from ..logging.run_folder import JobFolder, RunFolder
from ..train.checkpoint.file import read_checkpoint
from ..train.checkpoint.folder import checkpoints_of_run

QUEUED = "queued"
RUNNING = "running"
MISSED = "missed"
STOPPED = "stopped"
KILLED = "killed"
CANCELLED = "cancelled"
"""The status of a job that left its queue before it began."""
UNKNOWN = "unknown"
"""The state of a job whose scheduler cannot be asked, or of a run whose files cannot be read."""
STATUSES = (
    QUEUED,
    RUNNING,
    SUCCESS,
    MISSED,
    STOPPED,
    FAILED,
    KILLED,
    CANCELLED,
    UNKNOWN,
)
OPEN = (QUEUED, RUNNING)
"""The statuses of runs that will go on by themselves."""

_ENDED = {SUCCESS: SUCCESS, ABORTED: MISSED, FAILED: FAILED}
_RUN_OF_A_JOB = re.compile(r"run_[0-9]{1,6}")
_DEPTH = 5
"""How many folders may lie above a run: results/SWEEP/TRIAL/NAME/TIME/run_0."""
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z(?:-\d{1,2})?")
_SHOWN_CHARACTERS = 300
_MOST_STEPS = 1 << 53


T = TypeVar("T")


class RunOrJob(NamedTuple):
    """The folder of a run, or of a job that has none yet."""

    folder: Path
    has_run: bool
    job: Path | None
    """The folder of its job; of a job without a run: its own."""
    problem: str = ""
    """Why the folder cannot be read."""


class Progress(NamedTuple):
    """How far a run has come that has not ended; None where its files do not have it."""

    step: int
    steps: int
    """The most that it can take: it ends at the first evaluation that reaches the target."""
    epoch: float
    epochs: int
    loss: float | None
    images_per_s: float | None
    """The rate of the last log points, as the terminal shows it."""
    left_s: float | None
    """The longest that it can take, by the images/s and the batch of the last log point, without
    evaluations."""


class RunRow(NamedTuple):
    """What `rn50 runs` shows of a run; None where its files do not have it."""

    folder: Path
    status: str
    """One of STATUSES; empty: of a job that has no run yet, which its scheduler is asked about."""
    name: str | None
    started: str | None
    """UTC, by the name of its folder."""
    time_to_train_s: float | None = None
    """Only a run that reached its target has one."""
    elapsed_s: float | None = None
    """The run's clock at its last record or its end."""
    eval_accuracy: float | None = None
    target: float | None = None
    images_per_s: float | None = None
    """Over the whole run; of one that is under way, that of its progress. (`rn50 log show` computes
    that of any other.)"""
    ranks: int | None = None
    verdict: str | None = None
    """The verdict of `rn50 log check`; None: of a run that did not end in order."""
    resumable: bool = False
    reason: str | None = None
    scheduler: str | None = None
    job: str | None = None
    """Its id at the scheduler."""
    job_folder: Path | None = None
    progress: Progress | None = None

    def to_dict(self) -> dict[str, Any]:
        """The row for JSON, in which a path is a text."""
        progress = self.progress and self.progress._asdict()
        return self._asdict() | {"progress": progress}


def read_runs(folders: list[Path]) -> list[RunRow]:
    """Read the rows of all runs in or below these folders, the newest first."""
    folders_found = {
        entry.folder: entry for folder in folders for entry in find_runs(folder)
    }
    # all at once: in folders that take no file a look at locks takes three seconds
    locks = [lock for folder in folders_found for lock in RunFolder(folder).locks]
    at_work = {lock.parent for lock in held(locks)}
    rows = [
        read_run(entry, is_at_work=folder in at_work)
        for folder, entry in folders_found.items()
    ]
    return sorted(rows, key=lambda row: (row.started or "", row.folder), reverse=True)


def find_runs(
    folder: Path, depth: int = _DEPTH, job: Path | None = None
) -> Iterator[RunOrJob]:
    """The runs in and below `folder`, and the jobs without one; links are not followed."""
    try:
        names, below = _entries(folder)
    except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
        return
    except OSError as error:
        problem = f"{folder}: cannot read: {reason_of(error)}"
        yield RunOrJob(folder, False, job, problem)
        return
    is_job = any(path.name in names for path in JobFolder(folder).signs)
    if any(path.name in names for path in RunFolder(folder).signs):
        # a job's own: a run of `rn50 launch` that a job resumes
        yield RunOrJob(folder, True, folder if is_job else job)
        return
    below_found: list[RunOrJob] = []
    if is_job:
        for path in below:
            if _RUN_OF_A_JOB.fullmatch(path.name):
                below_found += find_runs(path, 0, folder)
    # a user's own job.sh may lie above the runs of several jobs
    if depth and not below_found:
        for path in below:
            below_found += find_runs(path, depth - 1)
    if is_job and not below_found:
        below_found.append(RunOrJob(folder, False, folder))
    yield from below_found


def _entries(folder: Path) -> tuple[set[str], list[Path]]:
    """The names in a folder, and the folders among them that are not hidden."""
    names = set()
    below = []
    with os.scandir(folder) as entries:
        for entry in entries:
            names.add(entry.name)
            is_folder = entry.is_dir(follow_symlinks=False)
            if is_folder and not entry.name.startswith("."):
                below.append(folder / entry.name)
    return names, sorted(below)


def read_run(entry: RunOrJob, *, is_at_work: bool) -> RunRow:
    """Read the row of a run's folder, or what is known of a job without a run. `is_at_work`: one of
    its locks is held."""
    folder, has_run, job, problem = entry
    out = RunFolder(folder)
    problems = [problem] if problem else []

    def try_to(read_part: Callable[..., T], *arguments: object) -> T | None:
        """What `read_part` returns; None, and a problem, where it raises UserError."""
        try:
            return read_part(*arguments)
        except UserError as error:
            problems.append(str(error))
            return None

    submission = None
    if job is not None:
        submission = try_to(JobFolder(job).read_submission)
    submission = submission or Submission()
    environment = try_to(out.read_environment) or Environment()
    brief = environment.run or submission.run or Brief()
    row = RunRow(
        folder=folder,
        status="",
        name=_short(brief.name),
        started=_started(folder),
        target=brief.target,
        ranks=brief.ranks,
        scheduler=_short(submission.scheduler),
        job=_short(submission.job),
        job_folder=job,
    )
    if problem:
        return row._replace(status=UNKNOWN, reason=_short(problem))
    if not has_run:
        return row
    unknown = (None, RUNNING if is_at_work else UNKNOWN, "")
    end = try_to(_read_end, out, is_at_work)
    result, status, reason = end or unknown
    result = result or Result("")
    last = try_to(newest_records, out.metrics) or {}
    train = last.get("train", {})
    evaluation = last.get("eval", {})
    times_s = [number(record.get("time_s")) for record in last.values()]
    clock_s = max((time_s for time_s in times_s if time_s is not None), default=None)
    may_resume = status in (STOPPED, FAILED, KILLED)
    resumable = may_resume and try_to(_is_resumable, out, result)
    progress = _progress(brief, train) if status == RUNNING else None
    return row._replace(
        status=status,
        reason=_short("; ".join(filter(None, [*problems, reason]))),
        time_to_train_s=result.time_to_train_s if status == SUCCESS else None,
        elapsed_s=first_number(result.time_to_train_s, clock_s),
        eval_accuracy=first_number(result.eval_accuracy, evaluation.get("accuracy")),
        target=first_number(result.target, row.target),
        images_per_s=first_number(
            result.images_per_s, progress and progress.images_per_s
        ),
        ranks=result.ranks or row.ranks,
        verdict=_short((result.check or Verdict("")).verdict),
        resumable=bool(resumable),
        progress=progress,
    )


def _read_end(out: RunFolder, is_at_work: bool) -> tuple[Result | None, str, str]:
    """The result of a run, its status, and why it has it. Raises UserError: its files cannot be
    read, so that it is not known."""
    result = out.read_result()
    if is_at_work:
        return result, RUNNING, ""
    if result is not None and result.status in _ENDED:
        status = STOPPED if result.stopped else _ENDED[result.status]
        return result, status, result.why
    # a lock file that nobody renews: its process could not remove it
    if any(map(os.path.lexists, out.locks)):
        return result, KILLED, "its processes are gone and left no result"
    failure = next(iter(out.read_failures()), None)
    return result, FAILED, failure.reason if failure else "left no result"


def _is_resumable(out: RunFolder, result: Result) -> bool:
    """Whether it has a checkpoint, and its result does not say that resuming it is of no use."""
    if result.reason and (result.next is None or result.next.verb == LAUNCH):
        return False
    for checkpoint in checkpoints_of_run(out.checkpoints).trusted:
        with suppress(UserError):
            # its header and size; its digest, of all its bytes, is not made
            read_checkpoint(checkpoint)
            return True
    return False


def _progress(brief: Brief, train: Mapping[str, Any]) -> Progress | None:
    """How far a run is by its last log point; None where the run's own files do not have it."""
    steps = brief.steps
    if not 0 < steps < _MOST_STEPS:
        return None
    step = min(_whole(train.get("step")) or 0, steps)
    rate = first_number(train.get("recent_images_per_s"), train.get("images_per_s"))
    batch = number(train.get("global_batch_size"))
    left_s = None
    if batch and rate and rate > 0:
        left_s = number((steps - step) * batch / rate)
    return Progress(
        step=step,
        steps=steps,
        epoch=number(train.get("epoch")) or 0.0,
        epochs=brief.epochs,
        loss=number(train.get("loss")),
        images_per_s=rate,
        left_s=left_s,
    )


def _started(folder: Path) -> str | None:
    # NAME/TIME, or NAME/TIME/run_N of a job
    for name in (folder.name, folder.parent.name):
        if stamp := _STAMP.fullmatch(name):
            return "{}-{}-{}T{}:{}:{}Z".format(*stamp.groups())
    return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST_STEPS else None


def _short(value: str) -> str | None:
    """A text from a file, safe to print; None: it is empty."""
    return printable(value[:_SHOWN_CHARACTERS]) or None
