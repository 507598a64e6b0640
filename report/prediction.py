"""A prediction for people: its rows, its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from ..predict.layer_table import backward_fraction
from ..predict.predictor import Prediction, curve, strong_curve
from .charts import COLOURS, INK, finish, new_panels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def summary_rows(answer: Prediction) -> list[tuple[str, str, str, str]]:
    """Name, prediction, 90 % interval, what it is."""
    step_low, step_high = (value * 1e3 for value in answer.step_interval_s)
    step = f"{answer.step.total_s * 1e3:.2f} ms"
    epochs = "{:g} to {:g}".format(*answer.epochs_interval)
    groups = f"of each rank a step, in groups by {answer.job.plan.groups}"
    if answer.job.plan.groups_by == "what-if":
        groups += ", a what-if"
    rows = [
        ("step", step, f"{step_low:.2f} to {step_high:.2f} ms", ""),
        ("training rate", f"{answer.images_per_s:,.0f} images/s", "", ""),
        ("efficiency", percent(answer.efficiency), "", "of computation alone"),
    ]
    if answer.node_efficiency is not None:
        of_node = percent(answer.node_efficiency, digits=2)
        rows.append(("", of_node, "", "of one node with as many images on each"))
    mfu = "unknown" if answer.mfu is None else percent(answer.mfu)
    allreduce = answer.step.allreduce or "none"
    sent = f"{answer.gradient_bytes / 1e6:.1f} MB"
    unit = "GPU" if answer.job.system.device == "gpu" else "rank"
    cost = f"{answer.gpu_hours:,.1f} {unit}-hours"
    rows += [
        ("MFU", mfu, "", f"{answer.training_flops:.3g} FLOP in the run"),
        ("allreduce", allreduce, "", answer.job.plan.note),
        ("gradients", sent, "", groups),
        ("epochs", f"{answer.epochs:g}", epochs, _why_epochs(answer)),
        ("time to train", seconds(answer.run.total_s), _interval(answer), ""),
        (
            "initialisation",
            seconds(answer.machine.performance.init_s),
            "",
            "before the clock, not in the time to train",
        ),
        ("cost", cost, "", "with initialisation"),
    ]
    return rows


def _why_epochs(answer: Prediction) -> str:
    if answer.job.epochs is not None:
        return "given"
    note = f"published runs needed {answer.needed.expected:.1f}"
    last_epoch = answer.job.last_epoch
    if last_epoch is not None and last_epoch < answer.needed.expected:
        return f"{note}; the run ends here"
    if answer.job.offset is None:
        return note
    return f"{note}; the config evaluates every {answer.job.period}"


def percent(share: float, *, digits: int = 1) -> str:
    """A share for people."""
    return f"{100 * share:.{digits}f} %"


def seconds(time_s: float) -> str:
    """A time for people."""
    return f"{time_s:,.1f} s"


def _interval(answer: Prediction) -> str:
    return "{:,.1f} to {:,.1f} s".format(*answer.time_interval_s)


def share_rows(parts: Mapping[str, float], unit: str) -> list[tuple[str, str, str]]:
    """Name, time and share of the parts that take any."""
    total = sum(parts.values())
    return [
        (name, f"{value:,.3f} {unit}", percent(value / total))
        for name, value in parts.items()
        if value
    ]


BEST_HEADER = (
    "batch",
    "global batch",
    "groups",
    "algorithm",
    "step",
    "epochs",
    "time to train",
    "90 % interval",
)


def best_rows(answers: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """What BEST_HEADER names of each."""
    rows: list[tuple[str, ...]] = []
    for answer in answers:
        job = answer.job
        batch = answer.job.batch
        rows.append(
            (
                str(batch),
                f"{job.gpus * batch:,}",
                job.plan.groups,
                job.plan.algorithm,
                f"{answer.step.total_s * 1e3:.2f} ms",
                f"{answer.epochs:g}",
                seconds(answer.run.total_s),
                _interval(answer),
            )
        )
    return rows


def write_plot(answer: Prediction, path: Path) -> None:
    """One figure: the curves over GPUs, the step over GPUs, and the overlap in one step."""
    figure, (time, parts, overlap) = new_panels(3, 5.6)
    job = answer.job
    points = curve(answer)
    gpus = [point.job.gpus for point in points]
    efficiency = [100 * point.efficiency for point in points]
    _time(points, gpus, time, "GPUs", f"weak scaling: {job.batch} images on each")
    strong = strong_curve(answer)
    time.plot(
        [point.job.gpus for point in strong],
        [point.run.total_s for point in strong],
        "^:",
        ms=4,
        color="C2",
        label=f"strong scaling: {job.global_batch_size:,} images in all",
    )
    finish(time, right=_second_line(time, gpus, efficiency, "efficiency", ", %"))
    _step_parts(points, parts)
    draw_overlap(answer, overlap)
    figure.suptitle(job.name)
    save(figure, path)


def write_best_plot(answers: Sequence[Prediction], path: Path) -> None:
    """Time to train, step and epochs by the batch, with the best groups and algorithm of each."""
    figure, (time, step) = new_panels(2, 5.6)
    by_batch = sorted(answers, key=lambda answer: answer.job.batch)
    batches = [answer.job.batch for answer in by_batch]
    _time(by_batch, batches, time, "images a GPU", "time to train")
    finish(time)
    step_ms = [answer.step.total_s * 1e3 for answer in by_batch]
    step.semilogx(batches, step_ms, "o-", ms=4, label="step")
    step.set(title="Step and epochs", xlabel="images a GPU", ylabel="step, ms")
    step.set_ylim(bottom=0)
    epochs = [answer.epochs for answer in by_batch]
    finish(step, right=_second_line(step, batches, epochs, "epochs"))
    first = answers[0].job
    figure.suptitle(f"{first.name}, {first.gpus} accelerators")
    save(figure, path)


def _time(
    points: Sequence[Prediction],
    across: Sequence[int],
    axes: Axes,
    label: str,
    name: str,
) -> None:
    times_s = [point.run.total_s for point in points]
    intervals_s = [point.time_interval_s for point in points]
    low_s, high_s = zip(*intervals_s, strict=True)
    axes.loglog(across, times_s, "o-", ms=4, label=name)
    axes.fill_between(across, low_s, high_s, alpha=0.2, lw=0, label="90 % interval")
    axes.set(title=f"Time to train by {label}", xlabel=label, ylabel="time to train, s")


def _second_line(
    axes: Axes,
    across: Sequence[int],
    values: Sequence[float],
    name: str,
    unit: str = "",
) -> Axes:
    """A second line with an axis of its own, on the right and from 0 on."""
    right = axes.twinx()
    right.plot(across, values, "s--", ms=3, color="C1", label=name)
    right.set(ylabel=f"{name}{unit}", ylim=(0, 1.05 * max(values)))
    right.spines["right"].set_visible(True)
    return right


def _step_parts(points: Sequence[Prediction], axes: Axes) -> None:
    bottom = [0.0] * len(points)
    labels = [f"{point.job.gpus}" for point in points]
    for name, colour in _colours(points[0]).items():
        heights = [point.step.parts[name] * 1e3 for point in points]
        if any(heights):
            axes.bar(labels, heights, bottom=bottom, color=colour, label=name)
            bottom = list(map(add, bottom, heights))
    axes.set(title="Where a step goes, by GPUs", xlabel="GPUs", ylabel="ms")
    axes.tick_params(axis="x", labelsize="small")
    finish(axes)


def _colours(answer: Prediction) -> dict[str, str]:
    """The parts of a step with a colour each, the same in all panels."""
    # as many parts as there are colours, or fewer
    return dict(zip(answer.step.parts, COLOURS, strict=False))


def draw_overlap(answer: Prediction, axes: Axes) -> None:
    """Groups of gradients on the network while backward goes on; `|`: when each is ready. The bars
    of computation are the parts of the step's table: launches of forward and of backward stand
    behind each, though they are spread over it."""
    step = answer.step
    colours = _colours(answer)
    share = backward_fraction()
    ends_ms = [0.0]
    labelled = set()
    for name, part_s in (
        ("forward", step.forward_s),
        ("launch", (1 - share) * step.launch_s),
        ("backward", step.backward_s),
        ("launch", share * step.launch_s),
        ("exposed", step.exposed_s),
        ("optimizer", step.optimizer_s),
        ("bn sync", step.bn_sync_s),
        ("straggler", step.straggler_s),
        ("input", step.input_s),
    ):
        if part_s:
            axes.barh(
                "step",
                part_s * 1e3,
                left=ends_ms[-1],
                color=colours[name],
                label="_" if name in labelled else name,
            )
            labelled.add(name)
        ends_ms.append(ends_ms[-1] + part_s * 1e3)
    # behind forward and its launches; behind backward and its launches
    begin = ends_ms[2]
    end = ends_ms[4]
    for number, group in enumerate(step.groups):
        start = begin + group.start_s * 1e3
        axes.barh(
            "allreduce",
            (group.end_s - group.start_s) * 1e3,
            left=start,
            color=colours["exposed"],
            alpha=(0.9, 0.5)[number % 2],  # so that neighbours can be told apart
            label="_" if number else "allreduce of a group",
        )
        axes.plot(begin + group.ready_s * 1e3, "allreduce", "|", color=INK, ms=14)
    axes.axvline(end, color=INK, lw=0.8, ls=":", label="end of backward")
    title = f"One step: {answer.job.gpus:,} x {answer.job.batch}"
    axes.set(title=title, xlabel="ms from its start; |: a group is ready")
    finish(axes, below=True)
