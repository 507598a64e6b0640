"""The plots of a sweep as SVG, byte for byte the same from the same trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import log10
from typing import TYPE_CHECKING, Any, NamedTuple

from ..report.charts import INK, finish, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Trials = Sequence[Mapping[str, Any]]


class Search(NamedTuple):
    """A search as its plots need it."""

    trials: Trials
    keys: Sequence[str]
    """Parameters, in the order of the definition."""
    log_keys: Sequence[str]
    importances: Mapping[str, float]
    label: str
    """The objective with its unit."""
    maximize: bool


def draw_plots(search: Search) -> dict[str, Figure]:
    """The plots by name, each a figure of its own."""
    figures = {name: new_figure(*size(search)) for name, (_, size) in PLOTS.items()}
    for name, (draw, _) in PLOTS.items():
        draw(search, figures[name].subplots())
    return figures


def draw_together(search: Search) -> Figure:
    """All plots in one figure, one below the other."""
    widths, heights = zip(*(size(search) for _, size in PLOTS.values()), strict=True)
    figure = new_figure(max(widths), sum(heights))
    panels = figure.subplots(len(PLOTS), 1, height_ratios=heights)
    for axes, (draw, _) in zip(panels, PLOTS.values(), strict=True):
        draw(search, axes)
    return figure


def _history(search: Search, axes: Axes) -> None:
    """The objective of each trial, the best so far, and where trials were pruned or failed."""
    trials = search.trials
    done = [(t["trial"], t["value"]) for t in trials if t["value"] is not None]
    if done:
        numbers, values = zip(*done, strict=True)
        best = list(accumulate(values, max if search.maximize else min))
        axes.plot(numbers, values, "o", label="complete")
        axes.step(numbers, best, where="post", color="C0", alpha=0.6, label="best so far")
    for state, mark, colour in (("pruned", "|", "C1"), ("fail", "x", "C3")):
        found = [t["trial"] for t in trials if t["state"] == state]
        if found:
            low = [0.03] * len(found), axes.get_xaxis_transform()  # along the bottom
            axes.plot(found, low[0], mark, color=colour, transform=low[1], label=state)
    axes.set(xlabel="trial", ylabel=search.label)
    axes.locator_params(axis="x", integer=True)
    finish(axes)


def _importances(search: Search, axes: Axes) -> None:
    """A bar for each parameter; too few trials say so."""
    importances = search.importances
    if importances:
        keys = list(importances)[::-1]
        bars = axes.barh(keys, [importances[key] for key in keys], height=0.6)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axes.set(xlim=(0, 1.1), xlabel="importance for the best tenth (PED-ANOVA)")
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "needs four complete trials that differ", ha="center", va="center")


def _parallel(search: Search, axes: Axes) -> None:
    """One line a complete trial through its parameters to its value; the best in colour.

    Each axis goes from its smallest to its largest value; choices in the order they appear in.
    """
    from matplotlib import colormaps

    keys = search.keys
    done = [t for t in search.trials if t["value"] is not None]
    names = [*keys, search.label]
    columns = [[t["parameters"][key] for t in done] for key in keys]
    columns.append([t["value"] for t in done])
    scaled = [place(c, log=n in search.log_keys) for n, c in zip(names, columns, strict=True)]
    order = sorted(range(len(done)), key=lambda i: done[i]["value"], reverse=not search.maximize)
    for rank, i in enumerate(order):  # the best last, on top
        is_best = rank == len(order) - 1
        axes.plot(
            [column[i] for column in scaled],
            color=colormaps["viridis"](rank / max(1, len(order) - 1)),
            lw=2.2 if is_best else 1.0,
            alpha=0.9,
        )
    for x, column in enumerate(columns):
        axes.axvline(x, color=INK, lw=0.8, alpha=0.5)
        for value, y in sorted(set(zip(map(_text, column), scaled[x], strict=True))):
            if len(set(map(_text, column))) <= 6 or y in (0.0, 1.0):
                axes.text(x + 0.03, y, value, fontsize=7, va="center")
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(names) - 0.6)
    axes.spines[:].set_visible(False)


PLOTS: dict[str, tuple[Callable[[Search, Axes], None], Callable[[Search], tuple[float, float]]]] = {
    "history": (_history, lambda search: (7.0, 3.6)),
    "parallel": (_parallel, lambda search: (max(6.0, 1.9 * (len(search.keys) + 1)), 4.0)),
    "importance": (_importances, lambda search: (7.0, 1.2 + 0.35 * len(search.importances))),
}
"""Plot -> what draws it, and its inches."""


def place(column: Sequence[Any], *, log: bool) -> list[float]:
    """Values as places from 0 to 1 on their axis; all equal: the middle."""
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in column)
    if not numeric:
        kinds = list(dict.fromkeys(map(repr, column)))
        column, log = [kinds.index(repr(value)) for value in column], False
    if log:
        column = [log10(value) for value in column]
    low, high = min(column, default=0), max(column, default=0)
    return [0.5 if high == low else (value - low) / (high - low) for value in column]


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
