"""A run in several attempts: finding the checkpoint, keeping what an attempt left, going on.

The folder of a run holds one log and one metrics file over all attempts. What an attempt wrote
after the checkpoint from which the next one goes on is cut off; all of it stays in `attempt_<n>/`.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from ..config.layout import with_ranks
from ..config.load import Loaded, load
from ..config.recorded import RESUME, RUN, load_named, load_recorded, words_to_repeat
from ..host.atomic import remove_dead, write_file
from ..host.errors import UserError, failing_as
from ..host.lock import LOCK, RANK_LOCK, FolderInUse, check_free, hold, other_holder
from ..host.progress import say
from ..host.reading import read_file
from ..logging.mlperf import close_interrupted
from ..logging.records import ENVIRONMENT, RESULT, Result, read, read_failures
from ..train.checkpoint.file import Checkpoint
from ..train.checkpoint.folder import (
    checkpoints_of_run,
    newest_checkpoint,
    newest_expected,
    remove_after,
)
from ..train.checkpoint.resume import (
    INTERRUPTED_LOG,
    LOG,
    METRICS,
    check_config,
    recorded_run,
    resumed_config,
)
from ..train.reserve import give_back, reserve
from .run_files import is_run

_COPIED = {
    LOG: INTERRUPTED_LOG,
    METRICS: METRICS,
    "config.yaml": "config.yaml",
    "origins.json": "origins.json",
    ENVIRONMENT: ENVIRONMENT,
}
"""Files of an attempt that are copied, and their new names: the next one continues or overwrites
them."""
_MOVED = (
    "stderr.log",
    RESULT,
    "ranks.json",
    "timeline.json",
    "report.html",
    "failure_*.json",
)
RANK_GRACE_S = 20.0
"""For ranks whose launcher was killed to end: most do at once."""
_MOST_BYTES = 256 << 20
"""Of a log or metrics file: metrics have 150 bytes a line."""


def load_resumed(
    where: str, config: str | None, overrides: list[str], ranks: int | None
) -> tuple[Path, Loaded]:
    """(folder, config) of an interrupted run: a path, or `latest`, that of `config` or of all.
    Without `config`, or for a run that has only to be concluded, its own is taken. Raises
    UserError: there is nothing to go on from, it is in use, or the config is another."""
    overrides = with_ranks(overrides, ranks)
    folder = Path(where)
    if where == "latest":
        folder = latest_interrupted(config, overrides)
    source = folder / "config.yaml"
    if not source.is_file():
        raise UserError(f"--resume: the folder of a run expected, found no {source}")
    check_free(folder)
    if is_to_conclude(folder):
        return folder, load_recorded(source, overrides, keys=())
    if is_over(folder):
        raise UserError(f"--resume: an interrupted run expected, {folder} has ended")
    try:
        checkpoint = newest_expected(folder / "checkpoint")
    except UserError as error:
        again = shlex.join(
            ["rn50", "launch", str(source), *words_to_repeat(folder, RUN)]
        )
        raise UserError(f"{error}; start again with: {again}") from None
    if config is None:
        loaded = resumed_config(checkpoint, overrides, source)
    else:
        loaded = load_named(config, overrides, RESUME)
        if loaded.run.seed is None:
            overrides = [*overrides, f"seed={checkpoint.meta.config.get('seed')}"]
            loaded = load_named(config, overrides, RESUME)
    check_config(checkpoint, loaded)
    return folder, loaded


def is_over(folder: Path) -> bool:
    """Whether the ranks of a run came to its end by themselves."""
    result = read(folder / RESULT, Result)
    return result is not None and result.has_ended


def is_to_conclude(folder: Path) -> bool:
    """Whether a run came to its end, and its launcher was killed before it had a verdict: its
    result is still as rank 0 left it."""
    result = read(folder / RESULT, Result)
    if result is None or not result.weights_digest:
        return False
    return result.has_ended and result.check is None


def load_attempt(folder: Path, loaded: Loaded) -> Loaded:
    """The config with which a job's interrupted run goes on: the job's, with the run's own seed.
    Raises UserError: it is another than that of the checkpoint."""
    checkpoint, _ = newest_checkpoint(folder / "checkpoint")
    if checkpoint is None:
        return loaded.with_seed(load(folder / "config.yaml", within=folder).run.seed)
    loaded = loaded.with_seed(recorded_run(checkpoint).seed)
    check_config(checkpoint, loaded)
    return loaded


def begin_attempt(out: Path) -> Checkpoint | None:
    """Put aside what the last attempt left, cut the log where its checkpoint was taken.

    The caller holds the run. Returns the newest whole checkpoint; None: there
    is none, the run begins anew. Raises FolderInUse: a rank of the last attempt still writes there,
    or another driver took over; UserError: what the last attempt left cannot be read or copied;
    its log is whole.
    """
    if other_driver := other_holder(out / LOCK):  # this process was suspended
        raise FolderInUse(out, other_driver)
    with hold(out / RANK_LOCK, wait_s=RANK_GRACE_S):
        pass
    checkpoint, warnings = newest_checkpoint(out / "checkpoint")
    for warning in warnings:
        say(f"rn50: warning: {warning}", to=sys.stderr)
    # before the failure that makes some of them doubtful is put aside
    remove_after(out / "checkpoint", checkpoint)
    with failing_as(f"{out}: cannot keep what the last attempt left"):
        _keep_attempt(out)
        if checkpoint is None:
            (out / LOG).unlink(missing_ok=True)
            (out / METRICS).unlink(missing_ok=True)
        else:
            _cut(out, LOG, checkpoint.meta.log_bytes)
            _cut(out, METRICS, checkpoint.meta.metrics_bytes)
    reserve(out)
    if checkpoint is None:
        say(f"{out}: no checkpoint yet: from the beginning")
        return None
    say(f"{out}: going on after step {checkpoint.meta.step} ({checkpoint.path.name})")
    return checkpoint


def _keep_attempt(out: Path) -> None:
    """Put what the last attempt left into a new folder attempt_<n>."""
    number = 1
    while os.path.lexists(out / f"attempt_{number}"):
        number += 1
    kept = out / f"attempt_{number}"
    kept.mkdir()
    for name, new_name in _COPIED.items():
        if (out / name).is_file():
            (kept / new_name).write_bytes(_content(out / name))
    for pattern in _MOVED:
        for path in out.glob(pattern):
            if path.is_file():
                path.replace(kept / path.name)


def _content(file: Path) -> bytes:
    with failing_as(f"{file}: cannot read"):
        return read_file(file, _MOST_BYTES, within=file.parent)


def _cut(out: Path, name: str, size_bytes: int) -> None:
    """Cut a log to its first `size_bytes`, or to the whole lines that a crash of the file system
    left of them. A run that ended there in an attempt before goes on: no line says that it ended.
    """
    text = b""
    if (out / name).is_file():
        text = _content(out / name)
    text = text[: text.rfind(b"\n", 0, size_bytes) + 1]
    if len(text) < size_bytes:
        say(
            f"rn50: warning: {out / name}: {size_bytes} bytes of whole lines expected, as when the "
            f"checkpoint was written, found {len(text)}: it has a gap",
            to=sys.stderr,
        )
    lines = text.splitlines(keepends=True)
    left = [line for line in lines if b'"key": "run_stop"' not in line]
    write_file(out / name, b"".join(left))


def close_attempt(out: Path) -> None:
    """After a failure: end the log where rank 0 could not, remove half a checkpoint. Gives back
    what was reserved on the disk, for this and for what is to be said. A folder that another driver
    has taken over is left alone."""
    if other_holder(out / LOCK) is not None:
        return
    give_back(out)
    remove_dead(out / "checkpoint")
    remove_dead(out)
    if (out / LOG).is_file():
        # a disk that was the reason takes no end either
        with suppress(UserError, OSError):
            close_interrupted(out / LOG)


def is_hopeless(out: Path) -> bool:
    """Would the run fail again from its checkpoint: at chance level, or diverged? A run repeats bit
    for bit: if a loss is not finite since the same step as in an attempt before, it diverged."""
    earlier = {
        failure.not_finite_step
        for attempt in out.glob("attempt_*")
        for failure in read_failures(attempt)
    } - {None}
    return any(
        not failure.retryable or failure.not_finite_step in earlier
        for failure in read_failures(out)
    )


def latest_interrupted(
    config: str | None, overrides: list[str], *, with_checkpoint: bool = True
) -> Path:
    """The run that was interrupted last, of those that nobody drives; runs of jobs as well.
    `with_checkpoint`: one without a checkpoint does not count, but one that has only to be
    concluded does."""
    if config is None:  # of any preset: the overrides are that one's
        overrides = [text for text in overrides if text.startswith("system.results=")]
    run = load(config or "quick", overrides).run
    parent = Path(run.system.results)
    runs = "*/*"
    if config:
        parent /= run.name
        runs = "*"
    written_ns = {}
    for folder in (*parent.glob(runs), *parent.glob(f"{runs}/run_*")):
        try:
            written = checkpoints_of_run(folder / "checkpoint").trusted
            if not with_checkpoint and not written and is_run(folder):
                written = [folder / ENVIRONMENT]
            if with_checkpoint and is_to_conclude(folder):
                written_ns[folder] = (folder / RESULT).stat().st_mtime_ns
            elif written and is_interrupted(folder):
                written_ns[folder] = written[-1].stat().st_mtime_ns
        except (OSError, UserError) as error:  # such as: an older result.json
            say(f"rn50: warning: passed over: {error}", to=sys.stderr)
    for folder in sorted(written_ns, key=written_ns.__getitem__, reverse=True):
        with suppress(UserError):
            check_free(folder)
            return folder
    wanted = "an interrupted run" + " with a checkpoint" * with_checkpoint
    raise UserError(
        f"--resume latest: {wanted} that no process uses expected, found none in {parent}"
    )


def is_interrupted(folder: Path) -> bool:
    """Did the run in `folder` end before its time, and would it not fail again the same way? A run
    that reached its target, or trained to its last epoch without, has ended."""
    return not is_over(folder) and not is_hopeless(folder)
