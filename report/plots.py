"""The charts of a page. To add one: a function that finds what to draw, and a row of CHARTS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config.finding import number
from .breakdown import PHASES
from .charts import Plot, Series, draw_lines, draw_plot, finish
from .compare import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]
Draw = Callable[["Axes"], None]


class Chart(NamedTuple):
    """A chart of a section of report.html.j2, about the first subject of a comparison."""

    section: str
    """The id of the section."""
    title: str
    unit: str
    find: Callable[[Comparison], Draw | None]
    """Finds the data and returns what draws them; None where there are none."""


def page_charts(comparison: Comparison, *sections: str) -> dict[str, list[Plot]]:
    """Draw the charts of a page, by section; `sections`: only these."""
    plots: dict[str, list[Plot]] = {chart.section: [] for chart in CHARTS}
    for chart in CHARTS:
        if not sections or chart.section in sections:
            draw = chart.find(comparison)
            if draw is not None:
                plots[chart.section].append(draw_plot(chart.title, chart.unit, draw))
    return plots


def _accuracy(comparison: Comparison, by: str, x_label: str) -> Draw | None:
    """Accuracy of all subjects; `by`: the field of an evaluation on the horizontal axis."""
    series = []
    for label, subject in zip(comparison.letters, comparison.subjects, strict=True):
        lines = [
            sorted(
                (at, one.accuracy)
                for one in run.evaluations
                if (at := getattr(one, by)) is not None and at >= 0
            )
            for run in subject.runs
        ]
        series.append(Series(label, [line for line in lines if line]))
    if all(len(line) < 2 for one in series for line in one.lines):  # a point is a number
        return None
    targets = dict.fromkeys(run.target for run in comparison.subjects[0].runs)
    return partial(
        draw_lines,
        series=series,
        x_label=x_label,
        marks=[(f"target {target:g}", target) for target in targets],
        from_zero=True,
        spread_x=by == "time_s",
    )


def _throughput(comparison: Comparison) -> Draw | None:
    """Images per second as measured; of a bare log those of its epochs."""
    points = pairs(_records(comparison, "train"), "time_s", "images_per_s")
    shown = comparison.subjects[0].shown
    run = shown.figures if shown else None
    if not points and run is not None and run.train_samples is not None:
        points = [
            (one.stop_s, run.train_samples * one.epochs / one.duration_s)
            for one in run.epochs
            if one.duration_s > 1e-6
        ]
    return _line("Throughput", points, "seconds after run_start", from_zero=True)


def _loss(comparison: Comparison) -> Draw | None:
    points = pairs(_records(comparison, "train"), "epoch", "loss")
    return _line("Training loss", points, "epoch", from_zero=False)


def _setting(comparison: Comparison, key: str, title: str) -> Draw | None:
    """A setting as the steps used it, if it ever changed."""
    points = pairs(_records(comparison, "train"), "epoch", key)
    changed = len({value for _, value in points}) > 1
    return _line(title, points, "epoch", from_zero=True) if changed else None


def _phases(comparison: Comparison) -> Draw | None:
    """The medians of a step's phases, one upon another."""
    records = _records(comparison, "steps")
    lines = {name: pairs(records, "step", f"{name}_p50_ms") for name in PHASES}
    points = max(map(len, lines.values()))
    if points < 2 or min(map(len, lines.values())) < points:
        return None

    def draw(axes: Axes) -> None:
        heights = [[height for _, height in line] for line in lines.values()]
        steps = [step for step, _ in lines["forward"]]
        axes.stackplot(steps, heights, labels=list(lines))
        axes.set(xlabel="step", ylim=(0, 1.35 * max(map(sum, zip(*heights, strict=True)))))
        finish(axes)

    return draw


def _step_times(comparison: Comparison) -> Draw | None:
    """Median, 90th percentile and longest step between log points."""
    names = {"step_p50_ms": "median", "step_p90_ms": "90th percentile", "step_max_ms": "longest"}
    records = _records(comparison, "steps")
    series = [Series(name, [pairs(records, "step", key)]) for key, name in names.items()]
    if len(series[0].lines[0]) < 2:
        return None
    return partial(draw_lines, series=series, x_label="step", from_zero=True)


CHARTS = (
    Chart(
        "accuracy",
        "Top-1 accuracy by epoch",
        "fraction of the evaluation images",
        partial(_accuracy, by="epoch", x_label="epoch"),
    ),
    Chart(
        "accuracy",
        "Top-1 accuracy by time",
        "fraction of the evaluation images",
        partial(_accuracy, by="time_s", x_label="seconds after run_start"),
    ),
    Chart("training", "Throughput", "images/s", _throughput),
    Chart("training", "Training loss", "mean over all ranks", _loss),
    Chart("step", "Where a step goes", "ms, rank 0", _phases),
    Chart("step", "Time of a step", "ms, rank 0", _step_times),
    *(
        Chart("schedule", title, "as run", partial(_setting, key=key, title=title))
        for key, title in (
            ("lr", "Learning rate"),
            ("momentum", "Momentum"),
            ("global_batch_size", "Global batch"),
        )
    ),
)


def _records(comparison: Comparison, kind: str) -> list[dict[str, Any]]:
    folder = comparison.subjects[0].folder
    return folder.records(kind) if folder else []


def pairs(records: Iterable[dict[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    """Return (x, y) of the records that have both as numbers, x rising."""
    return sorted(
        (a, b)
        for record in records
        if (a := number(record.get(x))) is not None and (b := number(record.get(y))) is not None
    )


def _line(title: str, points: Points, x_label: str, *, from_zero: bool) -> Draw | None:
    if len(points) < 2:
        return None
    series = [Series(title, [points])]
    return partial(draw_lines, series=series, x_label=x_label, from_zero=from_zero)
