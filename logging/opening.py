"""A log, opened: a regular file, or a pipe that is open when the command starts."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ..config.reading import named_descriptor, open_file

MOST_BYTES = 1 << 30
"""No log is larger: the largest published one has 3.4 MB. It is read in 10 s."""


def open_log(path: Path) -> BinaryIO:
    """Open a log for one pass over it. A FIFO by its name is refused, as its other end may never
    come; one that is open already, such as `rn50 log check <(zcat result_0.txt.gz)` has it, is
    read. Raises OSError: it cannot be opened, or is neither of the two."""
    descriptor = open_pipe(path)
    if descriptor is not None:
        return os.fdopen(os.dup(descriptor), "rb")
    return open_file(path, MOST_BYTES)


def open_pipe(path: Path) -> int | None:
    """The open descriptor that a path means, where it is a pipe: it can be read once."""
    descriptor = named_descriptor(path)
    if descriptor is None:
        return None
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return None
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
