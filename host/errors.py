"""The one exception that means "the user can fix this": shown as one line, never as a traceback."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .finding import printable

COMMAND_LINE = "command line"
_SHOWN_CHARACTERS = 80


class Problem(NamedTuple):
    """A problem of a value in a config. `origin`: a file and line, or COMMAND_LINE."""

    origin: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.sentence}"


class UserError(Exception):
    """Bad input or a bad environment. Each argument, a text or a Problem, is a line of the message,
    which says where, what was expected, what was found, and has no control characters."""

    def __str__(self) -> str:
        return "\n".join(printable(str(line)) for line in self.args)


class RankFailed(UserError):
    """A rank failed, or the launcher did. `reason`: without `log`, where the details are."""

    def __init__(self, reason: str, log: Path) -> None:
        super().__init__(f"{reason}; details: {log}")
        self.reason = reason
        self.log = log


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn an OSError of the block into a UserError: `what` failed, and the system's reason. A
    BrokenPipeError passes: the reader of the standard output has gone (`| head`)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"{what}: {reason_of(error)}") from None


def reason_of(error: OSError) -> str:
    """The system's reason. No space may mean no inode: a quota on files, many small ones."""
    if error.errno == errno.ENOSPC and error.filename:
        with suppress(OSError):
            disk = os.statvfs(Path(error.filename).parent)
            # a system without a table of them has 0 of 0
            if disk.f_files and not disk.f_favail:
                return "no free inodes"
    return str(error.strerror)


def show(value: object) -> str:
    """A value in a message: on one line, and short. Of a long one the middle is left out: a path's
    last part says most."""
    printed = repr(value)
    if value is None or isinstance(value, bool):
        printed = json.dumps(value)
    if len(printed) <= _SHOWN_CHARACTERS:
        return printed
    # without the three dots between
    half = (_SHOWN_CHARACTERS - 3) // 2
    return f"{printed[:half]}...{printed[-half:]}"
