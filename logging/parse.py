"""MLPerf log lines to events: `:::MLLOG {json}`, wherever on a line the token stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError

_TOKEN = ":::MLLOG "
_LATEST_MS = 10**15
_MAX_DIGITS = 18


class Event(NamedTuple):
    """One record; `line` is 1-based, `time_ms` Unix milliseconds."""

    line: int
    time_ms: float
    key: str
    value: Any
    metadata: dict[str, Any]


def read_events(path: Path) -> list[Event]:
    """All events of a log in file order. Raises UserError: unreadable, or none in it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None
    events = list(_parse(text))
    if not events:
        raise UserError(f"{path}: an MLPerf log (:::MLLOG lines) expected, found none")
    return events


def _parse(text: str) -> Iterator[Event]:
    for number, line in enumerate(text.split("\n"), start=1):
        start = line.find(_TOKEN)
        if start == -1:
            continue
        try:
            record = json.loads(line[start + len(_TOKEN) :], parse_int=_integer)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and _is_time(record.get("time_ms")):
            details = record.get("metadata")
            yield Event(
                number,
                record["time_ms"],
                str(record.get("key")),
                record.get("value"),
                details if isinstance(details, dict) else {},
            )


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < _LATEST_MS


def _integer(digits: str) -> int | float:
    """An integer, or a float where arithmetic with it could overflow."""
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)
