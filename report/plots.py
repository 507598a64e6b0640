"""The charts of a report: accuracy, loss, throughput, schedule. Each with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from .charts import Mark, Series, line_chart
from .compare import Comparison
from .phases import Course, course, pairs
from .run_folder import Subject
from .run_summary import RunSummary

_SETTINGS = (
    ("lr", "Learning rate"),
    ("momentum", "Momentum"),
    ("global_batch_size", "Global batch"),
)


class Plot(NamedTuple):
    """A chart with the sentence above it."""

    title: str
    unit: str
    chart: Markup


class Schedule(NamedTuple):
    """Settings that moved, as charts, and those that did not."""

    plots: tuple[Plot, ...]
    constants: tuple[Course, ...]


def accuracy_plots(comparison: Comparison) -> list[Plot]:
    """Accuracy against epochs and against time, all subjects in each."""
    by_epoch = [
        _accuracy(subject, letter, i, "epoch")
        for i, (letter, subject) in enumerate(_named(comparison))
    ]
    by_time = [
        _accuracy(subject, letter, i, "time_s")
        for i, (letter, subject) in enumerate(_named(comparison))
    ]
    targets = dict.fromkeys(run.target for run in comparison.subjects[0].runs)
    marks = [Mark(f"target {target:g}", target) for target in targets]
    plots = []
    for slug, title, series, x_label in (
        ("accuracy-epoch", "Top-1 accuracy by epoch", by_epoch, "epoch"),
        ("accuracy-time", "Top-1 accuracy by time", by_time, "seconds after run_start"),
    ):
        drawn = [one for one in series if one.lines]
        chart = line_chart(
            slug,
            title,
            drawn,
            x_label=x_label,
            marks=marks,
            from_zero=True,
            spread_x=slug == "accuracy-time",
        )
        if chart:
            plots.append(Plot(title, "fraction of the evaluation images", chart))
    return plots


def training_plots(train: Sequence[dict[str, Any]], run: RunSummary | None) -> list[Plot]:
    """Throughput and loss as measured; for a bare log the throughput of its epochs."""
    rates = pairs(train, "time_s", "images_per_s") or _rates_of_epochs(run)
    losses = pairs(train, "epoch", "loss")
    candidates = (
        ("throughput", "Throughput", "images/s", rates, "seconds after run_start", True),
        ("loss", "Training loss", "mean over all ranks", losses, "epoch", False),
    )
    return [
        Plot(
            title,
            unit,
            line_chart(slug, title, [Series(title, (points,))], x_label=x, from_zero=zero),
        )
        for slug, title, unit, points, x, zero in candidates
        if len(points) > 1
    ]


def schedule_plots(train: Sequence[dict[str, Any]]) -> Schedule:
    """Learning rate, momentum and batch as the steps used them."""
    found = [c for key, name in _SETTINGS if (c := course(train, key, name)) is not None]
    plots = [
        Plot(
            one.name,
            "as run",
            line_chart(
                one.name.lower().replace(" ", "-"),
                one.name,
                [Series(one.name, (one.points,))],
                x_label="epoch",
                from_zero=True,
            ),
        )
        for one in found
        if one.constant is None
    ]
    return Schedule(tuple(plots), tuple(one for one in found if one.constant is not None))


def _named(comparison: Comparison) -> list[tuple[str, Subject]]:
    return list(zip(comparison.letters, comparison.subjects, strict=True))


def _accuracy(subject: Subject, letter: str, style: int, x: str) -> Series:
    lines = []
    for run in subject.runs:
        points = [
            (float(place), one.accuracy)
            for one in run.evaluations
            if (place := getattr(one, x)) is not None and place >= 0
        ]
        if points:
            lines.append(tuple(sorted(points)))
    return Series(letter, tuple(lines), style, dots=True)


def _rates_of_epochs(run: RunSummary | None) -> tuple[tuple[float, float], ...]:
    """(end of the epoch or block, images/s during it)."""
    samples = run.parameters.get("train_samples") if run else None
    if run is None or not isinstance(samples, int):
        return ()
    return tuple(
        (one.stop_s, samples * one.epochs / one.duration_s)
        for one in run.epochs
        if one.duration_s > 1e-6
    )
