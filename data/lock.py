"""A lock file that one process holds at a time, also over machines that share its folder.

The file is filelock's lease: it lies there while it is held and its time is renewed every BEAT_S.
It is taken over at once where its process on this machine is gone, and after STALE_S without a beat
where the machine may be down. No clocks are compared and no `flock` is needed, which NFS with
`local_lock` and Lustre without `flock` grant to several machines. `NAME.holder` beside it says who
holds it, for messages.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..config.atomic import write_json
from ..config.errors import UserError
from ..config.reading import read_object

if TYPE_CHECKING:
    from filelock import LeaseCompromise, SoftFileLease

LOCK, RANK_LOCK = ".lock", ".rank_0.lock"
"""The locks of a run's folder: that of its launcher, that of the rank which writes the log."""
BEAT_S = 5.0
STALE_S = 30.0
_POLL_S = 0.2


class Holder(NamedTuple):
    """The record of who holds a lock."""

    host: str
    pid: int
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (`{self.command}`, since {self.since})"


Lost = Callable[[Holder | None], None]


class FolderInUse(UserError):
    """Another process holds the lock of this folder: nothing of it may be touched."""

    def __init__(self, folder: Path, holder: Holder | None) -> None:
        who = holder or "another process"
        super().__init__(f"{folder}: in use by {who}: wait for its end, or stop it first")


@contextmanager
def hold(path: Path, of: Path, *, wait: bool = False, lost: Lost | None = None) -> Iterator[None]:
    """Hold the lock file `path` within the block; it is removed behind it.

    Args:
        path: the lock file, in a folder that exists.
        of: the folder that it guards, for messages.
        wait: wait without limit for another holder.
        lost: called from a thread if another process has taken the lock over: this one was held up
            for so long that it counted as dead.

    Raises:
        FolderInUse: another process holds it, and `wait` is false.
        UserError: the file cannot be made.
    """
    from filelock import SoftFileLease  # only a process that takes a lock needs it

    def compromised(loss: LeaseCompromise) -> None:
        if loss.reason == "owner-changed" and lost is not None:
            lost(read_holder(path))

    lease = SoftFileLease(
        path,
        lease_duration=STALE_S,
        heartbeat_interval=BEAT_S,
        on_compromise=compromised,
        thread_local=False,  # a rank's watchdog thread gives the lock back
    )
    record = _record_of(path)
    ours = _own_record()
    try:
        _acquire(lease, path, of, wait=wait)
        write_json(record, ours._asdict())
    except OSError as error:
        lease.release()
        raise UserError(f"{path}: cannot lock: {error.strerror}") from None
    try:
        yield
    finally:
        if read_holder(path) == ours:
            with suppress(OSError):
                record.unlink(missing_ok=True)
        with suppress(OSError):
            lease.release()


def _acquire(lease: SoftFileLease, path: Path, of: Path, *, wait: bool) -> None:
    from filelock import Timeout

    first_beat, known = None, False
    while True:
        try:
            lease.acquire(timeout=0)
            return
        except Timeout:
            holder = read_holder(path)
        beat = path.stat().st_mtime_ns if path.exists() else None
        first_beat = first_beat or beat
        here = holder is not None and holder.host == platform.node()
        at_work = has_open(holder.pid, path) if holder and here else beat != first_beat
        if at_work and not wait:
            raise FolderInUse(of, holder)
        if not known:
            known = True
            print(f"{of}: waiting for {holder or 'another process'}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)


def read_holder(path: Path) -> Holder | None:
    """The holder on record of the lock file `path`; None: there is no record."""
    try:
        return Holder(**read_object(_record_of(path)))
    except TypeError:
        return None


def is_held(path: Path) -> bool:
    """Whether the holder on record is at work. The lock itself is not tried, because that could
    disturb a process that wants it.

    A holder on this machine has the file open. One elsewhere has renewed the file's time, so that
    its clock and ours may differ by STALE_S less a beat."""
    holder = read_holder(path)
    if holder is None:
        return False
    if holder.host == platform.node():
        return has_open(holder.pid, path)
    try:
        return time.time() - path.stat().st_mtime < STALE_S
    except OSError:
        return False


def has_open(pid: int, path: Path) -> bool:
    """Whether a process of this machine has the file open; of another user's: whether it runs."""
    import psutil

    try:
        return os.path.realpath(path) in {file.path for file in psutil.Process(pid).open_files()}
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.holder")


def _own_record() -> Holder:
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return Holder(
        host=platform.node(),
        pid=os.getpid(),
        command=shlex.join(words)[:200],
        since=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    )
