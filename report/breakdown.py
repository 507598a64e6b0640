"""Where the time of a run went, from its files: the start-up, the steps of rank 0, all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from ..config.finding import number
from ..config.reading import JsonObject
from .run_folder import Subject
from .run_summary import amount, show

PHASES = {
    "input": "the device waits for the batch",
    "forward": "",
    "backward": "to the gradient that is written last",
    "reduction": "exposed: from the end of backward to the last group's sum",
    "update": "",
    "host": "the device waits for the host: log points, checkpoints",
}
_MOST_BARS = 60
_FIRST_OF_THE_CLOCK = re.compile(r"(epoch|step|evaluate)\b")


class Bar(NamedTuple):
    """A span of the start-up; `start_s` counts from the first one."""

    name: str
    thread: str
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


def start_up(spans: Sequence[JsonObject]) -> list[Bar]:
    """Return the spans before the first epoch by start."""
    clock = [
        span["ts"] for span in spans if _FIRST_OF_THE_CLOCK.match(str(span.get("name")))
    ]
    before = [span for span in spans if not clock or span["ts"] < min(clock)][
        :_MOST_BARS
    ]
    zero = min((span["ts"] for span in before), default=0.0)
    return [
        Bar(
            name=show(span.get("name")),
            thread=show(span.get("tid")),
            start_s=(span["ts"] - zero) / 1e6,
            duration_s=span["dur"] / 1e6,
        )
        for span in before
    ]


class PhaseRow(NamedTuple):
    """A phase of the step; the times are medians over the log points."""

    name: str
    meaning: str
    median_ms: float
    slow_ms: float
    """The median of the 90th percentiles."""
    share: float
    """Its median's share of the sum of the medians."""


def step_breakdown(records: Sequence[JsonObject]) -> list[PhaseRow]:
    """Sum up the "steps" records of metrics.jsonl; empty where one has not all phases."""
    columns = {
        (name, of): _numbers(record.get(f"{name}_{of}_ms") for record in records)
        for name in PHASES
        for of in ("p50", "p90")
    }
    if not all(columns.values()):
        return []
    medians = {key: median(values) for key, values in columns.items()}
    total_ms = sum(medians[name, "p50"] for name in PHASES) or 1.0
    return [
        PhaseRow(
            name=name,
            meaning=meaning,
            median_ms=medians[name, "p50"],
            slow_ms=medians[name, "p90"],
            share=medians[name, "p50"] / total_ms,
        )
        for name, meaning in PHASES.items()
    ]


class RankRow(NamedTuple):
    """A figure over all ranks: the least, the middle, the most; `at`: which rank has the most."""

    name: str
    least: str
    middle: str
    most: str
    at: str


_FIGURES = (
    # (name, columns of ranks.json that are added up, by what to divide, unit)
    ("forward and backward", ("forward_p50_ms", "backward_p50_ms"), 1, "ms"),
    ("exposed reduction", ("reduction_p50_ms",), 1, "ms"),
    ("waiting for input", ("input_p50_ms",), 1, "ms"),
    ("step", ("step_p50_ms",), 1, "ms"),
    ("longest step", ("step_max_ms",), 1, "ms"),
    ("memory, peak", ("memory_peak_bytes",), 1 << 30, "GiB"),
    ("GPU memory, peak", ("gpu_memory_peak_bytes",), 1 << 30, "GiB"),
    ("CPU time", ("cpu_s",), 1, "s"),
)


def rank_spread(content: Mapping[str, Any]) -> list[RankRow]:
    """Sum up the content of ranks.json; empty where it is not one."""
    table = _table(content)
    hosts = table.get("host")
    if not isinstance(hosts, list):
        return []
    rows = []
    for name, columns, divisor, unit in _FIGURES:
        values = _added([table.get(column) for column in columns], len(hosts))
        if values:
            worst = max(range(len(values)), key=values.__getitem__)
            rows.append(
                RankRow(
                    name=name,
                    least=amount(min(values) / divisor, unit),
                    middle=amount(median(values) / divisor, unit),
                    most=amount(max(values) / divisor, unit),
                    at=f"rank {worst} on {show(hosts[worst])}",
                )
            )
    return rows


_FEW_CORES = 0.6


def too_few_cores(subject: Subject) -> str | None:
    """Return a sentence where ranks on CPUs got less than most of a core each."""
    if subject.config is None or subject.config.system.device != "cpu":
        return None
    ranks = subject.folder.ranks
    elapsed_s = number(ranks.get("elapsed_s"))
    column = _table(ranks).get("cpu_s")
    used = isinstance(column, list) and _numbers(column)
    if not used or not elapsed_s or (share := median(used) / elapsed_s) >= _FEW_CORES:
        return None
    return (
        f"Ranks had {100 * share:.0f} % of a core each: this time is not comparable with that of a "
        "machine that had nothing else to do."
    )


def _table(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns of ranks.json; empty where it has none."""
    table = content.get("ranks")
    return table if isinstance(table, dict) else {}


def _added(columns: Sequence[Any], ranks: int) -> list[float]:
    """The sum of columns by rank; empty where one has not a number for every rank."""
    by_column = [_numbers(column) for column in columns if isinstance(column, list)]
    if len(by_column) < len(columns) or any(
        len(values) != ranks for values in by_column
    ):
        return []
    return [sum(values) for values in zip(*by_column, strict=True)]


def _numbers(values: Iterable[Any]) -> list[float]:
    return [value for one in values if (value := number(one)) is not None]
