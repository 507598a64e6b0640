"""A run in several attempts: finding the checkpoint, keeping what an attempt left, going on.

The folder of a run holds one log and one metrics file over all attempts. What an attempt wrote
after the checkpoint from which the next one goes on is cut off; all of it stays in `attempt_<n>/`.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..config.atomic import create_new, partial_beside
from ..config.errors import UserError
from ..config.load import Loaded, load
from ..config.reading import open_file, read_object
from ..logging.mlperf import close_interrupted
from ..train import checkpoint_folder
from ..train.checkpoint import Checkpoint
from ..train.rank_lock import FolderInUse
from ..train.resume import (
    INTERRUPTED_LOG,
    LOG,
    check_config,
    differences_in_bits,
    load_recorded,
    resumed_config,
)
from .disk_reserve import give_back, reserve
from .failure import read_failures
from .run_files import COPIED, refuse_planted
from .run_lock import check_free, driven_by_another, remove_rank_lock, wait_for_rank

METRICS = "metrics.jsonl"
_KEPT = {LOG: INTERRUPTED_LOG} | {
    name: name
    for name in (
        *(METRICS, "stderr.log", "result.json", "ranks.json", "timeline.json", "report.html"),
        "launcher.json",
    )
}
_MOST_ATTEMPTS = 9_999
_PIECE_BYTES = 1 << 20
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
    refuse_planted(folder)
    check_free(folder)
    if read_result(folder).get("status") == "success":
        raise UserError(f"--resume: an interrupted run expected, {folder} has reached its target")
    found = _newest(folder)
    if config is None:
        loaded = resumed_config(found, overrides, source)
    else:
        loaded = load(config, overrides)
        if loaded.run.seed is None:
            loaded = load(config, [*overrides, f"seed={found.meta.config.get('seed')}"])
    check_config(found, loaded)
    return folder, loaded


def load_attempt(folder: Path, config: str, overrides: list[str]) -> Loaded:
    """The config with which a job's interrupted run goes on: the job's, with the run's own seed.
    Raises UserError: it is another than that of the checkpoint."""
    found, _ = checkpoint_folder.newest(folder / "checkpoint")
    seed = (
        found.meta.config.get("seed") if found else load_recorded(folder / "config.yaml").run.seed
    )
    loaded = load(config, [*overrides, f"seed={seed}"])
    if found:
        check_config(found, loaded)
    return loaded


def begin_attempt(out: Path, loaded: Loaded) -> Checkpoint | None:
    """Put aside what the last attempt left, cut the log where its checkpoint was taken.

    The caller holds the run (run_lock.hold_run). Returns the newest whole checkpoint; None: there
    is none, the run begins anew.

    Raises:
        FolderInUse: a rank of the last attempt still writes there, or another driver took over.
        UserError: what the last attempt left cannot be read or copied; nothing has been moved.
    """
    if (other_driver := driven_by_another(out)) is not None:
        raise FolderInUse(out, other_driver)
    refuse_planted(out)
    wait_for_rank(out)
    found, problems = checkpoint_folder.newest(out / "checkpoint")
    for problem in problems:
        print(f"rn50: warning: {problem}; the one before is taken", file=sys.stderr, flush=True)
    number = next(
        (n for n in range(1, _MOST_ATTEMPTS + 1) if not os.path.lexists(out / f"attempt_{n}")), None
    )
    if number is None:
        raise UserError(f"{out}: fewer than {_MOST_ATTEMPTS} folders attempt_<n> expected")
    begun: dict[str, Path] = {}
    if found is not None:
        sizes = {LOG: found.meta.log_bytes, METRICS: found.meta.metrics_bytes}
        begun = {name: partial_beside(out / name) for name in sizes}
        try:
            for name, partial in begun.items():
                _copy_start(out, name, sizes[name], number, partial)
        except BaseException:
            for partial in begun.values():
                partial.unlink(missing_ok=True)
            raise
    kept = out / f"attempt_{number}"
    kept.mkdir()
    for name, new_name in _KEPT.items():
        if (out / name).is_file():
            (out / name).replace(kept / new_name)
    for path in out.glob("failure_*.json"):
        path.replace(kept / path.name)
    for name in COPIED:
        if (out / name).is_file():
            with open_file(out / name, within=out) as file:
                _copy(file, os.fstat(file.fileno()).st_size, kept / name)
    reserve(out)
    if found is None:
        print(f"{out}: no checkpoint yet: from the beginning", flush=True)
        return None
    for name, partial in begun.items():
        partial.replace(out / name)
    print(f"{out}: going on after step {found.meta.step} ({found.path.name})", flush=True)
    if other := differences_in_bits(found, loaded):
        print(
            f"{', '.join(other)}: sums round differently, so bits will differ from those of the "
            "uninterrupted run",
            flush=True,
        )
    return found


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
    failures = read_failures(out)  # "hopeless": the key before 2026-11-22
    return any(f.get("retryable") is False or f.get("hopeless") is True for f in failures)


def latest_interrupted(config: str | None, overrides: list[str]) -> Path:
    """The run that was interrupted last, of those that nobody drives; runs of jobs as well."""
    if config is None:  # of any preset: the overrides are that one's
        overrides = [text for text in overrides if text.startswith("system.results=")]
    run = load(config or "quick", overrides).run
    parent = Path(run.system.results) / (run.name if config else "")
    runs = ("*", "*/run_*") if config else ("*/*", "*/*/run_*")
    last_written = {}
    for folder in (path.parent for name in runs for path in parent.glob(f"{name}/checkpoint")):
        checkpoints = checkpoint_folder.listed(folder / "checkpoint")
        if checkpoints and is_interrupted(folder):
            with suppress(OSError):
                last_written[folder] = checkpoints[-1].stat().st_mtime_ns
    busy = None
    for folder in sorted(last_written, key=lambda folder: last_written[folder], reverse=True):
        try:
            check_free(folder)
            return folder
        except UserError as error:
            busy = busy or error
    but = f" but this one: {busy}" if busy else ""
    raise UserError(
        f"--resume latest: an interrupted run with a checkpoint expected, found none in {parent}"
        + but
    )


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


def _newest(folder: Path) -> Checkpoint:
    found, problems = checkpoint_folder.newest(folder / "checkpoint")
    if found is None:
        because = f": {problems[0]}" if problems else ""
        raise UserError(f"--resume: a whole checkpoint expected, found none in {folder}{because}")
    return found


def _copy_start(out: Path, name: str, size_bytes: int, attempts: int, target: Path) -> None:
    """Copy the first `size_bytes` of `name` to `target`: what takes its place. Where going on was
    interrupted before, the file is in an `attempt_<n>/` alone: the newest."""
    sizes = []
    for folder in (out, *(out / f"attempt_{n}" for n in range(attempts - 1, 0, -1))):
        source = folder / (name if folder == out else _KEPT[name])
        try:
            with open_file(source, _MOST_BYTES, within=out) as file:
                sizes.append(os.fstat(file.fileno()).st_size)
                if sizes[-1] >= size_bytes:
                    _copy(file, size_bytes, target)
                    return
        except FileNotFoundError:
            sizes.append(0)
        except OSError as error:
            raise UserError(f"{source}: cannot copy: {error.strerror}") from None
    raise UserError(
        f"{out / name}: at least {size_bytes} bytes expected, as when its checkpoint was "
        f"written, found {sizes[0]}"
    )


def _copy(source: BinaryIO, size_bytes: int, target: Path) -> None:
    """Copy so many bytes of an open file to one that is not there yet."""
    with os.fdopen(create_new(target), "wb") as file:
        while size_bytes and (piece := source.read(min(size_bytes, _PIECE_BYTES))):
            size_bytes -= file.write(piece)
