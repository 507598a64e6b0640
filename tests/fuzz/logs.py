"""Logs: mutants of built and published ones, by record, by byte and in number."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from rn50.config import benchmark
from tests.compliance.log_text import START_MS, Record, good_run
from tests.fuzz.values import Case, mutate, rng_of, scalar, tree

Lines = list[bytes]
_ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = Path(os.environ.get("RN50_SHARED", _ROOT.parent / "shared")) / "data/mlperf_logs/logs"
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
    ruleset = ("--ruleset", rng.choice(benchmark.RULESETS)) if rng.random() < 0.2 else ()
    commands = (
        ("log", "check", "--no-official", str(path), *ruleset),
        ("log", "check", "--no-official", "--json", str(path), *ruleset),
        ("log", "check", "--no-official", "--json", str(folder), *ruleset),
        ("log", "show", *rng.choice(((), ("--json",))), str(path)),
        ("log", "score", *rng.choice(((), ("--json",))), str(folder), *ruleset),
        ("log", "compare", *rng.choice(((), ("--json",))), str(path), str(path)),
        ("log", "report", str(path), "--out", "report.html"),
    )
    weights = (6, 6, 2, 2, 2, 1, 1)
    return Case(f"{name}: {', '.join(done)}", tuple(rng.choices(commands, weights, k=2)))


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


def _metadata(rng: random.Random, lines: Lines) -> None:
    if found := _record(rng, lines):
        at, record = found
        names = ("epoch_num", "first_epoch_num", "epoch_count", "status", "tensor", "file")
        whole = record.get("metadata")
        record["metadata"] = whole if isinstance(whole, dict) else {}
        record["metadata"][rng.choice(names)] = tree(rng)
        _write(lines, at, record)


def _stamp(rng: random.Random, lines: Lines) -> None:
    if found := _record(rng, lines):
        at, record = found
        old = record.get("time_ms")
        moved = [old + by for by in (-5, 5, -6e5, 6e5, 1e9, 0.25)] if type(old) is int else []
        micro = [old * 1000, old / 1000, str(old)] if type(old) is int else []
        record["time_ms"] = rng.choice((*moved, *micro, -1, scalar(rng)))
        _write(lines, at, record)


def _drop(rng: random.Random, lines: Lines) -> None:
    at = rng.randrange(len(lines) + 1)
    del lines[at : at + rng.choice((1, 1, 1, 2, 10, 100))]


def _repeat(rng: random.Random, lines: Lines) -> None:
    at = rng.randrange(len(lines) + 1)
    lines[at:at] = lines[at : at + rng.choice((1, 1, 1, 5, 50))] * rng.choice((1, 1, 2, 50))


def _move(rng: random.Random, lines: Lines) -> None:
    if lines:
        line = lines.pop(rng.randrange(len(lines)))
        lines.insert(rng.randrange(len(lines) + 1), line)


def _raw(rng: random.Random, lines: Lines) -> None:
    """A record in a shape that JSON readers differ over."""
    if not lines:
        return
    at = rng.randrange(len(lines))
    prefix, token, text = lines[at].partition(_TOKEN)
    deep = rng.choice((20, 1000, 50_000))
    lines[at] = rng.choice(
        (
            prefix + token.rstrip() + b"\t" + text,
            prefix + token + b"{" + text,
            prefix + token + text.rstrip(b"}"),
            prefix + token + b" " * 300 + text,
            prefix + token + text + b" trailing " + text,
            prefix + token + text + token + text,
            prefix + token + text[:-1] + b', "value": NaN, "value": 0.76, "time_ms": Infinity}',
            prefix + token + text[:-1] + b', "value": 1' + b"0" * 5000 + b"}",
            prefix + token + text[:-1] + b', "a": ' + b"[" * deep + b"]" * deep + b"}",
            prefix + token + text[:-1] + b', "a": "' + b"x" * rng.choice((9000, 3_000_000)) + b'"}',
            prefix + token + b"[]",
            prefix + token,
            token * 1000 + text,
            text,
            token + b"'" + text.replace(b'"', b"'") + b"'",
            prefix + token + text.replace(b" ", b"\x00"),
        )
    )


def _flood(rng: random.Random, lines: Lines) -> None:
    """Many records that no rule reads, or many of one that a rule reads."""
    count = rng.choice((10, 600, 3000, 3000, 60_000 if rng.random() < 0.05 else 1000))
    stamp = rng.choice((1, START_MS["4.0.0"], -1, "x"))
    key = rng.choice(("unknown_{}", "unknown", "eval_accuracy", "seed", "run_stop", "epoch_start"))
    value = rng.choice(("{}", "0.1", "x"))
    new = [
        Record(key.format(number), value.format(number), stamp, epoch_num=number).text("4.0.0")
        for number in range(count)
    ]
    at = rng.choice((0, len(lines), rng.randrange(len(lines) + 1)))
    lines[at:at] = [line.encode() for line in new]


def _noise(rng: random.Random, lines: Lines) -> None:
    for _ in range(rng.choice((1, 10, 200))):
        at = rng.randrange(len(lines) + 1)
        lines.insert(
            at, rng.choice((b"", b":::MLLOG", rng.randbytes(60), b"x" * 2000, b"\x00" * 9))
        )


def _bytes(rng: random.Random, lines: Lines) -> None:
    lines[:] = mutate(rng, b"\n".join(lines)).split(b"\n")


def _old_form(rng: random.Random, lines: Lines) -> None:
    """A v0.6 record in between."""
    stamp = rng.choice(("1560000000.1", "-1", "inf", "1e400", "nan", "x", "0", "1.2.3", "9" * 400))
    value = json.dumps(tree(rng))
    key = rng.choice(("run_start", "run_stop", "eval_accuracy", "x", "init_start"))
    text = rng.choice((f'{{"value": {value}, "metadata": {{"epoch_num": 3}}}}', value))
    lines.insert(rng.randrange(len(lines) + 1), f":::MLL {stamp} {key}: {text}".encode())


EDITS: tuple[Callable[[random.Random, Lines], None], ...] = (
    *(_field, _field, _metadata, _stamp, _stamp, _drop, _repeat, _move, _raw, _flood),
    *(_noise, _bytes, _bytes, _old_form),
)
