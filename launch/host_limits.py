"""What was short here, or set by the user, when a job failed: limits, /dev/shm, variables.

Engines and launchers seldom name the limit that they ran into; the kernel can be asked.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
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
"""Of Open MPI: a setting may ask for what it was built without."""
_NO_PROCESS = "Resource temporarily unavailable|can't start new thread|fork: retry"
_NO_SHARED = r"PMIX ERROR: OUT-OF-RESOURCE|\[Errno 28\]|No space left on device"
_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS}


class Cause(NamedTuple):
    """Why a job failed. `signal`: that ended a process. `is_mute`: a process is gone, or none has
    begun, without any message."""

    text: str
    signal: int = 0
    is_mute: bool = False


class _Shortage(NamedTuple):
    """Signs that something was short: words that are printed, signals that end a process; with
    `of_mute` also an end without a word."""

    name: str
    words: str = "(?!)"
    signals: Collection[int] = ()
    of_mute: bool = False

    def sign(self, cause: Cause, stderr: str) -> str | None:
        """The words that show it; empty: the cause itself does; None: nothing does."""
        if words := re.search(self.words, cause.text) or re.search(self.words, stderr):
            return words[0]
        shown = cause.signal in self.signals or (self.of_mute and cause.is_mute)
        return "" if shown else None


_SHORTAGES = (
    _Shortage("n", "Too many open files"),
    _Shortage("u", f"{_NO_PROCESS}|terminate called without an active exception"),
    _Shortage("pids", _NO_PROCESS, _CRASHES, of_mute=True),
    _Shortage("v", NO_MEMORY.pattern, _CRASHES, of_mute=True),
    _Shortage("f", "File too large", _CRASHES | {signal.SIGXFSZ}, of_mute=True),
    _Shortage("t", signals={signal.SIGXCPU, signal.SIGKILL}),
    _Shortage("shared", _NO_SHARED, {signal.SIGBUS}),
    _Shortage("tasks", "More processors requested than permitted"),
    _Shortage("variables", NO_COMPONENT),
)
_ULIMITS = {
    "n": (resource.RLIMIT_NOFILE, "open files are"),
    "u": (resource.RLIMIT_NPROC, "processes and threads are"),
    "v": (resource.RLIMIT_AS, "address space is"),
    "f": (resource.RLIMIT_FSIZE, "file size is"),
    "t": (resource.RLIMIT_CPU, "CPU time is"),
}
_IN_KIB = "vf"
LEAST_OPEN_FILES = 64
"""With two ranks mpirun hangs at 26, ends without its words at 32 and starts at 40."""
_OWN_FILES = 32
"""Of `rn50 launch` itself, beside a connection for every rank; it has 12 open."""
_NEARLY_FULL_BYTES = 1 << 20
SMALL_SHARED_BYTES = 16 << 20
"""Of /dev/shm. Open MPI takes 4 MiB a rank and more: two ranks run in 16 MiB and fail in 12."""


class Limits(NamedTuple):
    """Of this machine and shell. `ulimits`: those that are set, by the letter of `ulimit` and in
    its unit. `processes`: of a cgroup in which the kernel has refused a process or thread.
    `shared`: /dev/shm. `variables`: of the user, which Open MPI obeys."""

    ulimits: Mapping[str, int]
    processes: int | None
    shared_free_bytes: int
    shared_bytes: int
    variables: str = ""


def read_limits() -> Limits:
    """The limits that processes started from here have."""
    ulimits = {}
    for letter, (number, _) in _ULIMITS.items():
        # files: the watchdog raises it to that
        limit = resource.getrlimit(number)[letter == "n"]
        if letter in _IN_KIB and limit != resource.RLIM_INFINITY:
            limit >>= 10
        if limit != resource.RLIM_INFINITY:
            ulimits[letter] = limit
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
    least = max(LEAST_OPEN_FILES, _OWN_FILES + ranks)
    if limits.ulimits.get("n", least) < least:
        raise UserError(
            f"ulimit -n: at least {least} open files a process expected, found "
            f"{limits.ulimits['n']}: too many open files for a launcher and its ranks"
        )


def raise_open_files() -> None:
    """As many open files for this process as its hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def with_shortages(cause: Cause, stderr: str, limits: Limits) -> str:
    """Why a job failed, and in brackets what was short, where something shows it. `stderr`: of
    launcher and ranks: a sign found there alone is quoted."""
    reason = cause.text
    free = limits.shared_free_bytes
    size = limits.shared_bytes
    facts = {
        letter: f"{_ULIMITS[letter][1]} limited: ulimit -{letter} {limit}"
        for letter, limit in limits.ulimits.items()
    }
    facts["variables"] = limits.variables
    facts["tasks"] = "a task a rank in the allocation expected, or --launcher mpirun"
    if limits.processes is not None:
        facts["pids"] = (
            f"processes and threads are limited: pids.max {limits.processes}"
        )
    if size < SMALL_SHARED_BYTES or free < _NEARLY_FULL_BYTES:
        facts["shared"] = f"/dev/shm: {free >> 10:,} kB free, {size >> 10:,} kB in all"
    words = []
    for shortage in _SHORTAGES:
        fact = facts.get(shortage.name, "")
        sign = shortage.sign(cause, stderr)
        if not fact or fact in reason or sign is None:
            continue
        if sign not in reason:
            fact = f"{sign}; {fact}"
        words.append(fact)
    if not words:
        return reason
    short = "; ".join(words)
    if reason.endswith(")"):
        return f"{reason[:-1]}; {short})"
    return f"{reason} ({short})"


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
        span = ctypes.c_size_t * 2
        there = span(int(mapped.partition("-")[0], 16), 1)
        here = span(ctypes.addressof(there), 1)
        read = ctypes.CDLL(None).process_vm_readv
        return read(child.pid, here, 1, there, 1, 0) == 1
    except (OSError, ValueError):  # /proc says nothing: as it has always been
        return True
    finally:
        child.kill()
        child.wait()
