"""metrics.jsonl read as a stream, into a series of bounded size that still shows its whole course.

If a kind has more records than that, every second, third, ... one of the whole run is kept.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..config.reading import JsonObject, open_file
from .line_file import read_end

MOST_BYTES = 64 << 20
"""250,000 records of this harness."""
MOST_RECORDS = 50_000
"""How many of one kind are kept: a plot has fewer points across."""
MOST_KINDS = 8
"""Of these, those with most records are kept: this harness has four."""
_LINE_BYTES = 1 << 16
_TAIL_BYTES = 1 << 20
"""Some 7,000 records: more than lie between two evaluations."""
_MOST_TORN = 8
"""Lines looked at for a whole record; the last one alone may be torn."""


class Series(NamedTuple):
    """The records of a file in its order; `thinned`: kind -> every how many of them is kept."""

    records: tuple[JsonObject, ...] = ()
    thinned: Mapping[str, int] = MappingProxyType({})


def read_metrics(path: Path, within: Path | None = None) -> Series:
    """The records of a metrics.jsonl: their kinds and numbers. A torn line, such as a killed run
    leaves, is skipped. Raises OSError: no regular file of that size `within` the folder."""
    with open_file(
        path,
        MOST_BYTES,
        within=within,
    ) as file:
        records = [record for line in file if (record := _record(line)) is not None]
    counts = Counter(record.get("kind") for record in records).most_common(MOST_KINDS)
    steps = {series: math.ceil(count / MOST_RECORDS) for series, count in counts}
    kept = []
    seen: Counter[Any] = Counter()
    for record in records:
        series = record.get("kind")
        if series in steps and seen[series] % steps[series] == 0:
            kept.append(record)
        seen[series] += 1
    thinned = {str(series): step for series, step in steps.items() if step > 1}
    return Series(tuple(kept), thinned)


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
