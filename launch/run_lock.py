"""One process drives a run: it holds `.lock` in the run's folder (`rn50 launch`, the steps of a job
script). The rank that writes log and checkpoints holds `.rank_0.lock` and may outlive it by
seconds."""

from __future__ import annotations

import os
import platform
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ..config.atomic import in_its_folder
from ..data.lock import LOCK, RANK_LOCK, FolderInUse, Holder, hold, read_holder

RANK_GRACE_S = 20.0
"""For ranks whose launcher was killed to end: most do at once."""
_POLL_S = 0.5


def hold_run(out: Path) -> AbstractContextManager[None]:
    """Be the only one that drives the run in `out`, within the block. Raises FolderInUse, whose
    line says which process does, where and since when; UserError: the folder takes no lock file."""
    return hold(out / LOCK, out)


def wait_for_rank(out: Path, grace_s: float = RANK_GRACE_S) -> None:
    """Until rank 0 of the attempt before has left `out`, and remove what one that was killed left.
    Raises FolderInUse: it still writes there after `grace_s`."""
    until_s = time.monotonic() + grace_s
    while (out / RANK_LOCK).exists():
        try:
            with hold(out / RANK_LOCK, out):
                return
        except FolderInUse:
            if time.monotonic() > until_s:
                raise
        time.sleep(_POLL_S)


def remove_rank_lock(out: Path) -> None:
    """Remove what a rank 0 that was killed on this machine has left of its lock."""
    holder = read_holder(out / RANK_LOCK)
    if holder is not None and holder.host == platform.node():
        with suppress(FolderInUse):
            wait_for_rank(out, 0.0)


def driven_by_another(out: Path) -> Holder | None:
    """The process that drives the run in `out`, if that is another than this one. One that was
    suspended finds so when it continues: its lock was taken over."""
    holder = read_holder(out / LOCK)
    ours = (platform.node(), os.getpid())
    return None if holder is None or (holder.host, holder.pid) == ours else holder


def check_free(out: Path) -> None:
    """Raises UserError where a process drives the run in `out`, it takes no lock file, or a link in
    it leads elsewhere: the run would be written there."""
    for path in out.iterdir():
        in_its_folder(path)
    with hold_run(out):
        pass
