"""One process drives a run: it holds `.lock` in the run's folder (`rn50 launch`, the steps of a job
script). The rank that writes log and checkpoints holds `.rank_0.lock` and may outlive it by
seconds."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ..data.lock import LOCK, RANK_LOCK, Holder, hold, read_holder

_RANK_GRACE_S = 20.0
"""For ranks whose launcher was killed to end: most do at once."""


def hold_run(out: Path) -> AbstractContextManager[None]:
    """Be the only one that drives the run in `out`, within the block. Raises FolderInUse, whose
    line says which process does, where and since when; UserError: the folder takes no lock file."""
    return hold(out / LOCK, out)


def wait_for_rank(out: Path, grace_s: float = _RANK_GRACE_S) -> None:
    """Until rank 0 of the attempt before has left `out`, and remove what one that was killed left.
    Raises FolderInUse: it still writes there after `grace_s`."""
    with hold(out / RANK_LOCK, out, wait_s=grace_s):
        pass


def remove_rank_lock(out: Path) -> None:
    """Remove what a rank 0 left that was killed. The caller drives the run, unless it was taken
    over, and knows that all its ranks have ended."""
    if driven_by_another(out) is None:
        with suppress(OSError):
            (out / RANK_LOCK).unlink(missing_ok=True)


def driven_by_another(out: Path) -> Holder | None:
    """The process that drives the run in `out`, if that is another than this one. One that was
    suspended finds so when it continues: its lock was taken over."""
    holder = read_holder(out / LOCK)
    return None if holder is None or holder.is_ours else holder


def check_free(out: Path) -> None:
    """Raises UserError where a process drives the run in `out`, or it takes no lock file."""
    with hold_run(out):
        pass
