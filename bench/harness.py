"""What all benchmarks share: the table of them, contenders timed in turn, and the result."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import typer

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.reading import JsonObject

T = TypeVar("T")


# --- the table ------------------------------------------------------------------------------------


def option(help: str, **limits: float) -> Any:
    """An option of a benchmark's command, as an annotation of its driver's keyword argument."""
    return typer.Option(help=help, **limits)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BenchJob:
    """What the command line gives to every driver."""

    track: Callable[..., Callable[[int, int], None]]
    """A Tracker; `ticks=True` where nothing is heard from a piece of work until its end."""
    launcher: str
    load: Callable[..., Loaded]
    """(*overrides, ranks=N) -> the config that the command names, with more overrides."""


@dataclass(frozen=True)
class Outcome:
    """What a driver measured. `--json` prints the dictionary; people get a table and lines."""

    figures: Mapping[str, Any]
    """Printed for people where there is no table."""
    ratios: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measurements: Mapping[str, Mapping[str, Sequence[float]]] = field(
        default_factory=dict
    )
    """unit -> contender -> values, for `--plot`."""
    launcher: str = ""
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
        texts = self.columns.values()
        return [tuple(map(str.format_map, texts, repeat(row))) for row in self.rows]

    def to_json(self) -> JsonObject:
        """What `--json` prints."""
        return {
            "ratios": self.ratios,
            "rows": self.rows,
            "figures": self.figures,
            "measurements": self.measurements,
            "machine": machine() | {"launcher": self.launcher},
        }


@dataclass(frozen=True)
class Benchmark:
    """One command of `rn50 bench`; the fields are the arguments of `bench`."""

    run: Callable[..., Outcome]
    rank: Callable[..., Any]
    config: str
    takes_ranks: bool


BENCHMARKS: dict[str, Benchmark] = {}


def bench(
    name: str, *, rank: Callable[..., Any], config: str, takes_ranks: bool = False
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Register a driver, `driver(job, *, option=...)`, as `rn50 bench NAME`.

    Args:
        name: of the command; its module is named so too.
        rank: what each rank runs: `rank(folder, *texts)`; rank 0's return value is bench.json.
        config: the default preset.
        takes_ranks: whether `--ranks N` says on how many ranks the config runs.
    """

    def register(run: Callable[..., Outcome]) -> Callable[..., Outcome]:
        BENCHMARKS[name] = Benchmark(run, rank, config, takes_ranks)
        return run

    return register


# --- contenders in turn ---------------------------------------------------------------------------


def alternate(
    contenders: Mapping[str, Callable[[], object]],
    rounds: Iterable[int],
    barrier: Callable[[], object] = lambda: None,
    finish: Callable[[], object] = lambda: None,
    *,
    pieces: int = 1,
) -> dict[str, list[float]]:
    """Time each contender once a round, in the opposite order every other round: wall seconds of
    each measurement, divided by the `pieces` it is of.

    Args:
        contenders: name -> what is timed.
        rounds: their numbers; round 0 warms up and is not counted.
        barrier: called before each measurement, not timed.
        finish: called at the end of each measurement, timed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in rounds:
        for name in _order(list(contenders), number):
            barrier()
            start_s = time.perf_counter()
            contenders[name]()
            finish()
            if number:
                seconds[name].append((time.perf_counter() - start_s) / pieces)
    return seconds


def repeated(run: Callable[[], object], count: int) -> Callable[[], None]:
    """A function that calls `run` `count` times."""

    def many() -> None:
        for _ in range(count):
            run()

    return many


def in_turn(
    contenders: Sequence[T], rounds: int, progress: Callable[[int, int], None]
) -> Iterator[T]:
    """Each contender once a round, in the opposite order every other round, with progress."""
    total = rounds * len(contenders)
    for number in range(rounds):
        for done, one in enumerate(_order(contenders, number)):
            progress(number * len(contenders) + done, total)
            yield one
    progress(total, total)


def _order(contenders: Sequence[T], number: int) -> Sequence[T]:
    return contenders if number % 2 else contenders[::-1]


# --- results --------------------------------------------------------------------------------------


def machine() -> JsonObject:
    """Where it was measured."""
    return {"host": platform.node(), "cores": len(os.sched_getaffinity(0))}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, extremes and number of repeated measurements."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def ratio_spread(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Spread of over / under, measured in turn."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def scaled(values: Sequence[float], factor: float) -> list[float]:
    """The values in another unit."""
    return [factor * value for value in values]


def parse_counts(option: str, text: str) -> list[int]:
    """`2,4` -> [2, 4]. Raises UserError: no numbers, or not rising."""
    if re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", text):
        counts = [int(part) for part in text.split(",")]
        if counts == sorted(set(counts)):
            return counts
    raise UserError(
        f"{option}: rising whole numbers expected, such as 2,4; found {text}"
    )


def ranks_text(count: int) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} rank{'s' * (count != 1)}"
