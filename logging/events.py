"""What a log is made of once it is read: events, what is wrong with its records, its counts."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..host.errors import UserError

MLLOG = "MLLOG"
MLL = "MLL"
"""The two dialects: v0.7 to v4.0, and v0.6."""
RUN_KEYS = frozenset(
    {
        "block_start",
        "block_stop",
        "epoch_start",
        "epoch_stop",
        "eval_accuracy",
        "eval_start",
        "eval_stop",
        "init_start",
        "init_stop",
        "run_start",
        "run_stop",
    }
)
"""Events of a run: a file that has them has a run."""
PLAIN_KEY = re.compile(r"[A-Za-z0-9_]+")
_KEY_CHARACTERS = 100


class Event(NamedTuple):
    """One record; `line` is 1-based, `time_ms` Unix milliseconds."""

    line: int
    time_ms: float
    key: str
    value: Any
    metadata: dict[str, Any]
    order: int = 0
    """Its place among all records: two of one line have one line number."""

    @property
    def place(self) -> str:
        """Key and line, as messages name a record."""
        return f"{self.key} (line {self.line})"


class Problem(NamedTuple):
    """A record that is not whole. `lost`: nothing of it is among the events."""

    line: int
    fault: str
    """truncated, torn, twice (a name), binary (no text), trailing, missing, shape (no JSON object),
    type, long, token (not one blank after it) or form (of a :::MLL record)."""
    key: str | None
    message: str
    lost: bool


class CannotRead(UserError):
    """Not a log that can be checked; `reason` says what it is instead, `records` whether it has
    some that cannot be read."""

    def __init__(self, path: Path, reason: str, *, records: bool = False) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason
        self.records = records


@dataclass
class Log:
    """A log as read: its records of the keys that were asked for."""

    path: Path
    dialect: str = MLLOG
    """MLLOG or MLL: the one that has more of these keys."""
    events: list[Event] = field(default_factory=list)
    by_key: dict[str, list[Event]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    """The first of them."""
    problem_count: int = 0
    lost_keys: set[str] = field(default_factory=set)
    """Keys of records that are torn beyond reading."""
    truncated: bool = False
    """Whether the file ends inside a record."""
    other_dialect: Event | None = None
    """The first record in the other dialect; of those, one of `RUN_KEYS` before any other."""
    odd_keys: dict[str, Event] = field(default_factory=dict)
    """The first record of each key that has another character than those of `PLAIN_KEY`."""
    joined: tuple[int, int] = (0, 0)
    """Lines that hold more than one whole record: how many, and the number of the first."""
    lines: int = 0
    longest_bytes: int = 0
    """The length of the longest line that has a record."""

    def first(self, key: str) -> Event | None:
        """The first record of a key."""
        return next(iter(self.all(key)), None)

    def all(self, key: str) -> list[Event]:
        """All records of a key, in file order."""
        return self.by_key.get(key, [])


def cut(key: str) -> str:
    """A key as messages and reports have it: it may be as long as a line."""
    return key if len(key) <= _KEY_CHARACTERS else f"{key[:_KEY_CHARACTERS]}..."


def type_name(value: Any) -> str:
    """The type of a JSON value, as JSON calls it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "text"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else "a number"
