"""Other processes; waiting for what they do: patience costs time only where something is wrong."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from rn50.train.process_info import read_process_info

T = TypeVar("T")


def finished(
    command: Sequence[str | Path], **options: Any
) -> subprocess.CompletedProcess[str]:
    """A command that has come to its end, with what it printed."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def output_of(command: Sequence[str | Path], **options: Any) -> str:
    """What a command prints that ends well."""
    done = finished(command, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def wait_until(condition: Callable[[], T | None], within_s: float = 120) -> T:
    """The first true value of `condition`; the test fails where there is none in time."""
    until_s = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > until_s:
            pytest.fail(f"not so within {within_s:g} s", pytrace=True)
        time.sleep(0.05)
    return value


def mentioning(path: Path) -> list[str]:
    """Command lines of the processes that mention `path`."""
    lines = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(path) in line:
            lines.append(line)
    return lines


def leave_nothing(path: Path) -> None:
    """Processes that mention `path` end soon."""
    wait_until(lambda: not mentioning(path), 10)


def rank_process(parent: int, rank: int) -> psutil.Process | None:
    """The process of a rank below the launcher, once it is there."""
    for child in psutil.Process(parent).children(recursive=True):
        try:
            command = child.cmdline()
            environment = child.environ()
        except psutil.Error:
            continue
        info = read_process_info(environment)
        ours = "rn50.train" in command and "python" in Path(command[0]).name
        if ours and info.world_size > 1 and info.rank == rank:
            return child
    return None


def read_terminal(leader: int) -> str:
    """What was written to a pseudo-terminal that nobody has open any more."""
    written = b""
    with suppress(OSError):  # its end
        while more := os.read(leader, 1 << 16):
            written += more
    return written.decode()
