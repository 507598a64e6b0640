"""What a process does: its state, the CPU time that it works, its reads of disks.

A rank that waits for others does so in threads that poll, with a whole core: their CPU time is no
work. They are recognised by their name, which a thread hands on to those that it starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ..host.reading import read_text

_TALKS = "rn50-talks"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LEAST_WORK_S = 0.05
_LEAST_SHARE = 0.01  # of a core
_LEAST_PAGES_PER_S = 0.1
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "blocked (a disk, swapping)",
    "T": "stopped",
}


class Activity(NamedTuple):
    """What a process has done up to now."""

    state: str
    work_s: float
    read_bytes: int

    def works_since(self, earlier: Activity, within_s: float) -> bool:
        """Whether it has computed, waits for a core, or has read from a disk or the swap."""
        least_s = max(_LEAST_WORK_S, _LEAST_SHARE * within_s)
        least_bytes = _PAGE_BYTES * max(1.0, _LEAST_PAGES_PER_S * within_s)
        return (
            self.state == earlier.state == "R"
            or self.work_s >= earlier.work_s + least_s
            or self.read_bytes >= earlier.read_bytes + least_bytes
        )

    def since(self, earlier: Activity) -> str:
        """What it has done since then, as a part of a sentence."""
        worked_s = self.work_s - earlier.work_s
        state = _STATES.get(self.state, self.state)
        return f"its process is {state} and has used {worked_s:.1f} s of CPU time since"


def activity_of(pid: int) -> Activity | None:
    """The activity of a process; None: there is no such process."""
    process = Path("/proc", str(pid))
    _, fields = _stat(process)
    if not fields:
        return None
    ticks = _cpu_ticks(fields)
    for thread in process.glob("task/*"):
        name, of_thread = _stat(thread)
        if name == _TALKS:
            ticks -= _cpu_ticks(of_thread)
    # major faults (majflt of proc(5)), by which mapped files and the swap are read
    read_bytes = int(fields[9]) * _PAGE_BYTES
    read_bytes += storage_read_bytes(process) or 0
    return Activity(fields[0], ticks / _TICKS_PER_S, read_bytes)


def storage_read_bytes(process: Path = Path("/proc/self")) -> int | None:
    """What the kernel has read from storage for a process; None: it does not say."""
    match = re.search(r"^read_bytes: (\d+)", read_text(process / "io"), re.M)
    return int(match[1]) if match else None


@contextmanager
def talks_to_ranks() -> Iterator[None]:
    """Threads that the block starts wait for other ranks. `comm` is handed on by the kernel."""
    comm = Path("/proc/thread-self/comm")
    name = read_text(comm)
    with suppress(OSError):
        comm.write_text(_TALKS)
    try:
        yield
    finally:
        with suppress(OSError):
            comm.write_text(name)


def _stat(task: Path) -> tuple[str, list[str]]:
    """The name of a process or thread, and what follows it in its line of /proc."""
    # `pid (name) state ...`, in which the name may have brackets and blanks
    name, _, rest = read_text(task / "stat").partition("(")[2].rpartition(") ")
    return name, rest.split()


def _cpu_ticks(fields: list[str]) -> int:
    return sum(map(int, fields[11:13]))  # utime and stime
