"""A lock file that says who holds it: one process at a time, also on machines that share a folder.

The kernel's lock (flock) decides where it can: always between the processes of one machine, and
between machines where the file system passes it on. NFS mounted with `local_lock` or `nolock` and
Lustre mounted without `flock` do not, and no program can ask them. There the record decides that
the holder writes into the file: its machine, its process, and a count that it raises every few
seconds. The kernel's lock goes with its process; where the count of a record stands still, the
machine is down or the process gone, and the lock is taken over. No two clocks are ever compared.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ..config.atomic import open_own
from ..config.errors import UserError
from ..config.reading import open_file

BEAT_S = 5.0
STALE_S = 30.0
"""After so long without a beat a holder on another machine counts as dead."""
_SETTLE_S = 1.0
"""Where flock may be local to a machine: of two records written at once the later one counts."""
_POLL_S = 0.2
_RECORD_BYTES = 2048
_JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_OWN_DISK = ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "zfs", "f2fs", "overlay", "ramfs")


class Holder(NamedTuple):
    """The record of who holds a lock."""

    host: str
    boot_id: str  # of the running kernel: containers of one machine share it, and its flock
    pid: int
    token: str  # another one for every holding
    command: str
    since: str
    beat: int = 0
    job: str = ""  # of the scheduler, if any

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job} (`{self.command}`, since {self.since})"


Tell = Callable[[Holder | None], None]
Lost = Callable[[Holder], None]


class HeldError(UserError):
    """Another process holds the lock; `holder` is None where its record cannot be read."""

    def __init__(self, path: Path, holder: Holder | None) -> None:
        super().__init__(f"{path}: held by {holder or 'another process'}")
        self.holder = holder


@contextmanager
def hold(path: Path, *, wait: bool, tell: Tell, lost: Lost | None = None) -> Iterator[None]:
    """Hold the lock file `path` within the block; it is removed behind it.

    Args:
        path: of the lock file, in a folder that exists.
        wait: wait without limit for whoever holds it.
        tell: called once for each holder, before this waits for it or looks (for STALE_S at most)
            whether a holder on another machine is still at work.
        lost: called from a thread if another process has taken the lock over: this one was held up
            for so long that it counted as dead.

    Raises:
        HeldError: another process holds it, and `wait` is false.
        OSError: the file cannot be made or written.
    """
    ours = _record()
    told: set[str] = set()

    def tell_once(holder: Holder | None) -> None:
        token = holder.token if holder else ""
        if token not in told:
            told.add(token)
            tell(holder)

    while (descriptor := _take(path, ours, tell_once)) is None:
        holder = read_holder(path)
        if not wait:
            raise HeldError(path, holder)
        tell_once(holder)
        time.sleep(_POLL_S)
    stop = threading.Event()
    beating = threading.Thread(
        target=_beat, args=(path, descriptor, ours, stop, lost), name="lock", daemon=True
    )
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join()
        if _holds(path, ours):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        os.close(descriptor)


def read_holder(path: Path) -> Holder | None:
    """Who the lock file `path` names; None: nobody, or nothing that can be read."""
    try:
        with open_file(path) as file:
            holder = Holder(**json.loads(file.read(_RECORD_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = [value for name, value in holder._asdict().items() if name not in ("pid", "beat")]
    numbers = (holder.pid, holder.beat)
    good = all(isinstance(text, str) and text.isprintable() for text in texts)
    return holder if good and all(type(number) is int for number in numbers) else None


def is_held(path: Path) -> bool:
    """Whether the holder on record is at work, as far as a look shows. The lock is not tried: that
    could be in the way of a process that wants it.

    A holder on this machine has the file open. One elsewhere has raised its count by the file's
    time, so that its clock and ours may differ by STALE_S less a beat."""
    holder = read_holder(path)
    if holder is None:
        return False
    if (holder.host, holder.boot_id) == (platform.node(), _boot_id()):
        return has_open(holder.pid, path)
    try:
        return time.time() - path.stat().st_mtime < STALE_S
    except OSError:
        return False


def has_open(pid: int, path: Path) -> bool:
    """Whether a process of this machine has the file open; of another user's: whether it runs."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            return any(_leads_to(found.path, path) for found in descriptors)
    except PermissionError:
        return True
    except OSError:
        return False


def _leads_to(descriptor: str, path: Path) -> bool:
    try:
        return path.samefile(descriptor)
    except OSError:  # closed meanwhile
        return False


def _take(path: Path, ours: Holder, tell: Tell) -> int | None:
    """The descriptor of the lock file, now held; None: another process holds it."""
    taken: bool | None = None
    while taken is None:
        descriptor = open_own(path, os.O_RDWR)
        try:
            taken = _try(path, descriptor, ours, tell)
        finally:
            if not taken:
                os.close(descriptor)
    return descriptor if taken else None


def _try(path: Path, descriptor: int, ours: Holder, tell: Tell) -> bool | None:
    """Whether the open lock file could be taken; None: it changed meanwhile, look again."""
    granted = _lock(descriptor)
    if granted is False:
        return False
    free = _is_free(path, granted is True, tell)
    if not free:
        return free
    if not _is_file(descriptor, path):  # who held it before has removed it
        return None
    _write(descriptor, ours)
    if not _is_own_disk(path):
        time.sleep(_SETTLE_S)
    return _holds(path, ours) or None


def _lock(descriptor: int) -> bool | None:
    """Whether the kernel grants its lock; None: it has none on this file system."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_free(path: Path, granted: bool, tell: Tell) -> bool | None:
    """Whether the holder on record is gone, where the kernel does not know; None: look again."""
    holder = read_holder(path)
    if holder is None:
        return True
    if granted and (holder.boot_id == _boot_id() or _is_own_disk(path)):
        return True
    tell(holder)
    deadline = time.monotonic() + STALE_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        found = read_holder(path)
        if found is None or found.token != holder.token:
            return None
        if found.beat != holder.beat:
            return False
    return True


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _holds(path: Path, ours: Holder) -> bool:
    found = read_holder(path)
    return found is not None and found.token == ours.token


def _beat(
    path: Path, descriptor: int, ours: Holder, stop: threading.Event, lost: Lost | None
) -> None:
    beat = 0
    while not stop.wait(BEAT_S):
        holder = read_holder(path)
        if holder is not None and holder.token != ours.token:
            if lost is not None:
                lost(holder)
            return
        beat += 1  # one failed look is no proof: a pause in the count would give the lock away
        with suppress(OSError):  # the next one may be written
            _write(descriptor, ours._replace(beat=beat))


def _write(descriptor: int, holder: Holder) -> None:
    """One write of always the same length: a reader sees the old record or the new one."""
    content = json.dumps(holder._asdict()).encode().ljust(_RECORD_BYTES - 1) + b"\n"
    os.pwrite(descriptor, content, 0)
    os.fsync(descriptor)  # where other machines read it


def _record() -> Holder:
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    command = "".join(c if " " <= c <= "~" else "?" for c in shlex.join(words))
    return Holder(
        host=platform.node(),
        boot_id=_boot_id(),
        pid=os.getpid(),
        token=os.urandom(8).hex(),
        command=command if len(command) <= 200 else f"{command[:197]}...",
        since=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        job=scheduler_job(),
    )


def scheduler_job() -> str:
    """The id of the scheduler's job that this process belongs to; empty: of none."""
    return next((os.environ[name] for name in _JOB_IDS if os.environ.get(name)), "")[:80]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _is_own_disk(path: Path) -> bool:
    """Whether `path` is on a file system that no other machine writes."""
    import psutil  # only who takes a lock needs it

    place = Path(os.path.realpath(path))
    mounts = [m for m in psutil.disk_partitions(all=True) if place.is_relative_to(m.mountpoint)]
    mounts.sort(key=lambda mount: len(mount.mountpoint))  # of one place the last counts
    return bool(mounts) and mounts[-1].fstype in _OWN_DISK
