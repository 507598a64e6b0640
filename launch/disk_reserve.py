"""Room for last words: bytes kept on the disk of a run, given back when it fails.

On a full disk the end of the log, result.json and the line that says why find a place all the same.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_NAME = ".reserve"
_BYTES = 1 << 20
"""result.json, run_stop and the lines of a job's log take some kB, a report about 300."""


def reserve(out: Path) -> None:
    """Take the room, if there is any."""
    with suppress(OSError):
        (out / _NAME).unlink(missing_ok=True)
        (out / _NAME).write_bytes(bytes(_BYTES))


def give_back(out: Path) -> None:
    """Make the room free. A line that the full disk has cut short in a log to which this process
    writes ends here, so that the reason of the failure stands on a line of its own."""
    with suppress(OSError):
        (out / _NAME).unlink(missing_ok=True)
    for descriptor in (1, 2):
        with suppress(OSError):
            size_bytes = os.fstat(descriptor).st_size  # of a terminal or a pipe: 0
            if size_bytes and _last_byte(Path(f"/proc/self/fd/{descriptor}"), size_bytes) != b"\n":
                os.write(descriptor, b"\n")


def _last_byte(path: Path, size_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(size_bytes - 1)
        return file.read(1)
