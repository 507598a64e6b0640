"""The charts of a report and of a comparison: accuracy, loss, throughput, schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from ..config.errors import UserError
from .charts import MOST_WITHIN, PANEL_IN, Series, draw_lines, new_panels, page_chart, save
from .compare import Comparison
from .compare_view import name_of
from .phases import Course, course, pairs
from .run_summary import RunSummary

_SETTINGS = (
    ("lr", "Learning rate"),
    ("momentum", "Momentum"),
    ("global_batch_size", "Global batch"),
)
_PLACES = {"epoch": "epoch", "time_s": "seconds after run_start"}
"""What accuracy is drawn against: field of an evaluation -> name of the axis."""
_LONGEST = 40
_LEGEND_LINE_IN = 0.18


class Plot(NamedTuple):
    """A chart with the sentence above it."""

    title: str
    unit: str
    chart: Markup


class Schedule(NamedTuple):
    """Settings that moved, as charts, and those that did not."""

    plots: tuple[Plot, ...]
    constants: tuple[Course, ...]


def write_plot(comparison: Comparison, path: Path) -> None:
    """Write the curves of `rn50 log compare`: accuracy by epoch and by time. Raises UserError: no
    subject has an evaluation with an epoch or a time."""
    names = zip(comparison.letters, map(name_of, comparison.subjects), strict=True)
    labels = [f"{letter} {name}"[:_LONGEST] for letter, name in names]
    figure, panels = new_panels(len(_PLACES), 4.8)
    found = [_accuracy(comparison, place, labels) for place in _PLACES]
    if not any(found):
        raise UserError("--plot: a log with evaluations expected, found none")
    many = len(labels) >= MOST_WITHIN
    for axes, series, (place, x_label) in zip(panels, found, _PLACES.items(), strict=True):
        draw_lines(
            *(axes, series),
            x_label=x_label,
            marks=_targets(comparison),
            spread_x=place == "time_s",
            legend=not many,
        )
        axes.set(ylabel="top-1 accuracy", ylim=(0, 1))
        if axes.get_xscale() == "linear":
            axes.set_xlim(left=0)
    if many:  # one for both panels
        handles, names_shown = panels[0].get_legend_handles_labels()
        figure.set_figheight(PANEL_IN + _LEGEND_LINE_IN * math.ceil(len(names_shown) / 3))
        figure.legend(handles, names_shown, loc="outside lower center", ncols=3)
    save(figure, path)


def accuracy_plots(comparison: Comparison) -> list[Plot]:
    """Accuracy against epochs and against time, all subjects in each."""
    plots = []
    for place, x_label in _PLACES.items():
        title = f"Top-1 accuracy by {place.removesuffix('_s')}"
        series = _accuracy(comparison, place, comparison.letters)
        if any(len(line) > 1 for one in series for line in one.lines):  # a point is a number
            draw = partial(
                draw_lines,
                series=series,
                x_label=x_label,
                marks=_targets(comparison),
                from_zero=True,
                spread_x=place == "time_s",
            )
            chart = page_chart(f"accuracy-{place}", title, draw)
            plots.append(Plot(title, "fraction of the evaluation images", chart))
    return plots


def training_plots(train: Sequence[dict[str, Any]], run: RunSummary | None) -> list[Plot]:
    """Throughput and loss as measured; for a bare log the throughput of its epochs."""
    rates = pairs(train, "time_s", "images_per_s") or _rates_of_epochs(run)
    losses = pairs(train, "epoch", "loss")
    candidates = (
        ("Throughput", "images/s", rates, "seconds after run_start", True),
        ("Training loss", "mean over all ranks", losses, "epoch", False),
    )
    return [
        _line(title, unit, points, x_label, from_zero=zero)
        for title, unit, points, x_label, zero in candidates
        if len(points) > 1
    ]


def schedule_plots(train: Sequence[dict[str, Any]]) -> Schedule:
    """Learning rate, momentum and batch as the steps used them."""
    found = [c for key, name in _SETTINGS if (c := course(train, key, name)) is not None]
    return Schedule(
        tuple(
            _line(c.name, "as run", c.points, "epoch", from_zero=True)
            for c in found
            if c.constant is None
        ),
        tuple(c for c in found if c.constant is not None),
    )


def _line(
    title: str, unit: str, points: Sequence[tuple[float, float]], x_label: str, *, from_zero: bool
) -> Plot:
    draw = partial(
        draw_lines, series=[Series(title, [points])], x_label=x_label, from_zero=from_zero
    )
    return Plot(title, unit, page_chart(title.lower().replace(" ", "-"), title, draw))


def _accuracy(comparison: Comparison, place: str, labels: Sequence[str]) -> list[Series]:
    """The curves of each subject that has any; empty where none has."""
    series = []
    for label, subject in zip(labels, comparison.subjects, strict=True):
        lines = [
            sorted(
                (at, one.accuracy)
                for one in run.evaluations
                if (at := getattr(one, place)) is not None and at >= 0
            )
            for run in subject.runs
        ]
        series.append(Series(label, [line for line in lines if line]))
    return series if any(one.lines for one in series) else []


def _targets(comparison: Comparison) -> list[tuple[str, float]]:
    targets = dict.fromkeys(run.target for run in comparison.subjects[0].runs)
    return [(f"target {target:g}", target) for target in targets]


def _rates_of_epochs(run: RunSummary | None) -> tuple[tuple[float, float], ...]:
    """(end of the epoch or block, images/s during it)."""
    samples = run.train_samples if run else None
    if run is None or samples is None:
        return ()
    return tuple(
        (one.stop_s, samples * one.epochs / one.duration_s)
        for one in run.epochs
        if one.duration_s > 1e-6
    )
