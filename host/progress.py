"""What long work is given to say how far it is, and lines of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from .finding import printable


class Advance(Protocol):
    """`done` of `total` pieces, and in words what it is at."""

    def __call__(self, done: int, total: int, detail: str = "") -> None: ...


Progress = Callable[[int, int], None]
"""The callback of a task: (done, total)."""
Tracker = Callable[[str], Progress]
"""From the name of a task to the callback of its progress."""


def silent(done: int, total: int) -> None:
    """Show no progress."""


def say(line: str) -> None:
    """Print one line; a name in it can neither begin another nor steer the terminal."""
    print(printable(line), flush=True)


def say_aside(line: str) -> None:
    """The same to the standard error."""
    print(printable(line), file=sys.stderr, flush=True)


def untracked(_: str) -> Progress:
    """A Tracker that shows no progress."""
    return silent
