"""Where a step went on rank 0, and what each rank needed: from the files of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config.finding import number
from .charts import finish, page_chart
from .compare import amount
from .phases import pairs
from .plots import Plot
from .run_summary import show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PHASES = {
    "input": "the device waits for the batch",
    "forward": "",
    "backward": "to the gradient that is written last",
    "reduction": "exposed: from the end of backward to the last group's sum",
    "update": "",
    "host": "the device waits for the host: log points, checkpoints",
}
_PREDICTED = {
    "input": ("input_s",),
    "forward": ("forward_s",),
    "backward": ("backward_s",),
    "reduction": ("exposed_s", "bn_sync_s", "straggler_s"),
    "update": ("optimizer_s",),
    "host": ("launch_s",),
}
"""Phase -> the parts of scaling/step.py's `Step` that fall into it."""
_MOST_RANKS = 100_000
_MOST_HOSTS = 12


class PhaseRow(NamedTuple):
    """A phase of the step; the times are medians over the log points."""

    name: str
    meaning: str
    median_ms: float
    slow_ms: float
    """Of the 90th percentiles."""
    share: float
    """Of the medians' sum."""
    predicted_ms: float | None


class StepBreakdown(NamedTuple):
    rows: tuple[PhaseRow, ...]
    points: int
    lead_ms: float | None
    """How long a batch lay ready before the device asked for it."""
    plots: tuple[Plot, ...]


def step_breakdown(
    records: Sequence[dict[str, Any]], predicted_s: Mapping[str, float] | None = None
) -> StepBreakdown | None:
    """From the "steps" records of metrics.jsonl; None where there are none.

    Args:
        predicted_s: the parts of a predicted step.
    """
    medians = {name: _middle(records, f"{name}_p50_ms") for name in PHASES}
    if None in medians.values():
        return None
    total = sum(value or 0.0 for value in medians.values()) or 1.0
    rows = tuple(
        PhaseRow(
            name=name,
            meaning=meaning,
            median_ms=medians[name] or 0.0,
            slow_ms=_middle(records, f"{name}_p90_ms") or 0.0,
            share=(medians[name] or 0.0) / total,
            predicted_ms=None
            if predicted_s is None
            else 1e3 * sum(predicted_s.get(part, 0.0) for part in _PREDICTED[name]),
        )
        for name, meaning in PHASES.items()
    )
    several = len(pairs(records, "step", "step_p50_ms")) > 1
    charts = {"Where a step goes": _stack, "Time of a step": _step_times} if several else {}
    plots = tuple(
        Plot(
            title,
            "ms, rank 0",
            page_chart(title.lower().replace(" ", "-"), title, partial(draw, records)),
        )
        for title, draw in charts.items()
    )
    return StepBreakdown(rows, len(records), _middle(records, "input_lead_p50_ms"), plots)


def _middle(records: Iterable[dict[str, Any]], key: str) -> float | None:
    found = [value for record in records if (value := number(record.get(key))) is not None]
    return median(found) if found else None


def _stack(records: Sequence[dict[str, Any]], axes: Axes) -> None:
    """The phases' medians one upon another."""
    lines = [pairs(records, "step", f"{name}_p50_ms") for name in PHASES]
    whole = [line for line in lines if len(line) == len(lines[0])]
    names = [name for name, line in zip(PHASES, lines, strict=True) if len(line) == len(lines[0])]
    heights = [[y for _, y in line] for line in whole]
    axes.stackplot([x for x, _ in whole[0]], heights, labels=names)
    axes.set(xlabel="step", ylim=(0, 1.35 * max(map(sum, zip(*heights, strict=True)))))
    finish(axes)


def _step_times(records: Sequence[dict[str, Any]], axes: Axes) -> None:
    """Median, 90th percentile and longest step between log points."""
    names = {"step_p50_ms": "median", "step_p90_ms": "90th percentile", "step_max_ms": "longest"}
    for key, name in names.items():
        line = pairs(records, "step", key)
        axes.plot([x for x, _ in line], [y for _, y in line], lw=1.5, label=name)
    axes.set(xlabel="step", ylim=(0, None))
    finish(axes)


class RankRow(NamedTuple):
    """A figure over all ranks: the least, the middle, the most; `at`: who has the most."""

    name: str
    least: str
    middle: str
    most: str
    at: str


class RankSpread(NamedTuple):
    ranks: int
    rows: tuple[RankRow, ...]
    hosts: tuple[tuple[str, int, str, str], ...]
    """The slowest in computing first: host, ranks, computing and exposed reduction a step."""
    hosts_left_out: int


_COMPUTING = "forward and backward"
_FIGURES = (
    # (name, columns of ranks.json that are added up, by what to divide, unit)
    (_COMPUTING, ("forward_p50_ms", "backward_p50_ms"), 1, "ms"),
    ("exposed reduction", ("reduction_p50_ms",), 1, "ms"),
    ("waiting for input", ("input_p50_ms",), 1, "ms"),
    ("step", ("step_p50_ms",), 1, "ms"),
    ("longest step", ("step_max_ms",), 1, "ms"),
    ("memory, peak", ("memory_peak_bytes",), 1 << 30, "GiB"),
    ("GPU memory, peak", ("gpu_memory_peak_bytes",), 1 << 30, "GiB"),
)


def rank_spread(content: Mapping[str, Any]) -> RankSpread | None:
    """From the content of ranks.json; None where it is not one."""
    table, elapsed_s = content.get("ranks"), number(content.get("elapsed_s"))
    hosts = table.get("host") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(hosts, list):
        return None
    if not 0 < len(hosts) <= _MOST_RANKS:
        return None

    def column(*names: str, divisor: float = 1.0) -> list[float] | None:
        """The sum of columns by rank; None where a rank has no number there."""
        sums = [0.0] * len(hosts)
        for name in names:
            values = table.get(name)
            if not isinstance(values, list) or len(values) != len(hosts):
                return None
            for rank, value in enumerate(map(number, values)):
                if value is None:
                    return None
                sums[rank] += value / divisor
        return sums

    def row(name: str, values: list[float], unit: str) -> RankRow:
        worst = max(range(len(values)), key=values.__getitem__)
        return RankRow(
            name,
            least=amount(min(values), unit),
            middle=amount(median(values), unit),
            most=amount(max(values), unit),
            at=f"rank {worst} on {show(hosts[worst])}",
        )

    rows = [
        row(name, values, unit)
        for name, columns, divisor, unit in _FIGURES
        if (values := column(*columns, divisor=divisor)) is not None
    ]
    if elapsed_s and (values := column("cpu_s", divisor=elapsed_s)) is not None:
        rows.append(row("cores busy", values, "cores"))
    if not rows:
        return None
    places = _by_host(
        hosts, column("forward_p50_ms", "backward_p50_ms"), column("reduction_p50_ms")
    )
    return RankSpread(
        len(hosts),
        tuple(rows),
        tuple(places[:_MOST_HOSTS]) if len(places) > 1 else (),
        max(0, len(places) - _MOST_HOSTS),
    )


def _by_host(
    hosts: Sequence[Any], computing: list[float] | None, reduction: list[float] | None
) -> list[tuple[str, int, str, str]]:
    if computing is None or reduction is None:
        return []
    ranks_of: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks_of.setdefault(show(host), []).append(rank)
    means_ms = {
        host: [fmean(values[rank] for rank in ranks) for values in (computing, reduction)]
        for host, ranks in ranks_of.items()
    }
    return [
        (host, len(ranks_of[host]), amount(computing_ms, "ms"), amount(reduction_ms, "ms"))
        for host, (computing_ms, reduction_ms) in sorted(
            means_ms.items(), key=lambda item: -item[1][0]
        )
    ]
