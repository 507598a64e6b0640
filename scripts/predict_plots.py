"""Plots of a prediction as SVG: the curve over GPUs, the step, the algorithms, the overlap."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

from ..config.errors import UserError
from ..data.atomic import write_output
from ..scaling.predict import Prediction, curve
from ..scaling.step import ALGORITHMS, group_cost_s

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "rn50"

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES_BYTES = tuple(1 << exponent for exponent in range(12, 28))


def write_plots(answer: Prediction, folder: Path) -> list[Path]:
    """All plots into `folder`, made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--plots: {folder}: a folder expected: {error.strerror}") from None
    files = []
    for name, text in draw_plots(answer).items():
        files.append(folder / f"{name}.svg")
        write_output(files[-1], text)
    return files


def draw_plots(answer: Prediction) -> dict[str, str]:
    """SVG text by name; also what a report takes in."""
    return {name: _svg(draw(answer)) for name, draw in PLOTS.items()}


def _figure(width: float = 6.4, height: float = 3.8) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _time_against_gpus(answer: Prediction) -> Figure:
    points = curve(answer)
    gpus = [point.job.gpus for point in points]
    figure = _figure()
    left = figure.subplots()
    left.loglog(gpus, [p.run.total_s for p in points], "o-", label="time to train")
    left.fill_between(
        gpus,
        [p.time_interval_s[0] for p in points],
        [p.time_interval_s[1] for p in points],
        alpha=0.2,
        label="90 % interval",
    )
    left.set(xlabel="GPUs", ylabel="time to train, s")
    left.set_title(f"{answer.job.name}, {answer.phases[0].batch} images a GPU")
    right = left.twinx()
    right.plot(gpus, [100 * p.efficiency for p in points], "s--", color="tab:orange")
    right.set(ylabel="efficiency, %", ylim=(0, 105))
    left.legend(loc="lower left")
    return figure


def _where_a_step_goes(answer: Prediction) -> Figure:
    points = curve(answer)
    figure = _figure()
    axes = figure.subplots()
    bottom = [0.0] * len(points)
    labels = [str(point.job.gpus) for point in points]
    for name in answer.step.parts:
        heights = [point.step.parts[name] * 1e3 for point in points]
        if any(heights):
            axes.bar(labels, heights, bottom=bottom, label=name[:-2].replace("_", " "))
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set(xlabel="GPUs", ylabel="ms", title=f"Where a step goes: {answer.job.name}")
    axes.legend(fontsize="small", ncols=2, loc="lower right")
    return figure


def _algorithms(answer: Prediction) -> Figure:
    figure = _figure()
    axes = figure.subplots()
    for name in ALGORITHMS:
        times = [
            group_cost_s(answer.machine, answer.job.gpus, n_bytes, name)[1] * 1e3
            for n_bytes in SIZES_BYTES
        ]
        axes.loglog([n / 1e6 for n in SIZES_BYTES], times, label=name.replace("_", " "))
    axes.set(xlabel="message, MB", ylabel="allreduce, ms")
    axes.set_title(f"{answer.job.gpus} GPUs of {answer.job.name}")
    axes.legend(fontsize="small")
    return figure


def _overlap(answer: Prediction) -> Figure:
    step = answer.step
    figure = _figure(height=2.6)
    axes = figure.subplots()
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
    return figure


PLOTS: dict[str, Callable[[Prediction], Figure]] = {
    "time_to_train": _time_against_gpus,
    "step": _where_a_step_goes,
    "algorithms": _algorithms,
    "overlap": _overlap,
}


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
