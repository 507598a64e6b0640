"""A run in several attempts: finding the checkpoint, keeping what an attempt left, going on.

The folder of a run holds one log and one metrics file over all attempts. What an attempt wrote
after the checkpoint from which the next one goes on is cut off; all of it stays in `attempt_<n>/`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ..config.atomic import partial_beside
from ..config.errors import UserError, failing_as
from ..config.load import Loaded, load
from ..config.reading import read_file, read_object
from ..config.recorded import RESUME, load_named
from ..data.lock import FolderInUse
from ..logging.mlperf import close_interrupted
from ..train import checkpoint_folder
from ..train.checkpoint import Checkpoint
from ..train.resume import (
    INTERRUPTED_LOG,
    LOG,
    METRICS,
    check_config,
    resumed_config,
)
from .failure import read_failures
from .run_files import COPIED, give_back, is_run, reserve
from .run_lock import check_free, driven_by_another, remove_rank_lock, wait_for_rank

_FILES = (METRICS, "stderr.log", "result.json", "ranks.json", "timeline.json", "report.html")
_KEPT = {LOG: INTERRUPTED_LOG, **{name: name for name in _FILES}}
_ENDED = {"success": "reached its target", "aborted": "been trained to its last epoch"}
"""Statuses of runs that nothing stopped."""
_MOST_BYTES = 256 << 20
"""Of a log or metrics file: metrics have 150 bytes a line."""


def with_ranks(overrides: list[str], ranks: int | None) -> list[str]:
    """Overrides and `--ranks`, where it is given."""
    more = [] if ranks is None else ["system.nodes=1", f"system.ranks_per_node={ranks}"]
    return [*overrides, *more]


def load_resumed(
    where: str, config: str | None, overrides: list[str], ranks: int | None
) -> tuple[Path, Loaded]:
    """(folder, config) of an interrupted run: a path, or `latest`, that of `config` or of all.
    Without `config` the run's own is taken. Raises UserError: there is nothing to go on from, it is
    in use, or the config is another."""
    overrides = with_ranks(overrides, ranks)
    folder = latest_interrupted(config, overrides) if where == "latest" else Path(where)
    source = folder / "config.yaml"
    if not source.is_file():
        raise UserError(f"--resume: the folder of a run expected, found no {source}")
    check_free(folder)
    result = read_result(folder)
    if "stopped" not in result and (how := _ENDED.get(str(result.get("status")))):
        raise UserError(f"--resume: an interrupted run expected, {folder} has {how}")
    found = checkpoint_folder.newest_expected(folder / "checkpoint")
    if config is None:
        loaded = resumed_config(found, overrides, source)
    else:
        loaded = load_named(config, overrides, RESUME)
        if loaded.run.seed is None:
            overrides = [*overrides, f"seed={found.meta.config.get('seed')}"]
            loaded = load_named(config, overrides, RESUME)
    check_config(found, loaded)
    return folder, loaded


def load_attempt(folder: Path, config: str, overrides: list[str]) -> Loaded:
    """The config with which a job's interrupted run goes on: the job's, with the run's own seed.
    Raises UserError: it is another than that of the checkpoint."""
    found, _ = checkpoint_folder.newest(folder / "checkpoint")
    own = folder / "config.yaml"
    seed = found.meta.config.get("seed") if found else load(own, within=folder).run.seed
    loaded = load(config, [*overrides, f"seed={seed}"])
    if found:
        check_config(found, loaded)
    return loaded


def begin_attempt(out: Path) -> Checkpoint | None:
    """Put aside what the last attempt left, cut the log where its checkpoint was taken.

    The caller holds the run (run_lock.hold_run). Returns the newest whole checkpoint whose log is
    there; where that is so of none, the newest whole one, and the log has a gap. None: there is no
    checkpoint, the run begins anew. Raises FolderInUse: a rank of the last attempt still writes
    there, or another driver took over; UserError: what the last attempt left cannot be read or
    copied; nothing has been moved.
    """
    if (other_driver := driven_by_another(out)) is not None:
        raise FolderInUse(out, other_driver)
    wait_for_rank(out)
    number = next(n for n in count(1) if not os.path.lexists(out / f"attempt_{n}"))
    for failure in read_failures(out):  # replicas differed: what was saved since they last agreed
        if type(step := failure.get("agreed_step")) is int:
            checkpoint_folder.remove_after(out / "checkpoint", step)
    found = _checkpoint_to_go_on_from(out, number)
    begun = _copy_starts(out, found, number)
    _keep_attempt(out, out / f"attempt_{number}")
    reserve(out)
    if found is None:
        print(f"{out}: no checkpoint yet: from the beginning", flush=True)
        return None
    for name, path in begun.items():
        path.replace(out / name)
    checkpoint_folder.remove_after(out / "checkpoint", found.meta.step)
    print(f"{out}: going on after step {found.meta.step} ({found.path.name})", flush=True)
    return found


def _checkpoint_to_go_on_from(out: Path, number: int) -> Checkpoint | None:
    """The newest whole checkpoint, of those whose log is there if there is one. `number`: of the
    attempt to be kept."""
    folder = out / "checkpoint"
    found, warnings = checkpoint_folder.newest(folder, partial(_check_logs, out, number))
    if found is None and (found := checkpoint_folder.newest(folder)[0]):
        warnings.append(f"{found.path.name} is taken all the same, and the log has a gap")
    for warning in warnings:
        print(f"rn50: warning: {warning}", file=sys.stderr, flush=True)
    return found


def _copy_starts(out: Path, found: Checkpoint | None, number: int) -> dict[str, Path]:
    """Log and metrics up to the checkpoint, in files beside them; name -> file. Raises UserError:
    one cannot be copied; none of the files stays."""
    begun: dict[str, Path] = {}
    try:
        for name, size_bytes in _log_sizes(found).items() if found else ():
            begun[name] = partial_beside(out / name)
            # With a gap there may be the end that the last attempt was given.
            lines = _start_of(out, name, size_bytes, number).splitlines(keepends=True)
            went_on = [line for line in lines if b'"key": "run_stop"' not in line]
            with (
                failing_as(f"{out / name}: cannot copy"),
                begun[name].open("wb") as file,
            ):
                file.writelines(went_on)
    except BaseException:
        for path in begun.values():
            path.unlink(missing_ok=True)
        raise
    return begun


def _keep_attempt(out: Path, kept: Path) -> None:
    """Put what the last attempt left into the folder `kept`."""
    kept.mkdir()
    for name, new_name in _KEPT.items():
        if (out / name).is_file():
            (out / name).replace(kept / new_name)
    for path in out.glob("failure_*.json"):
        path.replace(kept / path.name)
    for name in COPIED:
        if (out / name).is_file():
            (kept / name).write_bytes(read_file(out / name, _MOST_BYTES, within=out))


def close_attempt(out: Path) -> None:
    """After a failure: end the log where rank 0 could not, remove half a checkpoint. Gives back
    what was reserved on the disk, for this and for what is to be said. A folder that another driver
    has taken over is left alone."""
    if driven_by_another(out) is not None:
        return
    give_back(out)
    remove_rank_lock(out)
    checkpoint_folder.remove_partial(out / "checkpoint")
    checkpoint_folder.remove_partial(out)
    if (out / LOG).is_file():
        with suppress(UserError, OSError):  # a disk that was the reason takes no end either
            close_interrupted(out / LOG)


def is_hopeless(out: Path) -> bool:
    """Would the run fail again from its checkpoint (diverged, at chance level)?"""
    return any(failure.get("retryable") is False for failure in read_failures(out))


def latest_interrupted(
    config: str | None, overrides: list[str], *, with_checkpoint: bool = True
) -> Path:
    """The run that was interrupted last, of those that nobody drives; runs of jobs as well.
    `with_checkpoint`: one without a checkpoint does not count."""
    if config is None:  # of any preset: the overrides are that one's
        overrides = [text for text in overrides if text.startswith("system.results=")]
    run = load(config or "quick", overrides).run
    parent = Path(run.system.results) / (run.name if config else "")
    runs = ("*", "*/run_*") if config else ("*/*", "*/*/run_*")
    last_written = {}
    for folder in (path for name in runs for path in parent.glob(name)):
        written = checkpoint_folder.listed(folder / "checkpoint")
        if not with_checkpoint and not written and is_run(folder):
            written = [folder / "environment.json"]
        if written and is_interrupted(folder):
            with suppress(OSError):
                last_written[folder] = written[-1].stat().st_mtime_ns
    busy = None
    for folder in sorted(last_written, key=lambda folder: last_written[folder], reverse=True):
        try:
            check_free(folder)
            return folder
        except UserError as error:
            busy = busy or error
    but = f" but this one: {busy}" if busy else ""
    wanted = "an interrupted run with a checkpoint" if with_checkpoint else "an interrupted run"
    raise UserError(f"--resume latest: {wanted} expected, found none in {parent}{but}")


def is_interrupted(folder: Path) -> bool:
    """Did the run in `folder` end before its time, and would it not fail again the same way? A run
    that reached its target, or trained to its last epoch without, has ended."""
    result = read_result(folder)
    if result.get("status") == "success" or is_hopeless(folder):
        return False
    return result.get("status") != "aborted" or "stopped" in result


def read_result(folder: Path) -> dict[str, Any]:
    """The content of its result.json; nothing where there is none."""
    return read_object(folder / "result.json")


def _log_sizes(found: Checkpoint) -> dict[str, int]:
    return {LOG: found.meta.log_bytes, METRICS: found.meta.metrics_bytes}


def _check_logs(out: Path, attempts: int, found: Checkpoint) -> None:
    """Raise UserError where less is left of a log than when the checkpoint was written."""
    for name, size_bytes in _log_sizes(found).items():
        if (here := len(_start_of(out, name, size_bytes, attempts))) < size_bytes:
            raise UserError(
                f"{out / name}: {size_bytes} bytes of whole lines expected, as when "
                f"{found.path.name} was written, found {here}"
            )


def _start_of(out: Path, name: str, size_bytes: int, attempts: int) -> bytes:
    """The whole lines in the first `size_bytes` of `name`: fewer bytes after a crash of the file
    system, which may leave zeros. Where going on was interrupted before, the file is in an
    `attempt_<n>/` alone."""
    longest = b""
    for folder in (out, *(out / f"attempt_{n}" for n in range(attempts - 1, 0, -1))):
        source = folder / (name if folder == out else _KEPT[name])
        try:
            text = read_file(source, _MOST_BYTES, within=out)[:size_bytes]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UserError(f"{source}: cannot copy: {error.strerror}") from None
        longest = max(longest, text[: text.rfind(b"\n") + 1], key=len)
        if len(longest) == size_bytes:
            break
    return longest
