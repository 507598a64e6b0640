"""What long work is given to say how far it is, and lines of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TextIO

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


def say(line: str, *, to: TextIO | None = None) -> None:
    """Print one line; a name in it can neither begin another nor steer the terminal."""
    print(printable(line), file=to, flush=True)


def untracked(_: str) -> Progress:
    """A Tracker that shows no progress."""
    return silent
