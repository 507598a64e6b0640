"""Room on the disk of a run, so that on a full one its end finds a place all the same: the end of
the log, result.json, ranks.json, timeline.json, report.html and the line that says why."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

_RESERVE = ".reserve"
_FILES = 4
"""New ones at the end: a disk may have bytes and no inodes."""
_FILE_BYTES = 256 << 10
"""A report takes about 300 kB, the others some kB each."""


def reserve(out: Path) -> None:
    """Keep room, if there is any."""
    give_back(out)
    with suppress(OSError):
        (out / _RESERVE).mkdir()
        for number in range(_FILES):
            (out / _RESERVE / str(number)).write_bytes(bytes(_FILE_BYTES))


def give_back(out: Path) -> None:
    """Make the room free."""
    shutil.rmtree(out / _RESERVE, ignore_errors=True)
