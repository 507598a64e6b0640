"""What all benchmarks share: a job, contenders timed in turn, and the result."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..config.load import Loaded
from ..host.errors import UserError
from ..host.reading import JsonObject

T = TypeVar("T")
Action: TypeAlias = Callable[[], object]
Samples: TypeAlias = dict[str, list[float]]
"""Contender -> a value of each measurement."""
Spread: TypeAlias = dict[str, float]


# --- a benchmark's input and output ---------------------------------------------------------------


@dataclass(frozen=True)
class BenchJob:
    """What the command line gives to every driver."""

    track: Callable[..., Callable[[int, int], None]]
    """A Tracker. With `ticks=True` its bar also moves while a piece of work reports nothing."""
    launcher: str
    load: Callable[..., Loaded]
    """(*overrides, ranks=N) -> the config that the command names, with more overrides."""
    begun_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Outcome:
    """What a driver measured. `--json` prints the dictionary; people get a table and lines."""

    figures: Mapping[str, Any]
    """Printed for people where there is no table."""
    ratios: Mapping[str, Spread] = field(default_factory=dict)
    measurements: Mapping[str, Samples] = field(default_factory=dict)
    """The samples by their unit, for `--plot`."""
    rows: Sequence[Mapping[str, Any]] = ()
    """A benchmark's own table; `--json` has it beside the figures."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column -> how it shows a row, as `{speedup[median]:.2f}`."""
    notes: Sequence[str] = ()
    """Lines below the table."""
    passes: bool = True
    """False: a reference was missed; exit code 1."""
    draw: Callable[[Path], None] | None = None
    """None: the measurements and the ratios as dots."""

    @property
    def table(self) -> list[tuple[str, ...]]:
        """The rows for people."""
        cells = self.columns.values()
        return [tuple(cell.format_map(row) for cell in cells) for row in self.rows]

    def to_json(self, launcher: str) -> JsonObject:
        """What `--json` prints; `launcher`: what started the ranks."""
        return {
            "ratios": self.ratios,
            "rows": self.rows,
            "figures": self.figures,
            "measurements": self.measurements,
            "machine": machine() | {"launcher": launcher},
        }


# --- contenders in turn ---------------------------------------------------------------------------


def alternate(
    contenders: Mapping[str, Action],
    rounds: int,
    barrier: Action = lambda: None,
    finish: Action = lambda: None,
    *,
    pieces: int = 1,
) -> Samples:
    """Time each contender once a round, in the opposite order every other round: wall seconds of
    each measurement, divided by the `pieces` it is of.

    Args:
        contenders: name -> what is timed.
        rounds: how many, after one that warms up.
        barrier: called before each measurement, not timed.
        finish: called at the end of each measurement, timed.
    """
    seconds: Samples = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in _order(contenders, number):
            barrier()
            start_s = time.perf_counter()
            contenders[name]()
            finish()
            taken_s = time.perf_counter() - start_s
            if number:
                seconds[name].append(taken_s / pieces)
    return seconds


def repeated(action: Action, count: int) -> Action:
    """A function that calls `action` `count` times."""

    def repeat() -> None:
        """Call the action so many times."""
        for _ in range(count):
            action()

    return repeat


def in_turn(
    job: BenchJob, work: str, contenders: Collection[T], rounds: int
) -> Iterator[T]:
    """Each contender once a round, in the opposite order every other round.

    Args:
        job: shows how many are done.
        work: what is done with each.
        contenders: what is given in turn.
        rounds: how often each is given.
    """
    progress = job.track(work, ticks=True)
    turns = [
        contender
        for number in range(rounds)
        for contender in _order(contenders, number)
    ]
    for done, contender in enumerate(turns):
        progress(done, len(turns))
        yield contender
    progress(len(turns), len(turns))


def _order(contenders: Collection[T], number: int) -> list[T]:
    order = list(contenders)
    return order if number % 2 else order[::-1]


# --- results --------------------------------------------------------------------------------------


def machine() -> JsonObject:
    """The machine on which it was measured."""
    cores = os.sched_getaffinity(0)
    return {"host": platform.node(), "cores": len(cores)}


def spread(values: Sequence[float]) -> Spread:
    """Median, extremes and number of repeated measurements."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def ratio_spread(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Spread of over / under, measured in turn."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def scaled(values: Sequence[float], factor: float) -> list[float]:
    """The values in another unit."""
    return [factor * value for value in values]


def parse_counts(option: str, numbers: str) -> list[int]:
    """`2,4` -> [2, 4]. Raises UserError: no numbers, or not rising."""
    if re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", numbers):
        counts = list(map(int, numbers.split(",")))
        if counts == sorted(set(counts)):
            return counts
    raise UserError(
        f"{option}: rising whole numbers expected, such as 2,4; found {numbers}"
    )


def ranks_text(count: int) -> str:
    """`1 rank`, `2 ranks`."""
    return "1 rank" if count == 1 else f"{count} ranks"
