"""The rounds of a benchmark: counted where they run, noted for the command that waits for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ..config.atomic import write_file

_FILE = "rounds.json"


def count_rounds(out: Path, rounds: int, *, noted: bool = True) -> Iterator[int]:
    """0, which warms up, to `rounds`; each is noted in `out` when the next is asked for.

    Args:
        out: the benchmark's folder.
        rounds: those that count.
        noted: on one rank alone, between measurements.
    """
    for turn in range(rounds + 1):
        yield turn
        if noted:
            write_file(out / _FILE, json.dumps([turn + 1, rounds + 1]))


def read_rounds(out: Path) -> tuple[int, int] | None:
    """(done, total) as noted in `out`, the first, which warms up, among them; None: none yet."""
    try:
        done, total = json.loads((out / _FILE).read_text())
    except (OSError, ValueError):
        return None
    return done, total
