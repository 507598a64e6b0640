"""A lock file that one process holds at a time, also over users, containers and machines.

The rule: a lock is held as long as the time of its file moves. Its holder renews it every BEAT_S by
the clock of the file system; one that has stood still for STALE_S is anybody's. Holders are told
apart by a random token: a process number, a host's name and a host's clock may be those of another,
and NFS with `local_lock` and Lustre without `flock` grant an advisory lock to several machines.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shlex
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from ..config.atomic import sync
from ..config.errors import UserError
from ..config.finding import printable
from ..config.reading import open_file

LOCK, RANK_LOCK = ".lock", ".rank_0.lock"
"""The locks of a run's folder: that of its launcher, that of the rank which writes the log."""
BEAT_S = 1.0
STALE_S = 30.0
_POLL_S = 0.2
_SAY_S = 60.0
_MOST_BYTES = 4096
_ours: list[str] = []
"""The tokens of this process."""


class Holder(NamedTuple):
    """What a lock file says of its holder: `token` tells it from others, the rest tells people."""

    token: str
    host: str
    pid: int
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (`{self.command}`, since {self.since})"

    @property
    def is_ours(self) -> bool:
        """Whether this process holds, or held, the lock."""
        return self.token in _ours


Lost = Callable[[Holder], None]


class FolderInUse(UserError):
    """Another process holds the lock of this folder: nothing of it may be touched."""

    def __init__(self, folder: Path, holder: Holder | None) -> None:
        who = holder or "another process"
        super().__init__(f"{folder}: in use by {who}: wait for its end, or stop it first")


class _Sight(NamedTuple):
    """What one look at a lock file shows."""

    content: bytes
    mtime_ns: int

    @property
    def holder(self) -> Holder | None:
        try:
            return Holder(**json.loads(self.content))
        except (ValueError, TypeError, RecursionError):
            return None


@contextmanager
def hold(path: Path, of: Path, *, wait_s: float = 0.0, lost: Lost | None = None) -> Iterator[None]:
    """Hold the lock file `path` within the block; it is removed behind it.

    Args:
        path: the lock file, in a folder that exists.
        of: the folder that it guards, for messages.
        wait_s: how long to wait for a holder that is alive.
        lost: called from a thread if another process has taken the lock over: this one was held up
            for so long that it counted as dead.

    Raises:
        FolderInUse: another process holds it.
        UserError: the file cannot be made, or that of a dead holder not be removed.
    """
    token = secrets.token_hex(8)
    _ours.append(token)
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, token, over, lost), daemon=True)
    try:
        try:
            _acquire(path, of, token, wait_s)
        except OSError as error:
            holder = read_holder(path)
            left = f" (left by {holder})" if holder else ""
            raise UserError(f"{path}: cannot lock: {error.strerror}{left}") from None
        beat.start()
        yield
    finally:
        over.set()
        with suppress(OSError):
            holder = read_holder(path)
            if holder is not None and holder.token == token:
                path.unlink()


def _acquire(path: Path, of: Path, token: str, wait_s: float) -> None:
    begun_s = moved_s = time.monotonic()
    say_s = begun_s + 4 * BEAT_S
    seen: _Sight | None = None
    while not _create(path, token):
        now_s = time.monotonic()
        sight = _look(path)
        still_s = now_s - moved_s
        if sight != seen:
            if sight is not None and seen is not None and now_s > begun_s + wait_s:
                raise FolderInUse(of, sight.holder)
            seen = sight
            moved_s = now_s
        # Three beats all the same: Lustre and Ceph take times from the clocks of their clients.
        elif still_s > STALE_S or (still_s > 3 * BEAT_S and _is_old(path, sight)):
            _remove(path, of, sight, token, wait_s)
        if now_s > say_s:
            say_s = now_s + _SAY_S
            who = (seen and seen.holder) or "another process"
            until = f"until it ends, or {path} stands still for {STALE_S:g} s"
            print(printable(f"{of}: waiting for {who}, {until}"), file=sys.stderr, flush=True)
        time.sleep(_POLL_S)


def _create(path: Path, token: str) -> bool:
    """Whether the file was made, and is on the disk; otherwise there is one."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    ours = Holder(
        token=token,
        host=platform.node(),
        pid=os.getpid(),
        command=shlex.join(words)[:200],
        since=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    )
    try:
        file = path.open("xb")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(json.dumps(ours._asdict()).encode())
        sync(path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def _look(path: Path) -> _Sight | None:
    """The file is opened each time: NFS asks its server only then."""
    try:
        with open_file(path, _MOST_BYTES, within=path.parent) as file:
            return _Sight(file.read(), os.fstat(file.fileno()).st_mtime_ns)
    except FileNotFoundError:
        return None


def _is_old(path: Path, sight: _Sight | None) -> bool | None:
    """Whether a lock has stood still for STALE_S by the clock of its file system: that of a new
    file beside it. None: the folder takes no file."""
    try:
        with TemporaryFile(dir=path.parent) as probe:
            now_ns = os.fstat(probe.fileno()).st_mtime_ns
    except OSError:
        return None
    return sight is not None and abs(now_ns - sight.mtime_ns) > STALE_S * 1e9


def _remove(path: Path, of: Path, sight: _Sight | None, token: str, wait_s: float) -> None:
    """Remove the file of a dead holder. Only the holder of a lock that bears its name may: of two
    that wait, the slower would otherwise remove the lock of the faster."""
    name = zlib.crc32(sight.content if sight else b"")
    right = path.with_name(f"{path.name}.{name:08x}")
    _acquire(right, of, token, wait_s)
    try:
        if _look(path) == sight:
            path.unlink()
    finally:
        right.unlink(missing_ok=True)


def _beat(path: Path, token: str, over: threading.Event, lost: Lost | None) -> None:
    while not over.wait(BEAT_S):
        # Such as a server that is away; a file that somebody has removed is not made anew.
        with suppress(OSError), open_file(path, _MOST_BYTES, within=path.parent) as file:
            holder = _Sight(file.read(), 0).holder
            if holder is None or holder.token == token:
                os.utime(file.fileno())
            elif over.is_set():
                return
            else:
                if lost is not None:
                    lost(holder)
                return


def read_holder(path: Path) -> Holder | None:
    """The holder on record of the lock file `path`; None: there is none."""
    with suppress(OSError):
        sight = _look(path)
        return sight and sight.holder
    return None


def is_held(path: Path) -> bool:
    """Whether a lock file is held, as `held` finds."""
    return bool(held([path]))


def held(paths: Iterable[Path]) -> set[Path]:
    """Those of the lock files that are held, by one look; in folders that take no file, by two
    looks three beats apart. None is tried: that could disturb a process that wants it."""
    found: set[Path] = set()
    unclear: dict[Path, _Sight] = {}
    for path in paths:
        with suppress(OSError):
            if (sight := _look(path)) is not None:
                is_old = _is_old(path, sight)
                if is_old is None:
                    unclear[path] = sight
                elif not is_old:
                    found.add(path)
    if unclear:
        time.sleep(3 * BEAT_S)
    for path, sight in unclear.items():
        with suppress(OSError):
            if _look(path) not in (None, sight):
                found.add(path)
    return found
