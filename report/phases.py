"""Where the time of a run went: its spans, its steps, its schedule, from timeline and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from ..config.finding import number
from .run_summary import show

_MAX_BARS = 60
_MAX_TOTALS = 100
_FIRST_OF_THE_CLOCK = re.compile(r"(epoch|step|evaluate)\b")


class Bar(NamedTuple):
    """A span of the start-up; `left` and `width` are percent of the whole start-up."""

    name: str
    rank: str
    thread: str
    start_s: float
    duration_s: float
    left: float
    width: float


class StartUp(NamedTuple):
    """`work_s`: the stages of the busiest rank added up; above `wall_s` where they overlap."""

    bars: tuple[Bar, ...]
    left_out: int
    wall_s: float
    work_s: float


class Total(NamedTuple):
    """All spans of one kind, such as the epochs."""

    name: str
    times: int
    total_s: float
    median_s: float
    longest_s: float


class StepTimes(NamedTuple):
    """Milliseconds a step between log points, over `points` of them."""

    points: int
    median_ms: float
    fast_ms: float
    """Nine of ten log points are slower."""
    slow_ms: float
    """Nine of ten are faster."""
    slowest_ms: float
    slowest_step: float | None


class Course(NamedTuple):
    """A setting by epoch as the run used it; `constant` where it never changed."""

    name: str
    points: tuple[tuple[float, float], ...]
    constant: float | None


def start_up(spans: Sequence[dict[str, Any]]) -> StartUp | None:
    """The spans before the first epoch, by rank and start; None where there are none."""
    clock = [span["ts"] for span in spans if _FIRST_OF_THE_CLOCK.match(str(span.get("name")))]
    before = [span for span in spans if not clock or span["ts"] < min(clock)]
    if not before:
        return None
    zero = min(span["ts"] for span in before)
    wall = max(span["ts"] + span["dur"] for span in before) - zero or 1
    before.sort(key=lambda span: (show(span.get("pid")), span["ts"]))
    bars = tuple(
        Bar(
            name=show(span.get("name")),
            rank=show(span.get("pid")),
            thread=show(span.get("tid")),
            start_s=(span["ts"] - zero) / 1e6,
            duration_s=span["dur"] / 1e6,
            left=100 * (span["ts"] - zero) / wall,
            width=100 * span["dur"] / wall,
        )
        for span in before[:_MAX_BARS]
    )
    work: dict[str, float] = {}
    for span in before:
        rank = show(span.get("pid"))
        work[rank] = work.get(rank, 0.0) + span["dur"] / 1e6
    return StartUp(bars, len(before) - len(bars), wall / 1e6, max(work.values()))


def span_totals(spans: Sequence[dict[str, Any]]) -> list[Total]:
    """All spans by kind ("epoch 3" is an epoch), the longest in sum first; at most 100 kinds."""
    found: dict[str, list[float]] = {}
    for span in spans:
        name = re.sub(r"\s+\d+$", "", show(span.get("name")))
        found.setdefault(name, []).append(span["dur"] / 1e6)
    totals = [Total(n, len(d), sum(d), median(d), max(d)) for n, d in found.items()]
    return sorted(totals, key=lambda total: (-total.total_s, total.name))[:_MAX_TOTALS]


def step_times(records: Iterable[dict[str, Any]], batch: float | None) -> StepTimes | None:
    """Time of a step at each log point: the global batch over the images per second."""
    found: list[tuple[float, float | None]] = []
    for record in records:
        rate = number(record.get("images_per_s"))
        images = number(record.get("global_batch_size")) or batch
        if rate and rate > 0 and images:
            found.append((1000 * images / rate, number(record.get("step"))))
    if not found:
        return None
    times = sorted(time for time, _ in found)
    slowest = max(found, key=lambda one: one[0])
    return StepTimes(
        points=len(found),
        median_ms=median(times),
        fast_ms=times[len(times) // 10],
        slow_ms=times[-1 - len(times) // 10],
        slowest_ms=slowest[0],
        slowest_step=slowest[1],
    )


def course(records: Iterable[dict[str, Any]], key: str, name: str) -> Course | None:
    """One setting of the training records by epoch; None where it is not recorded."""
    points = pairs(records, "epoch", key)
    if not points:
        return None
    values = {value for _, value in points}
    return Course(name, points, values.pop() if len(values) == 1 else None)


def pairs(records: Iterable[dict[str, Any]], x: str, y: str) -> tuple[tuple[float, float], ...]:
    """(x, y) of the records that have both as numbers, x rising."""
    found = [
        (a, b)
        for record in records
        if (a := number(record.get(x))) is not None and (b := number(record.get(y))) is not None
    ]
    return tuple(sorted(found))
