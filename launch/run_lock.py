"""One driver a run: locks in its folder, so that no two train into one checkpoint and one log.

`.lock` is held by whoever drives the run (`rn50 launch`, the steps of a job script), `.rank_0.lock`
by the rank that writes log and checkpoints: a rank may outlive its driver by seconds, and `rn50
train` has none. Both are data/lock.py's: over machines that share the folder too, and what a killed
process has left is taken over.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..config.errors import UserError
from ..data.lock import Holder, read_holder
from ..train.rank_lock import LOCK, RANK_LOCK, FolderInUse, hold_folder

RANK_GRACE_S = 20.0
"""For ranks whose launcher was killed to end: they do within three times `watchdog.silence_s` at
most, mostly at once."""
_POLL_S = 0.5


@contextmanager
def hold_run(out: Path) -> Iterator[None]:
    """Be the only one that drives the run in `out`, within the block.

    Raises:
        FolderInUse: another process does; its line says which, where and since when.
        UserError: the folder takes no lock file.
    """
    with hold_folder(out, LOCK):
        yield


def wait_for_rank(out: Path, grace_s: float = RANK_GRACE_S) -> None:
    """Until no rank 0 of an attempt before writes into `out` any more.

    Raises:
        FolderInUse: one still does after `grace_s`.
        UserError: its lock is no regular file.
    """
    path, told = out / RANK_LOCK, False
    until_s = time.monotonic() + grace_s
    while path.exists():
        try:
            with hold_folder(out, RANK_LOCK):
                return
        except FolderInUse:
            if time.monotonic() > until_s:
                raise
            if not told:
                told = True
                print(f"{out}: waiting for rank 0 of the run before to end", flush=True)
        time.sleep(_POLL_S)


def remove_rank_lock(out: Path) -> None:
    """Remove what a rank 0 that was killed on this machine has left of its lock."""
    holder = read_holder(out / RANK_LOCK)
    if holder is not None and holder.host == platform.node():
        with suppress(UserError), hold_folder(out, RANK_LOCK):
            pass


def driven_by_another(out: Path) -> Holder | None:
    """Who drives the run in `out`, if that is another process than this one. One that was suspended
    finds so after it has gone on: its lock was taken over."""
    holder = read_holder(out / LOCK)
    ours = (platform.node(), os.getpid())
    return None if holder is None or (holder.host, holder.pid) == ours else holder


def check_free(out: Path) -> None:
    """Raises UserError where a process drives the run in `out`, or it takes no lock file."""
    with hold_run(out):
        pass
