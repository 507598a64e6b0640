"""The charts of a page. To add one: a function that finds what to draw, and a row of CHARTS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from ..config.plan import build_plan
from ..host.errors import UserError
from ..host.finding import number
from ..host.reading import JsonObject
from ..train.schedule import step_settings
from .breakdown import PHASES
from .charts import (
    DOTS_UP_TO,
    LARGEST,
    Points,
    Series,
    draw_lines,
    finish,
    page_chart,
    thinned,
)
from .norms import NORM_RATIO, norm_ratios
from .published import published_curves
from .run_records import Subject
from .run_summary import RunSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Subjects = Sequence[tuple[str, Subject]]
"""Subjects with their names in a legend; those of one name have one colour."""
Draw = Callable[["Axes"], None]


class Chart(NamedTuple):
    """A chart of a section of report.html.j2 or compare.html.j2."""

    section: str
    """The id of the section."""
    title: str
    unit: str
    find: Callable[[Subjects], Draw | None]
    """Finds the data of the subjects and returns what draws them; None where there are none."""


Plots = dict[str, list[tuple[Chart, Markup]]]
"""The charts of a page and their images, by section."""


def page_charts(subjects: Subjects, *sections: str) -> Plots:
    """Draw the charts of a page, by section; `sections`: only these; none: all."""
    plots: Plots = {chart.section: [] for chart in CHARTS}
    for chart in CHARTS:
        if not sections or chart.section in sections:
            draw = chart.find(subjects)
            if draw is not None:
                plots[chart.section].append((chart, page_chart(chart.title, draw)))
    return plots


def _overlaid(
    subjects: Subjects,
    find: Callable[[Subject], Sequence[Points]],
    references: Mapping[str, Sequence[Points]] | None = None,
    **choices: Any,
) -> Draw | None:
    """The lines that `find` has of each subject, a colour a name, as `draw_lines` draws them, and
    dashed `references`."""
    lines: dict[str, list[Points]] = {}
    count = 0
    for name, subject in subjects:
        of_subject = find(subject)
        lines.setdefault(name, []).extend(of_subject)
        count += sum(map(len, of_subject))
    series = [Series(*line) for line in lines.items()]
    for label, runs in (references or {}).items():
        count += sum(map(len, runs))
        series.append(Series(label, runs, is_reference=True))
    if count < 2:  # a point is a number
        return None
    return partial(draw_lines, series=series, **choices)


def _curves(subject: Subject, by: str, low: float = -math.inf) -> list[Points]:
    """The accuracies of its runs, from `low` on; `by`: the field of an evaluation on the horizontal
    axis."""
    curves: list[Points] = []
    for run in subject.runs:
        points = []
        for evaluation in run.evaluations:
            x = getattr(evaluation, by)
            if x is not None and x >= 0 and evaluation.accuracy >= low:
                points.append((x, evaluation.accuracy))
        curves.append(sorted(points))
    return curves


def _references(subjects: Subjects, low: float = 0.0) -> dict[str, list[Points]]:
    """The published curves of the subjects' presets, from an accuracy on."""
    references: dict[str, list[Points]] = {}
    for _, subject in subjects:
        for label, runs in published_curves(subject).items():
            references[label] = [
                [point for point in run if point[1] >= low] for run in runs
            ]
    return references


def _accuracy(subjects: Subjects, by: str, x_label: str) -> Draw | None:
    """All of the curves."""
    targets = dict.fromkeys(run.target for run in _runs(subjects))
    return _overlaid(
        subjects,
        partial(_curves, by=by),
        _references(subjects) if by == "epoch" else None,
        x_label=x_label,
        marks=list(map(_mark, targets)),
        y_limits=(0, None),
    )


def _runs(subjects: Subjects) -> list[RunSummary]:
    return [run for _, subject in subjects for run in subject.runs]


def _mark(target: float) -> tuple[str, float]:
    return f"target {target:g}", target


_NEAR = 0.02
_ABOVE_BEST = 0.005


def _near_the_target(subjects: Subjects) -> Draw | None:
    """The ends of the curves that come near to the highest target; None where none does, or all of
    every curve is near."""
    runs = _runs(subjects)
    target = max((run.target for run in runs), default=1.0)
    accuracies = [point.accuracy for run in runs for point in run.evaluations]
    # of runs that all begin near the target the first chart is the same
    low = target - _NEAR
    best = max(accuracies, default=0.0)
    if best < low or min(accuracies, default=low) >= low:
        return None
    return _overlaid(
        subjects,
        partial(_curves, by="epoch", low=low),
        _references(subjects, low),
        x_label="epoch",
        marks=[_mark(target)],
        y_limits=(low, max(best, target) + _ABOVE_BEST),
    )


def _logged(subjects: Subjects, key: str, lowest: float | None = 0) -> Draw | None:
    """A number of the log points by epoch, if it ever changed; `lowest`: where the y axis
    begins."""

    def find(subject: Subject) -> Sequence[Points]:
        """The one line of a subject, if its values differ."""
        points = _pairs(subject.folder.records("train"), "epoch", key)
        if len({value for _, value in points}) > 1:
            return [points]
        return []

    return _overlaid(subjects, find, x_label="epoch", y_limits=(lowest, None))


_PLANNED_POINTS = 500


def _learning_rate(subjects: Subjects) -> Draw | None:
    """The learning rate of the first subject: as planned a line, the log points on it."""
    _, subject = subjects[0]
    planned = _planned(subject)
    if len({lr for _, lr in planned}) < 2:
        return _logged(subjects, "lr")
    points = _pairs(subject.folder.records("train"), "epoch", "lr")

    def draw(axes: Axes) -> None:
        """Draw the plan as a line and the log points on it."""
        epochs, rates = zip(*planned, strict=True)
        axes.plot(epochs, rates, lw=1.5, label="planned")
        if points:
            epochs, rates = zip(*points, strict=True)
            axes.plot(epochs, rates, "o", ms=4, label="as run")
        axes.set_xlabel("epoch")
        axes.set_ylim(bottom=0)
        finish(axes)

    return draw


def _planned(subject: Subject) -> Points:
    """(epoch, learning rate) of its config's steps: the first, the last, the one at the end of the
    warm-up, and those between in even distance."""
    run = subject.config
    if run is None:
        return []
    try:
        plan = build_plan(run)
    except UserError:  # such as a config that was edited
        return []
    # the trainer's own function, so that the plan is what it does
    settings_at = step_settings(run, plan)
    last = plan.last_step
    stride = math.ceil(last / _PLANNED_POINTS)
    steps = {*range(1, last + 1, stride), plan.warmup_steps, last} - {0}
    return [(plan.epoch_at(step), settings_at(step).lr) for step in sorted(steps)]


def _phases(subjects: Subjects) -> Draw | None:
    """The medians of a step's phases, one upon another, of the first subject."""
    records = subjects[0][1].folder.records("steps")
    lines = [_pairs(records, "step", f"{name}_p50_ms") for name in PHASES]
    # stacked: each phase needs a value at each step
    steps_of_lines = {tuple(step for step, _ in line) for line in lines}
    if len(steps_of_lines) > 1 or len(lines[0]) < 2:
        return None

    def draw(axes: Axes) -> None:
        """Draw the phases, one upon another."""
        steps = [step for step, _ in lines[0]]
        heights = [[height for _, height in line] for line in lines]
        axes.stackplot(steps, heights, labels=list(PHASES))
        axes.set(xlabel="step", ylim=(0, None))
        finish(axes)

    return draw


def _norms_by_layer(subjects: Subjects) -> Draw | None:
    """The ratio of the norms of each layer of the first subject, at the first, the middle and the
    last step that has them."""
    rows = norm_ratios(subjects[0][1].folder.records(NORM_RATIO))
    if not rows:
        return None
    chosen = {row.step: row for row in (rows[0], rows[len(rows) // 2], rows[-1])}
    lines = {f"step {step:g}": row.by_layer for step, row in chosen.items()}
    layers = range(1, 1 + max(map(len, lines.values())))
    return partial(_logarithmic, x=layers, lines=lines, x_label="layer, first to last")


def _norms_by_step(subjects: Subjects) -> Draw | None:
    """The largest, the median and the smallest of these ratios, by step."""
    rows = norm_ratios(subjects[0][1].folder.records(NORM_RATIO))
    if len(rows) < 2:
        return None
    lines = {
        "largest": [max(row.numbers) for row in rows],
        "median": [median(row.numbers) for row in rows],
        "smallest": [min(row.numbers) for row in rows],
    }
    steps = [row.step for row in rows]
    return partial(_logarithmic, x=steps, lines=lines, x_label="step")


def _logarithmic(
    axes: Axes, x: Sequence[float], lines: Mapping[str, Sequence[float]], x_label: str
) -> None:
    for name, line in lines.items():
        marker = "o" if len(line) <= DOTS_UP_TO else ""
        axes.plot(x[: len(line)], line, marker=marker, ms=2, lw=1, label=name)
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    finish(axes)


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
    Chart(
        "accuracy",
        "Top-1 accuracy near the target",
        "fraction of the evaluation images",
        _near_the_target,
    ),
    Chart("training", "Throughput", "images/s", partial(_logged, key="images_per_s")),
    Chart(
        "training",
        "Training loss",
        "mean of ranks",
        partial(_logged, key="loss", lowest=None),
    ),
    Chart("norms", "Norm ratio by layer", "|w| / |g|", _norms_by_layer),
    Chart("norms", "Norm ratio by step", "|w| / |g|, over the layers", _norms_by_step),
    Chart("step", "Phases of a step", "ms, rank 0", _phases),
    Chart("schedule", "Learning rate", "as planned; points: as run", _learning_rate),
    Chart("schedule", "Momentum", "as run", partial(_logged, key="momentum")),
    Chart(
        "schedule", "Global batch", "as run", partial(_logged, key="global_batch_size")
    ),
)


def _pairs(records: Iterable[JsonObject], x: str, y: str) -> list[tuple[float, float]]:
    """Return (x, y) of the records that have both as numbers that can be drawn, x rising, as many
    as a chart has across."""
    points = []
    for record in records:
        x_value = number(record.get(x))
        value = number(record.get(y))
        if x_value is None or value is None:
            continue
        if max(abs(x_value), abs(value)) < LARGEST:
            points.append((x_value, value))
    return thinned(sorted(points))
