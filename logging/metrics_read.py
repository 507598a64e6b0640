"""metrics.jsonl read as a stream of bounded size."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ..config.reading import JsonObject, open_file
from .line_file import read_end

MOST_BYTES = 64 << 20
"""250,000 records of this harness."""
MOST_RECORDS = 400_000
"""How many lines are read: the shortest records of this harness would fill the file with fewer."""
MOST_NAMES = 1000
"""How many names all records have: this harness has some 60. Each is kept once."""
_LINE_BYTES = 1 << 16
_TAIL_BYTES = 1 << 20
"""Some 7,000 records: more than lie between two evaluations."""
_MOST_TORN = 8
"""Lines looked at for a whole record; the last one alone may be torn."""


def read_metrics(path: Path, within: Path | None = None) -> tuple[JsonObject, ...]:
    """The records of a metrics.jsonl in its order: their kinds and numbers. A torn line, such as a
    killed run leaves, is skipped. Raises OSError: no regular file of that size `within` the folder;
    ValueError: it has more lines or names than any run writes."""
    records = []
    names: set[str] = set()
    with open_file(
        path,
        MOST_BYTES,
        within=within,
    ) as file:
        lines = iter(partial(file.readline, _LINE_BYTES), b"")
        for number, line in enumerate(lines):
            record = _record(line)
            if record is not None:
                records.append(record)
                names |= record.keys()
            if number >= MOST_RECORDS or len(names) > MOST_NAMES:
                expected = f"{MOST_RECORDS:,} records with {MOST_NAMES:,} names"
                raise ValueError(f"at most {expected} expected")
    return tuple(records)


def newest_records(path: Path, *series: str) -> dict[str, JsonObject]:
    """The last whole record of each kind near the end of a metrics.jsonl, which may be being
    written; a kind is missing where there is none, and all of them where no file can be read."""
    try:
        tail = read_end(path, _TAIL_BYTES)
    except OSError:
        return {}
    newest = {}
    for name in series:
        record = _newest(tail, b'{"kind": "%b"' % name.encode())
        if record is not None:
            newest[name] = record
    return newest


def _newest(tail: bytes, start: bytes) -> JsonObject | None:
    at = len(tail)
    for _ in range(_MOST_TORN):
        if (
            at := tail.rfind(
                start,
                0,
                at,
            )
        ) < 0:
            break
        line, end, _ = tail[at : at + _LINE_BYTES].partition(b"\n")
        if end and (record := _record(line)) is not None:
            return record
    return None


def _record(line: bytes) -> JsonObject | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    return {sys.intern(k): value for k, value in content.items() if _is_plain(k, value)}


def _is_plain(key: str, value: Any) -> bool:
    """A number, or the name of its kind."""
    if isinstance(value, str):
        return key == "kind"
    if isinstance(value, int):
        return value.bit_length() <= 64
    return value is None or isinstance(value, float)
