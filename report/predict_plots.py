"""Plots of a prediction as SVG: the curve over GPUs, the step, the algorithms, the overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.atomic import write_within
from ..config.errors import UserError
from ..scaling.predict import Prediction, curve
from ..scaling.step import ALGORITHMS, allreduce_curve
from .drawing import finish, new_figure, new_panels, save, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..scaling.validate import Row


def write_plots(answer: Prediction, folder: Path) -> list[Path]:
    """All plots into `folder`, made where it is missing, each in a file of its own."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--plots: {folder}: a folder expected: {error.strerror}") from None
    files = []
    for name, draw in PLOTS.items():
        figure = new_figure()
        draw(answer, figure.subplots())
        files.append(write_within(folder, f"{name}.svg", svg(figure)))
    return files


def write_plot(answer: Prediction, path: Path) -> None:
    """All plots as the panels of one figure."""
    figure = new_figure(12.0, 7.6)
    for axes, draw in zip(figure.subplots(2, 2).flat, PLOTS.values(), strict=True):
        draw(answer, axes)
    save(figure, path)


def write_validation(rows: Sequence[Row], path: Path) -> None:
    """Published against predicted, a panel for steps and one for times to train."""
    units = {"step": "ms a step", "time": "s to train"}
    figure, panels = new_panels(len(units), 4.4)
    for axes, (kind, unit) in zip(panels, units.items(), strict=True):
        for calibrated, mark, label in ((False, ".", "predicted"), (True, "x", "calibrated on")):
            mine = [row for row in rows if row.kind == kind and row.calibrated == calibrated]
            published = [row.published for row in mine]
            axes.plot(published, [row.predicted for row in mine], mark, alpha=0.6, label=label)
        ends = [row.published for row in rows if row.kind == kind]
        line = [min(ends), max(ends)]
        axes.plot(line, line, color="grey", lw=1, label="equal")
        for factor in (0.9, 1.1):
            ten = [factor * end for end in line]
            name = "10 % off" if factor < 1 else None
            axes.plot(line, ten, color="grey", lw=0.7, ls=":", label=name)
        axes.set(xscale="log", yscale="log", xlabel=f"published, {unit}", ylabel=f"ours, {unit}")
        finish(axes)
    save(figure, path)


def _time_against_gpus(answer: Prediction, axes: Axes) -> None:
    points = curve(answer)
    gpus = [point.job.gpus for point in points]
    axes.loglog(gpus, [p.run.total_s for p in points], "o-", label="time to train")
    axes.fill_between(
        gpus,
        [p.time_interval_s[0] for p in points],
        [p.time_interval_s[1] for p in points],
        alpha=0.2,
        label="90 % interval",
    )
    axes.set(xlabel="GPUs", ylabel="time to train, s")
    axes.set_title(f"{answer.job.name}, {answer.phases[0].batch} images a GPU")
    right = axes.twinx()
    right.plot(gpus, [100 * p.efficiency for p in points], "s--", color="tab:orange")
    right.set(ylabel="efficiency, %", ylim=(0, 105))
    finish(axes)


def _where_a_step_goes(answer: Prediction, axes: Axes) -> None:
    points = curve(answer)
    bottom = [0.0] * len(points)
    labels = [str(point.job.gpus) for point in points]
    for name in answer.step.parts:
        heights = [point.step.parts[name] * 1e3 for point in points]
        if any(heights):
            axes.bar(labels, heights, bottom=bottom, label=name[:-2].replace("_", " "))
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set(xlabel="GPUs", ylabel="ms", title=f"Where a step goes: {answer.job.name}")
    finish(axes)


def _algorithms(answer: Prediction, axes: Axes) -> None:
    for name in ALGORITHMS:
        points = allreduce_curve(answer.machine, answer.job.gpus, name)
        axes.loglog(*zip(*points, strict=True), label=name.replace("_", " "))
    axes.set(xlabel="message, MB", ylabel="allreduce, ms")
    axes.set_title(f"{answer.job.gpus} GPUs of {answer.job.name}")
    finish(axes)


def _overlap(answer: Prediction, axes: Axes) -> None:
    step = answer.step
    forward = (step.forward_s + step.launch_s * 0.35) * 1e3
    end = max([group.ready_s for group in step.groups], default=step.backward_s) * 1e3
    axes.barh("compute", forward, color="tab:blue")
    axes.barh("compute", end, left=forward, color="tab:cyan")
    for number, group in enumerate(step.groups):
        start, stop = forward + group.start_s * 1e3, forward + group.end_s * 1e3
        axes.barh("allreduce", stop - start, left=start, color=f"C{number % 10}")
        axes.plot(forward + group.ready_s * 1e3, "allreduce", "k|", markersize=14)
    axes.axvline(forward + end, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="ms from the start of the step")
    axes.set_title("One step: forward, backward, groups (|: ready)", fontsize="medium")
    finish(axes)


PLOTS: dict[str, Callable[[Prediction, Axes], None]] = {
    "time_to_train": _time_against_gpus,
    "step": _where_a_step_goes,
    "algorithms": _algorithms,
    "overlap": _overlap,
}
