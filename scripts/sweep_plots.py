"""The plots of a sweep as SVG, byte for byte the same from the same trials."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import log10
from pathlib import Path
from typing import Any

from ..data.atomic import write_output

Trials = Sequence[Mapping[str, Any]]


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "rn50"
    from matplotlib import pyplot

    return pyplot


def figure_axes(panels: int) -> tuple[Any, Any]:
    """A figure with that many panels side by side."""
    figure, axes = _pyplot().subplots(
        1, panels, figsize=(3.6 * panels, 3.6), squeeze=False, layout="constrained"
    )
    return figure, axes[0]


def save(figure: Any, path: Path) -> None:
    """Write a figure and close it."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    _pyplot().close(figure)
    write_output(path, text.getvalue())


def draw_history(trials: Trials, label: str, path: Path, *, maximize: bool) -> None:
    """The objective of each trial, the best so far, and where trials were pruned or failed."""
    figure, axes = _pyplot().subplots(figsize=(7, 3.6), layout="constrained")
    done = [(t["trial"], t["value"]) for t in trials if t["value"] is not None]
    if done:
        numbers, values = zip(*done, strict=True)
        best = list(accumulate(values, max if maximize else min))
        axes.plot(numbers, values, "o", label="complete")
        axes.step(numbers, best, where="post", color="C0", alpha=0.6, label="best so far")
    for state, mark, colour in (("pruned", "|", "C1"), ("fail", "x", "C3")):
        found = [t["trial"] for t in trials if t["state"] == state]
        if found:
            transform = axes.get_xaxis_transform()
            axes.plot(
                *(found, [0.03] * len(found), mark),
                color=colour,
                transform=transform,
                label=state,
            )
    axes.set(xlabel="trial", ylabel=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def draw_importances(importances: Mapping[str, float], path: Path) -> None:
    """A bar for each parameter; too few trials say so."""
    height = 1.2 + 0.35 * len(importances)
    figure, axes = _pyplot().subplots(figsize=(7, height), layout="constrained")
    if importances:
        keys = list(importances)[::-1]
        bars = axes.barh(keys, [importances[key] for key in keys], height=0.6)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axes.set(xlim=(0, 1.1), xlabel="importance for the best tenth (PED-ANOVA)")
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "needs four complete trials that differ", ha="center", va="center")
    save(figure, path)


def draw_parallel(
    trials: Trials,
    keys: Sequence[str],
    label: str,
    path: Path,
    *,
    log_keys: Sequence[str],
    maximize: bool,
) -> None:
    """One line a complete trial through its parameters to its value; the best in colour.

    Each axis goes from its smallest to its largest value; choices in the order they appear in.
    """
    pyplot = _pyplot()
    done = [t for t in trials if t["value"] is not None]
    figure, axes = pyplot.subplots(
        figsize=(max(6.0, 1.9 * (len(keys) + 1)), 4), layout="constrained"
    )
    names = [*keys, label]
    columns = [[t["parameters"][key] for t in done] for key in keys]
    columns.append([t["value"] for t in done])
    scaled = [
        place(column, log=key in log_keys) for key, column in zip(names, columns, strict=True)
    ]
    order = sorted(range(len(done)), key=lambda i: done[i]["value"], reverse=not maximize)
    colours = pyplot.get_cmap("viridis")
    for rank, i in enumerate(order):  # the best last, on top
        share = rank / max(1, len(order) - 1)
        axes.plot(
            range(len(names)),
            [column[i] for column in scaled],
            color=colours(share),
            lw=2.2 if rank == len(order) - 1 else 1.0,
            alpha=0.9,
        )
    for x, column in enumerate(columns):
        axes.axvline(x, color="grey", lw=0.8)
        for value, y in sorted(set(zip(map(_text, column), scaled[x], strict=True))):
            if len(set(map(_text, column))) <= 6 or y in (0.0, 1.0):
                axes.text(x + 0.03, y, value, fontsize=7, va="center")
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks([])
    axes.set_xlim(-0.1, len(names) - 0.6)
    for spine in axes.spines.values():
        spine.set_visible(False)
    save(figure, path)


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
