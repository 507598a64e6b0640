"""The charts of a page. To add one: a function that finds what to draw, and a row of CHARTS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config.finding import number
from .breakdown import PHASES
from .charts import Plot, Series, draw_lines, finish, page_chart
from .compare import letter
from .run_folder import Subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]
Draw = Callable[["Axes"], None]


class Chart(NamedTuple):
    """A chart of a section of report.html.j2 or compare.html.j2."""

    section: str
    """The id of the section."""
    title: str
    unit: str
    find: Callable[[Sequence[Subject]], Draw | None]
    """Finds the data of the subjects and returns what draws them; None where there are none."""


def page_charts(subjects: Sequence[Subject], *sections: str) -> dict[str, list[Plot]]:
    """Draw the charts of a page, by section; `sections`: only these."""
    plots: dict[str, list[Plot]] = {chart.section: [] for chart in CHARTS}
    for chart in CHARTS:
        if not sections or chart.section in sections:
            draw = chart.find(subjects)
            if draw is not None:
                drawn = page_chart(chart.title, draw)
                plots[chart.section].append(Plot(chart.title, chart.unit, drawn))
    return plots


def _overlaid(
    subjects: Sequence[Subject], find: Callable[[Subject], Sequence[Points]], **choices: Any
) -> Draw | None:
    """The lines that `find` has of each subject, a colour a subject, as `draw_lines` draws them."""
    labels = [letter(place) for place in range(len(subjects))] if len(subjects) > 1 else ["_"]
    series = [Series(label, find(one)) for label, one in zip(labels, subjects, strict=True)]
    if all(len(line) < 2 for one in series for line in one.lines):  # a point is a number
        return None
    return partial(draw_lines, series=series, **choices)


def _accuracy(subjects: Sequence[Subject], by: str, x_label: str) -> Draw | None:
    """Accuracy; `by`: the field of an evaluation on the horizontal axis."""

    def find(subject: Subject) -> Sequence[Points]:
        return [
            sorted(
                (at, one.accuracy)
                for one in run.evaluations
                if (at := getattr(one, by)) is not None and at >= 0
            )
            for run in subject.runs
        ]

    targets = dict.fromkeys(run.target for run in subjects[0].runs)
    marks = [(f"target {target:g}", target) for target in targets]
    spread_x = by == "time_s"
    return _overlaid(
        subjects, find, x_label=x_label, marks=marks, from_zero=True, spread_x=spread_x
    )


def _throughput(subjects: Sequence[Subject]) -> Draw | None:
    """Images per second as measured; of a bare log those of its epochs."""

    def find(subject: Subject) -> Sequence[Points]:
        points = _pairs(_records(subject, "train"), "time_s", "images_per_s")
        run = subject.shown.figures if subject.shown else None
        if not points and run is not None and run.train_samples is not None:
            points = [
                (one.stop_s, run.train_samples * one.epochs / one.duration_s)
                for one in run.epochs
                if one.duration_s > 1e-6
            ]
        return [points]

    return _overlaid(
        subjects, find, x_label="seconds after run_start", from_zero=True, spread_x=True
    )


def _logged(subjects: Sequence[Subject], key: str, *, from_zero: bool = True) -> Draw | None:
    """A number of the log points by epoch; a setting (from zero) only if it ever changed."""

    def find(subject: Subject) -> Sequence[Points]:
        points = _pairs(_records(subject, "train"), "epoch", key)
        changed = len({value for _, value in points}) > 1
        return [points] if changed else []

    return _overlaid(subjects, find, x_label="epoch", from_zero=from_zero)


def _phases(subjects: Sequence[Subject]) -> Draw | None:
    """The medians of a step's phases, one upon another, of the first subject."""
    records = _records(subjects[0], "steps")
    lines = {name: _pairs(records, "step", f"{name}_p50_ms") for name in PHASES}
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


def _step_times(subjects: Sequence[Subject]) -> Draw | None:
    """Median, 90th percentile and longest step between log points, of the first subject."""
    names = {"step_p50_ms": "median", "step_p90_ms": "90th percentile", "step_max_ms": "longest"}
    records = _records(subjects[0], "steps")
    series = [Series(name, [_pairs(records, "step", key)]) for key, name in names.items()]
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
    Chart(
        "training",
        "Training loss",
        "mean over all ranks",
        partial(_logged, key="loss", from_zero=False),
    ),
    Chart("step", "Where a step goes", "ms, rank 0", _phases),
    Chart("step", "Time of a step", "ms, rank 0", _step_times),
    *(
        Chart("schedule", title, "as run", partial(_logged, key=key))
        for key, title in (
            ("lr", "Learning rate"),
            ("momentum", "Momentum"),
            ("global_batch_size", "Global batch"),
        )
    ),
)


def _records(subject: Subject, kind: str) -> list[dict[str, Any]]:
    return subject.folder.records(kind) if subject.folder else []


def _pairs(records: Iterable[dict[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    """Return (x, y) of the records that have both as numbers, x rising."""
    return sorted(
        (a, b)
        for record in records
        if (a := number(record.get(x))) is not None and (b := number(record.get(y))) is not None
    )
