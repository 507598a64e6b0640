"""What was short here when a job failed: limits of the shell, /dev/shm.

Engines and launchers seldom name the limit that they ran into; the kernel can be asked.
"""

from __future__ import annotations

import os
import re
import resource
from contextlib import suppress
from typing import NamedTuple

from ..config.errors import UserError

NO_MEMORY = re.compile(
    r"Cannot allocate memory|[Cc]annot allocate memory for thread-local data"
    r"|failed to map segment from shared object|bad_alloc|MemoryError|[Oo]ut of memory"
    r"|Failed to allocate CPU Memory|pthread_create[^\n]*Resource temporarily unavailable"
)
"""Signs that a process got no more memory: engines abort, MPI ends, for want of a map or thread."""
_NO_FILES = re.compile(r"Too many open files")
_NO_SHARED = re.compile(r"PMIX ERROR: OUT-OF-RESOURCE|\[Errno 28\]|No space left on device|SIGBUS")
LEAST_OPEN_FILES = 64
"""With two ranks mpirun hangs at 26, ends without its words at 32 and starts at 40."""
_OWN_FILES = 32
"""Of `rn50 launch` itself, beside a connection for every rank; it has 12 open."""
_NEARLY_FULL_BYTES = 1 << 20
_SMALL_BYTES = 16 << 20
"""Open MPI takes 4 MiB a rank and more of /dev/shm; a smaller mount was made too small."""


class Limits(NamedTuple):
    """Of this machine and shell; None: none. `shared`: /dev/shm."""

    address_space_bytes: int | None
    open_files: int | None
    shared_free_bytes: int
    shared_bytes: int


def read_limits() -> Limits:
    """The limits that processes started from here have."""
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # to which the watchdog raises it
    free_bytes = total_bytes = 0
    with suppress(OSError):
        shared = os.statvfs("/dev/shm")
        free_bytes, total_bytes = (n * shared.f_frsize for n in (shared.f_bavail, shared.f_blocks))
    none = resource.RLIM_INFINITY
    return Limits(
        address_space_bytes=None if space == none else space,
        open_files=None if files == none else files,
        shared_free_bytes=free_bytes,
        shared_bytes=total_bytes,
    )


def check_open_files(limits: Limits, ranks: int = 0) -> None:
    """Raises UserError where the launchers would hang or end without being able to say why.
    `ranks`: that connect to this process, the watchdog's."""
    least = max(LEAST_OPEN_FILES, _OWN_FILES + ranks)
    if limits.open_files is not None and limits.open_files < least:
        raise UserError(
            f"ulimit -n: at least {least} open files a process expected, found "
            f"{limits.open_files}: too many open files for a launcher and its ranks"
        )


def raise_open_files() -> None:
    """As many open files for this process as its hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def shortages(reason: str, stderr: str, limits: Limits) -> str:
    """What was short when a job failed because of `reason`; empty where nothing shows it. `stderr`:
    of launcher and ranks: a sign found there alone is quoted."""
    space, free, size = limits.address_space_bytes, limits.shared_free_bytes, limits.shared_bytes
    shared_small = size < _SMALL_BYTES or free < _NEARLY_FULL_BYTES
    ended = r"SIGABRT|SIGSEGV|SIGBUS|its process|before any rank"
    words = []
    for sign, is_short, fact in (
        (_NO_FILES, True, f"open files are limited: ulimit -n {limits.open_files}"),
        (NO_MEMORY, space is not None, f"address space is limited: ulimit -v {(space or 0) >> 10}"),
        (_NO_SHARED, shared_small, f"/dev/shm: {free >> 10:,} kB free, {size >> 10:,} kB in all"),
    ):
        found = sign.search(reason) or sign.search(stderr)
        unexplained = sign is NO_MEMORY and re.search(ended, reason)
        if is_short and (found or unexplained) and fact not in reason:
            words.append(f"{found[0]}; {fact}" if found and found[0] not in reason else fact)
    return "; ".join(words)
