"""What was short here when a job failed: limits of the shell, /dev/shm; what a silent process does.

Engines and launchers seldom name the limit that they ran into; the kernel can be asked.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
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
_NEAR = 0.9
_STATES = {
    "T": "its process is stopped",
    "t": "its process is stopped",
    "D": "its process is blocked in the kernel: a disk or file server that does not answer",
}


class Limits(NamedTuple):
    """Of this machine and shell; None: none."""

    address_space_bytes: int | None
    open_files: int | None
    shared_free_bytes: int
    """Of /dev/shm."""
    shared_bytes: int


def read_limits() -> Limits:
    """The limits that processes started from here have."""
    space, files = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in (
            resource.getrlimit(resource.RLIMIT_AS)[0],
            resource.getrlimit(resource.RLIMIT_NOFILE)[1],  # to which the watchdog raises it
        )
    )
    try:
        shared = os.statvfs("/dev/shm")
    except OSError:
        return Limits(space, files, 0, 0)
    return Limits(
        space, files, shared.f_bavail * shared.f_frsize, shared.f_blocks * shared.f_frsize
    )


def check_open_files(limits: Limits, ranks: int = 0) -> None:
    """Raises UserError where the launchers would hang or end without being able to say why.
    `ranks`: that connect to this process, the watchdog's."""
    least = max(LEAST_OPEN_FILES, _OWN_FILES + ranks)
    if limits.open_files is not None and limits.open_files < least:
        raise UserError(
            f"ulimit -n: at least {least} open files a process expected, found "
            f"{limits.open_files}: too many open files for a launcher and its ranks"
            + (f" ({ranks} connections to the watchdog)" if least > LEAST_OPEN_FILES else "")
        )


def raise_open_files() -> None:
    """As many open files for this process as its hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def shortages(reason: str, stderr: str, limits: Limits) -> str:
    """What was short when a job failed because of `reason`; empty where nothing shows it. `reason`:
    why the job failed, as far as is known. `stderr`: of launcher and ranks: a sign found there
    alone is quoted."""
    words = []
    if found := _NO_FILES.search(reason) or _NO_FILES.search(stderr):
        words.append(
            _quoted(found, reason, f"open files are limited: ulimit -n {limits.open_files}")
        )
    memory = NO_MEMORY.search(reason) or NO_MEMORY.search(stderr)
    if limits.address_space_bytes is not None and "ulimit -v" not in reason:
        hit = memory or re.search(r"SIGABRT|SIGSEGV|SIGBUS|its process|before any rank", reason)
        kb = limits.address_space_bytes >> 10
        if hit:
            words.append(_quoted(memory, reason, f"address space is limited: ulimit -v {kb}"))
    shared = _NO_SHARED.search(reason) or _NO_SHARED.search(stderr)
    small = limits.shared_bytes < _SMALL_BYTES or limits.shared_free_bytes < _NEARLY_FULL_BYTES
    if shared and (small or shared[0].startswith("PMIX")):
        free, size = (f"{n >> 10:,}" for n in (limits.shared_free_bytes, limits.shared_bytes))
        words.append(_quoted(shared, reason, f"/dev/shm: {free} kB free, {size} kB in all"))
    return "; ".join(words)


def _quoted(found: re.Match[str] | None, reason: str, fact: str) -> str:
    return fact if found is None or found[0] in reason else f"{found[0]}; {fact}"


def describe_silent(pid: int, token: str) -> str | None:
    """What the kernel says of a process of this machine that is silent; None: it is not here.
    `token`: part of its environment: a number alone may be another's."""
    folder = Path(f"/proc/{pid}")
    try:
        if token.encode() not in (folder / "environ").read_bytes():
            return None
        status = (folder / "status").read_text()
        limits = (folder / "limits").read_text()
    except OSError:
        return None
    state = re.search(r"^State:\s+(\w)", status, re.M)
    about = _STATES.get(state[1] if state else "", "its process is there and does not answer")
    size = re.search(r"^VmSize:\s+(\d+) kB", status, re.M)
    limit = re.search(r"^Max address space\s+(\d+)\s", limits, re.M)
    if size and limit and int(size[1]) << 10 > _NEAR * int(limit[1]):
        about += f" (it has taken all its address space: ulimit -v {int(limit[1]) >> 10})"
    return about
