"""A run in several attempts: finding the checkpoint, keeping what an attempt left, going on.

The folder of a run holds one log and one metrics file over all attempts. What an attempt wrote
after the checkpoint from which the next one goes on is cut off; all of it stays in `attempt_<n>/`.
"""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from ..config.layout import with_ranks
from ..config.load import Loaded, load
from ..config.recorded import RESUME, RUN, load_named, load_recorded, words_to_repeat
from ..host.atomic import remove_dead, write_file
from ..host.errors import UserError, failing_as
from ..host.lock import FolderInUse, hold, other_holder
from ..host.progress import say, say_aside
from ..host.reading import read_file
from ..logging.mlperf import close_interrupted, key_of
from ..logging.run_folder import JobFolder, RunFolder
from ..report.runs import find_runs
from ..train.checkpoint.file import Checkpoint
from ..train.checkpoint.folder import (
    checkpoints_of_run,
    newest_checkpoint,
    newest_expected,
    remove_after,
)
from ..train.checkpoint.resume import check_config, recorded_run, resumed_config
from ..train.reserve import give_back, reserve

RANK_GRACE_S = 20.0
"""For ranks whose launcher was killed to end: most do at once."""
_MOST_BYTES = 256 << 20
"""The longest log or metrics file that is kept: metrics have 150 bytes a line."""


def load_resumed(
    where: str, config: str | None, overrides: list[str], ranks: int | None
) -> tuple[Path, Loaded]:
    """(folder, config) of an interrupted run: a path, or `latest`, that of `config` or of all.
    Without `config`, or for a run that has only to be concluded, its own is taken. Raises
    UserError: there is nothing to go on from, it is in use, or the config is another."""
    overrides = with_ranks(overrides, ranks)
    folder = RunFolder(Path(where))
    if where == "latest":
        folder = latest_interrupted(config, overrides)
    source = folder.config
    if not source.is_file():
        raise UserError(f"--resume: the folder of a run expected, found no {source}")
    if JobFolder(folder.path).script.is_file() and not folder.checkpoints.is_dir():
        raise UserError(
            f"--resume: the folder of a run expected, found a job's: rn50 submit --resume {folder}"
        )
    folder.check_free()
    if folder.is_to_conclude:
        return folder.path, load_recorded(source, overrides, keys=())
    if folder.is_over:
        raise UserError(f"--resume: an interrupted run expected, {folder} has ended")
    try:
        checkpoint = newest_expected(folder.checkpoints)
    except UserError as error:
        restart_command = shlex.join(
            ["rn50", "launch", str(source), *words_to_repeat(folder.path, RUN)]
        )
        raise UserError(f"{error}; start again with: {restart_command}") from None
    if config is None:
        loaded = resumed_config(checkpoint, overrides, source)
    else:
        loaded = load_named(config, overrides, RESUME)
        # with another one it would be another training
        if loaded.run.seed is None:
            overrides = [*overrides, f"seed={checkpoint.meta.config.get('seed')}"]
            loaded = load_named(config, overrides, RESUME)
    check_config(checkpoint, loaded)
    return folder.path, loaded


def load_attempt(folder: RunFolder, loaded: Loaded) -> Loaded:
    """The config with which a job's interrupted run goes on: the job's, with the run's own seed.
    Raises UserError: it is another than that of the checkpoint."""
    checkpoint, _ = newest_checkpoint(folder.checkpoints)
    if not checkpoint:
        return loaded.with_seed(load(folder.config, within=folder.path).run.seed)
    loaded = loaded.with_seed(recorded_run(checkpoint).seed)
    check_config(checkpoint, loaded)
    return loaded


def begin_attempt(out: RunFolder) -> Checkpoint | None:
    """Put aside what the last attempt left, cut the log where its checkpoint was taken.

    The caller holds the run. Returns the newest whole checkpoint; None: there
    is none, the run begins anew. Raises FolderInUse: a rank of the last attempt still writes there,
    or another driver took over; UserError: what the last attempt left cannot be read or copied;
    its log is whole.
    """
    if other_driver := other_holder(out.lock):  # this process was suspended
        raise FolderInUse(out.path, other_driver)
    with hold(out.rank_lock, wait_s=RANK_GRACE_S):
        pass  # nobody else writes there any more
    checkpoint, warnings = newest_checkpoint(out.checkpoints)
    for warning in warnings:
        say_aside(f"rn50: warning: {warning}")
    # before the failure that makes some of them doubtful is put aside
    remove_after(out.checkpoints, checkpoint)
    with failing_as(f"{out}: cannot keep what the last attempt left"):
        _keep_attempt(out)
        if not checkpoint:
            out.log.unlink(missing_ok=True)
            out.metrics.unlink(missing_ok=True)
        else:
            _cut(out.log, checkpoint.meta.log_bytes)
            _cut(out.metrics, checkpoint.meta.metrics_bytes)
    reserve(out.path)
    if not checkpoint:
        say(f"{out}: no checkpoint yet: from the beginning")
        return None
    say(f"{out}: going on after step {checkpoint.meta.step} ({checkpoint.path.name})")
    return checkpoint


def _keep_attempt(out: RunFolder) -> None:
    """Put what the last attempt left into a new folder attempt_<n>."""
    number = 1
    while os.path.lexists(out.path / f"attempt_{number}"):
        number += 1
    attempt = RunFolder(out.path / f"attempt_{number}")
    attempt.path.mkdir()
    # the next attempt continues or overwrites these
    copies = {
        out.log: attempt.interrupted_log,
        out.metrics: attempt.metrics,
        out.config: attempt.config,
        out.origins: attempt.origins,
        out.environment: attempt.environment,
    }
    for path, copy in copies.items():
        if path.is_file():
            copy.write_bytes(_content(path))
    failures = out.path.glob("failure_*.json")
    ends = (out.stderr, out.result, out.ranks, out.timeline, out.report)
    for path in (*ends, *failures):
        if path.is_file():
            path.replace(attempt.path / path.name)


def _content(file: Path) -> bytes:
    with failing_as(f"{file}: cannot read"):
        return read_file(file, _MOST_BYTES, within=file.parent)


def _cut(path: Path, size_bytes: int) -> None:
    """Cut a log to its first `size_bytes`, or to the whole lines that a crash of the file system
    left of them. A run that ended there in an attempt before goes on: no line says that it ended.
    """
    content = b""
    if path.is_file():
        content = _content(path)
    content = content[: content.rfind(b"\n", 0, size_bytes) + 1]
    if len(content) < size_bytes:
        say_aside(
            f"rn50: warning: {path}: {size_bytes} bytes of whole lines expected, as when the "
            f"checkpoint was written, found {len(content)}: it has a gap"
        )
    lines = content.splitlines(keepends=True)
    write_file(path, b"".join(line for line in lines if key_of(line) != "run_stop"))


def close_attempt(out: RunFolder) -> None:
    """End the log of a failed attempt where rank 0 could not, remove half a checkpoint. Gives back
    what was reserved on the disk, for this and for what is to be said. A folder that another driver
    has taken over is left alone."""
    if other_holder(out.lock):
        return
    give_back(out.path)
    remove_dead(out.checkpoints)
    remove_dead(out.path)
    if out.log.is_file():
        # a disk that was the reason takes no end either
        with suppress(UserError, OSError):
            close_interrupted(out.log)


def latest_interrupted(
    config: str | None, overrides: list[str], *, with_checkpoint: bool = True
) -> RunFolder:
    """The run that was interrupted last, of those that nobody drives; runs of jobs as well.
    `with_checkpoint`: one without a checkpoint does not count, but one that has only to be
    concluded does."""
    if config is None:  # of any preset: the overrides are that one's
        overrides = [
            override for override in overrides if override.startswith("system.results=")
        ]
    run = load(config or "quick", overrides).run
    parent = Path(run.system.results)
    depth = 3  # NAME/TIME, and of a job's run NAME/TIME/run_N
    if config:
        parent /= run.name
        depth = 2
    written_ns = {}
    for entry in find_runs(parent, depth):
        folder = RunFolder(entry.folder)
        try:
            written = checkpoints_of_run(folder.checkpoints).trusted
            if not with_checkpoint and not written and folder.was_launched:
                written = [folder.environment]
            if with_checkpoint and folder.is_to_conclude:
                written_ns[folder] = folder.result.stat().st_mtime_ns
            elif written and folder.is_interrupted:
                written_ns[folder] = written[-1].stat().st_mtime_ns
        except (OSError, UserError) as error:  # such as: an older result.json
            say_aside(f"rn50: warning: passed over: {error}")
    for folder in sorted(written_ns, key=written_ns.__getitem__, reverse=True):
        with suppress(UserError):
            folder.check_free()
            return folder
    expected = "an interrupted run"
    if with_checkpoint:
        expected += " with a checkpoint"
    raise UserError(
        f"--resume latest: {expected} that no process uses expected, found none in {parent}"
    )
