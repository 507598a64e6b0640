"""Logs: mutants of built and published ones, by record and by byte. Records that are not whole, of
the older form and in number: tests/compliance/test_records.py."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from rn50.config import benchmark
from tests.compliance.log_text import START_MS, good_run
from tests.fuzz.values import Case, mutate, rng_of, tree

Lines = list[bytes]
_ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = (
    Path(os.environ.get("RN50_SHARED", _ROOT.parent / "shared"))
    / "data/mlperf_logs/logs"
)
_MOST_BYTES = 120_000
_TOKEN = b":::MLLOG "


def case(seed: int, folder: Path) -> Case:
    """A log that is wrong in one to four ways, and two commands that read it."""
    rng = rng_of("logs", seed)
    lines, name = base(rng)
    done = []
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        edit = rng.choice(EDITS)
        edit(rng, lines)
        done.append(edit.__name__.strip("_"))
    content = b"".join(line + b"\n" for line in lines)
    path = folder / "result_0.txt"
    path.write_bytes(content)
    check = ("log", "check", "--no-official")
    commands = (
        (*check, str(path), "--ruleset", rng.choice(benchmark.RULESETS)),
        (*check, "--json", str(path)),
        (*check, "--json", str(folder)),
        ("log", "show", "--json", str(path)),
        ("log", "score", str(folder)),
        ("log", "compare", str(path), str(path)),
        ("log", "report", str(path), "--out", "report.html"),
    )
    return Case(f"{name}: {', '.join(done)}", tuple(rng.sample(commands, 2)))


def base(rng: random.Random) -> tuple[Lines, str]:
    """A log without faults, of any round; and its name."""
    published = list(_published())
    if published and rng.random() < 0.4:
        path = Path(rng.choice(published))
        return path.read_bytes().splitlines(), str(path.relative_to(PUBLISHED))
    ruleset = rng.choice(tuple(START_MS))
    division = rng.choice(("closed", "closed", "open"))
    optimizer = "lars" if ruleset == "0.6.0" else rng.choice(("lars", "sgd"))
    run = good_run(ruleset, division, optimizer)
    return [r.text(ruleset).encode() for r in run], f"{ruleset} {division} {optimizer}"


@lru_cache(maxsize=1)
def _published() -> tuple[str, ...]:
    found = sorted(PUBLISHED.glob("*/*/*/result_*.txt"))
    return tuple(str(path) for path in found if path.stat().st_size <= _MOST_BYTES)


# --- edits of records ---------------------------------------------------------------------------


def _record(rng: random.Random, lines: Lines) -> tuple[int, dict[str, Any]] | None:
    """A place and the record there; None: none was found."""
    for _ in range(20):
        at = rng.randrange(len(lines)) if lines else 0
        _, token, text = lines[at].partition(_TOKEN) if lines else (b"", b"", b"")
        if token:
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if isinstance(found, dict):
                return at, found
    return None


def _write(lines: Lines, at: int, record: object) -> None:
    prefix, token, _ = lines[at].partition(_TOKEN)
    lines[at] = prefix + token + json.dumps(record).encode()


def _field(rng: random.Random, lines: Lines) -> None:
    if found := _record(rng, lines):
        at, record = found
        record[rng.choice((*record, "value", "metadata", "time_ms", "key"))] = tree(rng)
        _write(lines, at, record)


def _drop(rng: random.Random, lines: Lines) -> None:
    at = rng.randrange(len(lines) + 1)
    del lines[at : at + rng.choice((1, 1, 1, 2, 10, 100))]


def _repeat(rng: random.Random, lines: Lines) -> None:
    at = rng.randrange(len(lines) + 1)
    lines[at:at] = lines[at : at + rng.choice((1, 1, 1, 5, 50))] * rng.choice(
        (1, 1, 2, 50)
    )


def _move(rng: random.Random, lines: Lines) -> None:
    if lines:
        line = lines.pop(rng.randrange(len(lines)))
        lines.insert(rng.randrange(len(lines) + 1), line)


def _bytes(rng: random.Random, lines: Lines) -> None:
    lines[:] = mutate(rng, b"\n".join(lines)).split(b"\n")


EDITS: tuple[Callable[[random.Random, Lines], None], ...] = (
    _field,
    _drop,
    _repeat,
    _move,
    _bytes,
)
