"""metrics.jsonl read as a stream of bounded size."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ..host.errors import failing_as
from ..host.reading import JsonObject, open_file
from .line_file import read_end

MOST_BYTES = 64 << 20
"""250,000 records of this harness."""
MOST_RECORDS = 400_000
"""How many lines are read: the shortest records of this harness would fill the file with fewer."""
MOST_NAMES = 1000
"""How many names all records have: this harness has some 60. Each is kept once."""
_LINE_BYTES = 1 << 16
_KINDS = ("train", "eval")
_TAIL_BYTES = 1 << 20
"""Some 7,000 records: more than lie between two evaluations."""


def read_metrics(path: Path, within: Path | None = None) -> tuple[JsonObject, ...]:
    """The records of a metrics.jsonl in its order: their kinds and numbers. A torn line, such as a
    killed run leaves, is skipped. Raises OSError: no regular file of that size `within` the folder;
    ValueError: it has more lines or names than any run writes."""
    records = []
    names: set[str] = set()
    with open_file(path, MOST_BYTES, within=within) as file:
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


def newest_records(path: Path) -> dict[str, JsonObject]:
    """The last whole record of training and of evaluation, by their kinds, near the end of a
    metrics.jsonl, which may be being written; one is missing where there is none. Raises UserError:
    the file is there and cannot be read."""
    with failing_as(f"{path}: cannot read"):
        try:
            lines = read_end(path, _TAIL_BYTES).splitlines()
        except FileNotFoundError:
            return {}
    newest: dict[str, JsonObject] = {}
    # from the newest: the first line may be cut by where the reading began
    for record in filter(None, map(_record, reversed(lines))):
        kind = record.get("kind")
        if kind in _KINDS:
            newest.setdefault(kind, record)
        if len(newest) == len(_KINDS):
            break
    return newest


def _record(line: bytes) -> JsonObject | None:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    # 400,000 records have the same few names: each is in memory once
    return {sys.intern(k): value for k, value in content.items() if _is_plain(k, value)}


def _is_plain(key: str, value: Any) -> bool:
    """A number, or the name of its kind."""
    if isinstance(value, str):
        return key == "kind"
    if isinstance(value, int):
        # Python's integers have no bound; no program of ours counts further
        return value.bit_length() <= 64
    return value is None or isinstance(value, float)
