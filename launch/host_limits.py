"""What was short here, or set by the user, when a job failed: limits, /dev/shm, variables.

Engines and launchers seldom name the limit that they ran into; the kernel can be asked.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from ..host.errors import UserError
from ..host.inherited import QUESTION, inherited
from ..host.programs import NotStarted, start
from ..host.reading import read_text

NO_MEMORY = re.compile(
    r"Cannot allocate memory|[Cc]annot allocate memory for thread-local data"
    r"|failed to map segment from shared object|bad_alloc|MemoryError|[Oo]ut of memory"
    r"|Failed to allocate CPU Memory|pthread_create[^\n]*Resource temporarily unavailable"
)
"""Signs that a process got no more memory: engines abort, MPI ends, for want of a map or thread."""
NO_COMPONENT = (
    r"No components were able to be opened in the \S+ framework|PML \S+ cannot be selected"
    r"|At least one pair of MPI processes are unable to reach each other"
)
"""Open MPI's words where a setting may ask for what it was built without."""
_NO_PROCESS = "Resource temporarily unavailable|can't start new thread|fork: retry"
_NO_SHARED = r"PMIX ERROR: OUT-OF-RESOURCE|\[Errno 28\]|No space left on device"
_NO_TEXT = "(?!)"  # matches no text
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}


class Cause(NamedTuple):
    """Why a job failed. `signal`: that ended a process. `is_mute`: a process is gone, or none has
    begun, without any message. `details`: printed behind the reason in brackets."""

    reason: str
    signal: int = 0
    is_mute: bool = False
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.details:
            return self.reason
        return f"{self.reason} ({'; '.join(self.details)})"


class _Limit(NamedTuple):
    """What can be short: what to tell of it (None: it is not limited here), and its signs: a
    pattern of what is printed, signals that end a process; with `of_mute` also an end without a
    word."""

    fact: Callable[[Limits], str | None]
    pattern: str = _NO_TEXT
    signals: Collection[int] = ()
    of_mute: bool = False

    def sign(self, cause: Cause, stderr: str) -> str | None:
        """The printed words that show it; empty: the cause itself does; None: nothing does."""
        for printed in (str(cause), stderr):
            if match := re.search(self.pattern, printed):
                return match[0]
        fits = cause.signal in self.signals or (self.of_mute and cause.is_mute)
        return "" if fits else None


class _Ulimit(NamedTuple):
    """A limit of the shell; `unit_bytes`: in which `ulimit` gives it, 1: it counts."""

    resource: int
    sentence: str
    unit_bytes: int = 1


_ULIMITS = {
    "n": _Ulimit(resource.RLIMIT_NOFILE, "open files are limited"),
    "u": _Ulimit(resource.RLIMIT_NPROC, "processes and threads are limited"),
    "v": _Ulimit(resource.RLIMIT_AS, "address space is limited", 1 << 10),
    "f": _Ulimit(resource.RLIMIT_FSIZE, "file size is limited", 1 << 10),
    "t": _Ulimit(resource.RLIMIT_CPU, "CPU time is limited"),
}
LEAST_OPEN_FILES = 64
"""The fewest with which a launcher starts: of two ranks mpirun hangs at 26, ends without its words
at 32 and starts at 40."""
_OWN_FILES = 32
"""Files of `rn50 launch` itself, beside a connection for every rank; it has 12 open."""
_NEARLY_FULL_BYTES = 1 << 20
SMALL_SHARED_BYTES = 16 << 20
"""The least that /dev/shm should have: Open MPI takes 4 MiB a rank and more, so that two ranks run
in 16 MiB and fail in 12."""


class Limits(NamedTuple):
    """The limits of this machine and shell. `ulimits`: those that are set, by the letter of
    `ulimit` and in its unit. `processes`: of a cgroup in which the kernel has refused a process or
    thread. `shared`: /dev/shm. `variables`: of the user, which Open MPI obeys."""

    ulimits: Mapping[str, int]
    processes: int | None
    shared_free_bytes: int
    shared_bytes: int
    variables: str = ""


def read_limits() -> Limits:
    """The limits that processes started from here have."""
    ulimits = {}
    for letter, ulimit in _ULIMITS.items():
        limit, hard = resource.getrlimit(ulimit.resource)
        if letter == "n":
            limit = hard  # to which the watchdog raises it
        if limit != resource.RLIM_INFINITY:
            ulimits[letter] = limit // ulimit.unit_bytes
    if os.geteuid() == 0:
        ulimits.pop("u", None)  # which the kernel does not apply to root
    free_bytes = 0
    total_bytes = 0
    with suppress(OSError):
        shared = os.statvfs("/dev/shm")
        free_bytes = shared.f_bavail * shared.f_frsize
        total_bytes = shared.f_blocks * shared.f_frsize
    variables = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("OMPI_MCA_")
    ]
    return Limits(
        ulimits, _most_processes(), free_bytes, total_bytes, ", ".join(variables)
    )


def _most_processes() -> int | None:
    """The lowest pids.max of this process's cgroups that was reached; None: none was."""
    groups = read_text(Path("/proc/self/cgroup"))
    limits = []
    for folder, line in (
        ("/sys/fs/cgroup", r"^0::/*(.*)$"),
        ("/sys/fs/cgroup/pids", r":pids:/*(.*)$"),
    ):
        path = re.search(line, groups, re.M)
        innermost = Path(folder, path[1] if path else "")
        # In a container it may be the host's path, which is not there.
        for group in (innermost, *innermost.parents):
            limit = read_text(group / "pids.max")
            events = read_text(group / "pids.events")
            if limit.isdigit() and re.search(r"^max [1-9]", events, re.M):
                limits.append(int(limit))
    return min(limits, default=None)


def check_open_files(limits: Limits, ranks: int = 0) -> None:
    """Raises UserError where the launchers would hang or end without being able to say why.
    `ranks`: that connect to this process, the watchdog's."""
    needed = max(LEAST_OPEN_FILES, _OWN_FILES + ranks)
    if limits.ulimits.get("n", needed) < needed:
        raise UserError(
            f"ulimit -n: at least {needed} open files a process expected, found "
            f"{limits.ulimits['n']}: too many open files for a launcher and its ranks"
        )


def raise_open_files() -> None:
    """Allow this process as many open files as its hard limit does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def with_shortages(cause: Cause, stderr: str, limits: Limits) -> Cause:
    """The cause of a failed job, and as details what was short, where something shows it. `stderr`:
    of launcher and ranks: a sign found there alone is quoted."""
    reason = str(cause)
    details = list(cause.details)
    for limit in _LIMITS:
        fact = limit.fact(limits)
        sign = limit.sign(cause, stderr)
        if not fact or fact in reason or sign is None:
            continue
        if sign not in reason:
            fact = f"{sign}; {fact}"
        details.append(fact)
    return cause._replace(details=tuple(details))


def _of_ulimit(letter: str) -> Callable[[Limits], str | None]:
    def fact(limits: Limits) -> str | None:
        """The limit in a sentence; None: it is not set."""
        if letter not in limits.ulimits:
            return None
        sentence = _ULIMITS[letter].sentence
        return f"{sentence}: ulimit -{letter} {limits.ulimits[letter]}"

    return fact


def _of_processes(limits: Limits) -> str | None:
    if limits.processes is None:
        return None
    return f"processes and threads are limited: pids.max {limits.processes}"


def _of_shared_memory(limits: Limits) -> str | None:
    free = limits.shared_free_bytes
    size = limits.shared_bytes
    if size >= SMALL_SHARED_BYTES and free >= _NEARLY_FULL_BYTES:
        return None
    return f"/dev/shm: {free >> 10:,} kB free, {size >> 10:,} kB in all"


def _of_tasks(_: Limits) -> str:
    return "a task a rank in the allocation expected, or --launcher mpirun"


_LIMITS = (
    _Limit(_of_ulimit("n"), "Too many open files"),
    _Limit(
        _of_ulimit("u"), f"{_NO_PROCESS}|terminate called without an active exception"
    ),
    _Limit(_of_processes, _NO_PROCESS, _CRASHES, of_mute=True),
    _Limit(_of_ulimit("v"), NO_MEMORY.pattern, _CRASHES, of_mute=True),
    _Limit(
        _of_ulimit("f"), "File too large", _CRASHES | {signal.SIGXFSZ}, of_mute=True
    ),
    _Limit(_of_ulimit("t"), signals={signal.SIGXCPU, signal.SIGKILL}),
    _Limit(_of_shared_memory, _NO_SHARED, {signal.SIGBUS}),
    _Limit(_of_tasks, "More processors requested than permitted"),
    _Limit(attrgetter("variables"), NO_COMPONENT),
)


@cache
def may_read_others() -> bool:
    """Whether process_vm_readv is allowed here, with which MPI copies between two ranks: tried on a
    child. Many containers refuse it by seccomp, some kernels by ptrace_scope."""
    try:
        child = start(["sleep", "60"], inherited(os.environ, QUESTION))
    except NotStarted:
        return True
    try:
        mapped = Path(f"/proc/{child.pid}/maps").read_text()
        span = ctypes.c_size_t * 2  # struct iovec: address and bytes
        # one byte, from the child's first mapping into `remote` itself
        remote = span(int(mapped.partition("-")[0], 16), 1)
        local = span(ctypes.addressof(remote), 1)
        process_vm_readv = ctypes.CDLL(None).process_vm_readv
        return process_vm_readv(child.pid, local, 1, remote, 1, 0) == 1
    except (OSError, ValueError):  # /proc says nothing: as it has always been
        return True
    finally:
        child.kill()
        child.wait()
