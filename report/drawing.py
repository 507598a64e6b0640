"""The one style of every plot in a file: SVG, byte for byte the same from the same numbers.

Charts within a report are `report/charts.py`: they take their colours from the page.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..config.atomic import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN = 3.6
"""Inches of the side of a panel, where several stand side by side."""


def new_figure(width_in: float = 6.4, height_in: float = 3.8) -> Figure:
    """An empty figure. matplotlib loads here: 0.3 s that no other command needs."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained")


def new_panels(count: int, width_in: float = PANEL_IN) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `count` panels side by side."""
    figure = new_figure(width_in * count, PANEL_IN)
    return figure, figure.subplots(1, count, squeeze=False)[0]


def finish(axes: Axes, *, legend: bool = True) -> None:
    """Grid and legend as every panel has them."""
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def svg(figure: Figure) -> str:
    """The figure as text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "rn50"}):  # ids by content, not by chance
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write the figure where an option such as `--plot` says."""
    write_output(path, svg(figure))


def draw_measurements(
    measurements: Mapping[str, Mapping[str, Sequence[float]]],
    ratios: Mapping[str, Mapping[str, float]],
) -> Figure:
    """Repeated measurements of contenders as dots with their median, a panel a unit.

    Args:
        measurements: unit -> contender -> its values.
        ratios: what was divided -> its spread; in a panel of their own, with a line at 1.
    """
    counts = [len(values) for values in (*measurements.values(), ratios) if values]
    names = [name for values in (*measurements.values(), ratios) for name in values]
    heights = [0.9 + 0.3 * count for count in counts]
    figure = new_figure(5.0 + 0.06 * max(map(len, names)), sum(heights))
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (unit, values) in zip(axes, measurements.items(), strict=False):
        for place, found in enumerate(list(values.values())[::-1]):
            panel.plot(found, [place] * len(found), "o", color="C0", alpha=0.45, ms=4)
            panel.plot([median(found)], [place], "|", color="C1", ms=14, mew=2)
        _label_rows(panel, list(values), f"{unit} (each measurement; |: median)")
    if ratios:
        middle, bars = error_bars(list(ratios.values())[::-1])
        axes[-1].errorbar(
            middle, range(len(middle)), xerr=bars, fmt="|", color="C1", ecolor="C0", ms=14, mew=2
        )
        axes[-1].axvline(1, color="grey", ls=":", lw=1)
        _label_rows(axes[-1], list(ratios), "ratio (|: median; from least to most)")
    return figure


def _label_rows(axes: Axes, names: Sequence[str], label: str) -> None:
    """Names at the rows of a panel, the first at the top."""
    axes.set_yticks(range(len(names)), names[::-1], fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel(label, fontsize=9)
    finish(axes, legend=False)


def error_bars(spreads: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[list[float]]]:
    """(medians, [below, above]) of spreads with `median`, `min` and `max`."""
    middle = [one["median"] for one in spreads]
    below = [one["median"] - one["min"] for one in spreads]
    above = [one["max"] - one["median"] for one in spreads]
    return middle, [below, above]
