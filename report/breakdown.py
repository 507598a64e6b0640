"""What the time of a run was spent on, from its files: start-up, the steps of rank 0, all ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from ..host.finding import number
from ..host.reading import JsonObject
from .run_records import Subject
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
        """The end of the span, counted as its start."""
        return self.start_s + self.duration_s


def start_up(spans: Sequence[JsonObject]) -> list[Bar]:
    """Return the spans before the first epoch by start."""
    bars: list[Bar] = []
    for span in spans:  # by their start
        # a program's own file may hold anything as a name
        name = show(span.get("name"))
        if _FIRST_OF_THE_CLOCK.match(name) or len(bars) == _MOST_BARS:
            break
        since_first_us = span["ts"] - spans[0]["ts"]
        bars.append(
            Bar(
                name=name,
                thread=show(span.get("tid")),
                start_s=since_first_us / 1e6,
                duration_s=span["dur"] / 1e6,
            )
        )
    return bars


class PhaseRow(NamedTuple):
    """A phase of the step; the times are medians over the log points."""

    name: str
    meaning: str
    median_ms: float
    slow_ms: float
    """The median of the 90th percentiles."""
    share: float = 0.0
    """Its median's share of the sum of the medians."""


def step_breakdown(records: Sequence[JsonObject]) -> list[PhaseRow]:
    """Sum up the "steps" records of metrics.jsonl; empty where one has not all phases."""
    rows = []
    for name, meaning in PHASES.items():
        usual = _numbers([record.get(f"{name}_p50_ms") for record in records])
        slow = _numbers([record.get(f"{name}_p90_ms") for record in records])
        if not usual or not slow:
            return []
        rows.append(PhaseRow(name, meaning, median(usual), median(slow)))
    # medians of parts do not add up to the median of a step, so shares are of their sum
    total_ms = sum(row.median_ms for row in rows) or 1.0
    return [row._replace(share=row.median_ms / total_ms) for row in rows]


class RankRow(NamedTuple):
    """A figure over all ranks: the lowest, the median and the highest, and which rank has that."""

    name: str
    lowest: str
    median: str
    highest: str
    highest_rank: str


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
    ("read from storage", ("storage_read_bytes",), 1e6, "MB"),
)


def rank_spread(content: Mapping[str, Any]) -> list[RankRow]:
    """Sum up the content of ranks.json; empty where it is not one."""
    table = _table(content)
    hosts = table.get("host")
    if not isinstance(hosts, list):
        return []
    rows = []
    for name, keys, divisor, unit in _FIGURES:
        columns = [_numbers(table.get(key)) for key in keys]
        # such as the memory of GPUs, of a run on CPUs
        if any(len(column) != len(hosts) for column in columns):
            continue
        sums = map(sum, zip(*columns, strict=True))
        values = [value / divisor for value in sums]
        worst = values.index(max(values))
        rows.append(
            RankRow(
                name=name,
                lowest=amount(min(values), unit),
                median=amount(median(values), unit),
                highest=amount(max(values), unit),
                highest_rank=f"rank {worst} on {show(hosts[worst])}",
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
    cpu_s = _numbers(_table(ranks).get("cpu_s"))
    if not cpu_s or not elapsed_s:
        return None
    share = median(cpu_s) / elapsed_s
    if share >= _FEW_CORES:
        return None
    return (
        f"Ranks had {100 * share:.0f} % of a core each: this time is not comparable with that of a "
        "machine that had nothing else to do."
    )


def _table(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns of ranks.json; empty where it has none."""
    table = content.get("ranks")
    return table if isinstance(table, dict) else {}


def _numbers(values: Any) -> list[float]:
    """The numbers among the values of a list; a file may hold anything in its place."""
    if not isinstance(values, list):
        return []
    return [value for value in map(number, values) if value is not None]
