"""Room for last words: bytes kept on the disk of a run, given back when it fails.

On a full disk the end of the log, result.json and the line that says why find a place all the same.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..config.atomic import create_new

_NAME = ".reserve"
_BYTES = 1 << 20
"""result.json, run_stop and the lines of a job's log take some kB, a report about 300."""


def reserve(out: Path) -> None:
    """Take the room, if there is any."""
    with suppress(OSError):
        (out / _NAME).unlink(missing_ok=True)
        with os.fdopen(create_new(out / _NAME), "wb") as file:
            file.write(bytes(_BYTES))


def give_back(out: Path) -> None:
    """Make the room free."""
    with suppress(OSError):
        (out / _NAME).unlink(missing_ok=True)
