"""What a log is made of once it is read: events, what is wrong with its records, its counts."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError

MLLOG, MLL = "MLLOG", "MLL"
"""The two dialects: v0.7 to v4.0, and v0.6."""
_KEY_CHARACTERS = 100


class Event(NamedTuple):
    """One record; `line` is 1-based, `time_ms` Unix milliseconds."""

    line: int
    time_ms: float
    key: str
    value: Any
    metadata: dict[str, Any]
    event_type: str = ""
    namespace: str = ""
    order: int = 0
    """Its place among all records: two of one line have one line number."""

    @property
    def place(self) -> str:
        """Key and line, as messages name a record."""
        return f"{self.key} (line {self.line})"


class Problem(NamedTuple):
    """A record that is not whole. `lost`: nothing of it is among the events."""

    line: int
    kind: str
    """truncated, torn, trailing, missing, shape (no JSON object), type, long, token (not one blank
    after it), form (of a :::MLL record), repeated (two values under one name)."""
    key: str | None
    message: str
    lost: bool


class OddStamps(NamedTuple):
    """Records whose stamp is no moment of these decades, or is a text: one sort of them."""

    kind: str
    """negative, early (all before 2018), late (after 2100: microseconds, nanoseconds), text."""
    checked: bool
    """Of keys that rules read?"""
    records: int
    line: int
    key: str
    stamp: str
    """The first one's place, key and stamp."""


class OddBytes(NamedTuple):
    """Bytes that no text has: how many, how many of them zero, and the line of the first."""

    bytes: int
    zeros: int
    line: int


class Overflow(NamedTuple):
    """Records that said something new and found no room: the first one, and how many."""

    key: str
    line: int
    records: int


class LookAlike(NamedTuple):
    """A record whose key looks like one that a rule reads, `meant`, and is another."""

    line: int
    key: str
    meant: str


class JoinedLines(NamedTuple):
    """Lines that hold more than one whole record: how many, and the number of the first."""

    lines: int
    first: int


class StepBack(NamedTuple):
    """A record stamped earlier than the one before it; `by_ms`: than the latest before it."""

    line: int
    key: str
    by_ms: float


class CannotRead(UserError):
    """Not a log that can be checked; `reason` says what it is instead, `records` whether it has
    some that cannot be read."""

    def __init__(self, path: Path, reason: str, *, records: bool = False) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason
        self.records = records


class Log(NamedTuple):
    """A log as read. Metadata and values are shared: do not change them.

    `counts` has all records by key; `events` has them too, save what `unkept` counts: copies beyond
    the first hundreds (of those that say the same the last, the earliest and the latest are kept),
    and keys outside `keys` of `read_log`.
    """

    path: Path
    dialect: str
    """MLLOG or MLL: the one that has more of the keys that rules read."""
    events: list[Event]
    problems: list[Problem]
    problem_count: int
    notes: list[Problem]
    """What is odd about records, and loses none."""
    lost_keys: frozenset[str]
    """Keys of records that are torn beyond reading."""
    truncated: bool
    """Does the file end inside a record?"""
    other_dialect: Event | None
    """The first record in the other dialect."""
    other_run: Event | None
    """The first event of a run in the other dialect."""
    overflow: Overflow | None
    odd_stamps: list[OddStamps]
    odd_bytes: OddBytes
    look_alikes: list[LookAlike]
    """The first of them."""
    joined: JoinedLines
    counts: Mapping[str, int]
    unkept: Mapping[str, int]
    steps_back: list[StepBack]
    step_back_count: int
    lines: int
    bytes: int
    longest_bytes: int
    """Of a record with what follows it on its line."""
    by_key: Mapping[str, list[Event]]
    """The kept records by key."""
    ruleset: str | None
    """As found from the log: 0.6.0 by its dialect, else by the date of its records."""

    def first(self, key: str) -> Event | None:
        """The first record of a key."""
        events = self.by_key.get(key)
        return events[0] if events else None

    def all(self, key: str) -> list[Event]:
        """All kept records of a key, in file order."""
        return self.by_key.get(key, [])

    def value(self, key: str) -> Any:
        """The value of the first record of a key; None where there is none."""
        event = self.first(key)
        return None if event is None else event.value


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
