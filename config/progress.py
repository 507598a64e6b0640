"""What long work is given to say how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Advance(Protocol):
    """`done` of `total` pieces, and in words what it is at."""

    def __call__(self, done: int, total: int, detail: str = "") -> None: ...


Tracker = Callable[[str], Callable[[int, int], None]]
"""From the name of a task to the callback (done, total) of its progress."""
