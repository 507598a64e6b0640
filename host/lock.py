"""A lock file that one process holds at a time, also over users, containers and machines.

The rule: a lock is held as long as the time of its file moves. Its holder renews it every BEAT_S by
the clock of the file system; one that has stood still for STALE_S is anybody's. A random token
tells holders apart: a process number, a host's name and a host's clock may be those of another, and
NFS with `local_lock` and Lustre without `flock` grant an advisory lock to several machines.
"""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from .atomic import encoded, sync
from .errors import UserError, failing_as
from .progress import say_aside
from .reading import read_file

LOCK = ".lock"
"""The lock file of a folder's one driver."""
BEAT_S = 1.0
STALE_S = 30.0
_POLL_S = 0.2
_SAY_S = 60.0
_MOST_BYTES = 4096
_TOKEN = secrets.token_hex(8)


Lost = Callable[[str], object]


class FolderInUse(UserError):
    """Another process holds the lock of this folder: nothing of it may be touched."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"{folder}: in use by {holder}: wait for its end, or stop it first"
        )


class _Sight(NamedTuple):
    """What one look at a lock file shows; `holder` is for people."""

    token: str
    holder: str
    mtime_ns: int


@contextmanager
def hold(
    path: Path,
    guarded: Path | None = None,
    *,
    wait_s: float = 0.0,
    lost: Lost = lambda _: None,
) -> Iterator[None]:
    """Hold the lock file `path` within the block; it is removed behind it.

    Args:
        path: the lock file, in a folder that exists.
        guarded: the folder that it guards, for messages; by default that in which it lies.
        wait_s: how long to wait for a holder that is alive.
        lost: called from a thread with the holder if another process has taken the lock over: this
            one was held up for so long that it counted as dead.

    Raises:
        FolderInUse: another process holds it.
        UserError: the file cannot be made, or that of a dead holder not be removed.
    """
    over = threading.Event()
    with failing_as(f"{path}: cannot lock"):
        _acquire(path, guarded or path.parent, wait_s)
    try:
        beat = threading.Thread(target=_beat, args=(path, over, lost), daemon=True)
        beat.start()
        yield
    finally:
        over.set()
        # a file that another process took over meanwhile is not ours to remove
        if other_holder(path) is None:
            with suppress(OSError):
                path.unlink()


def _acquire(path: Path, guarded: Path, wait_s: float) -> None:
    begun_s = moved_s = time.monotonic()
    say_s = begun_s + 4 * BEAT_S
    seen: _Sight | None = None
    while not _create(path):
        now_s = time.monotonic()
        sight = _look(path)
        still_s = now_s - moved_s
        if sight != seen:
            # it moved between two looks, so its holder is alive; the first look tells nothing
            if sight and seen and now_s > begun_s + wait_s:
                raise FolderInUse(guarded, sight.holder)
            seen = sight
            moved_s = now_s
        # Three beats all the same: Lustre and Ceph take times from the clocks of their clients.
        elif still_s > STALE_S or (
            sight and still_s > 3 * BEAT_S and _is_old(path, sight)
        ):
            _remove(path, guarded, sight, wait_s)
        if sight and now_s > say_s:
            say_s = now_s + _SAY_S
            until = f"until it ends, or {path} stands still for {STALE_S:g} s"
            line = f"{guarded}: waiting for {sight.holder}, {until}"
            say_aside(line)
        time.sleep(_POLL_S)


def _create(path: Path) -> bool:
    """Whether the file was made, and is on the disk; otherwise there is one."""
    program, *arguments = sys.argv
    command = shlex.join([Path(program).name, *arguments])
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    origin = f"`{command[:200]}`, since {since}"
    holder = f"process {os.getpid()} on {platform.node()} ({origin})"
    try:
        # "x" is O_EXCL: of several that make it at once, one succeeds, on NFS too
        with path.open("xb") as file:
            file.write(encoded(f"{_TOKEN}\n{holder}"))
    except FileExistsError:
        return False
    sync(path)
    return True


def _look(path: Path) -> _Sight | None:
    """One look: whose lock it is and when its time moved. None: there is no file."""
    content = b""
    # another user's; opened each time, as NFS asks its server only then
    with suppress(OSError):
        content = read_file(path, _MOST_BYTES, within=path.parent)
    token, _, holder = content.decode(errors="replace").partition("\n")
    with suppress(OSError):
        mtime_ns = path.lstat().st_mtime_ns
        return _Sight(token, holder or "another process", mtime_ns)
    return None


def _is_old(path: Path, sight: _Sight) -> bool | None:
    """Whether a lock has stood still for STALE_S by the clock of its file system: that of a new
    file beside it. None: the folder takes no file."""
    with suppress(OSError), TemporaryFile(dir=path.parent) as probe:
        now_ns = os.fstat(probe.fileno()).st_mtime_ns
        still_ns = abs(now_ns - sight.mtime_ns)
        return still_ns > STALE_S * 1e9
    return None


def _remove(path: Path, guarded: Path, sight: _Sight | None, wait_s: float) -> None:
    """Remove the file of a dead holder. Only the holder of a lock that bears its time may: of two
    that wait, the slower would otherwise remove the lock of the faster."""
    right = path.with_name(f"{path.name}.{sight and sight.mtime_ns}")
    _acquire(right, guarded, wait_s)
    try:
        if _look(path) == sight:
            path.unlink(missing_ok=True)
    finally:
        right.unlink(missing_ok=True)


def _beat(path: Path, over: threading.Event, lost: Lost) -> None:
    while not over.wait(BEAT_S):
        if holder := other_holder(path):
            if not over.is_set():
                lost(holder)
            return
        # a server that is away; a file that somebody has removed
        with suppress(OSError):
            os.utime(path)


def other_holder(path: Path) -> str | None:
    """The process on record of a lock file, for people, if that is another than this one."""
    sight = _look(path)
    if sight is None or sight.token == _TOKEN:
        return None
    return sight.holder


def held(paths: Iterable[Path]) -> set[Path]:
    """Those of the lock files that are held, by one look; in folders that take no file, by two
    looks three beats apart. None is tried: that could disturb a process that wants it."""
    seen = {path: _look(path) for path in paths}
    old = {path: _is_old(path, sight) for path, sight in seen.items() if sight}
    unknown = [path for path in old if old[path] is None]
    if unknown:
        time.sleep(3 * BEAT_S)
    for path in unknown:
        old[path] = _look(path) == seen[path]
    return {path for path in old if not old[path]}
