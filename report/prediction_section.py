"""What a recipe would take on a described machine, drawn as a section of its report."""

from __future__ import annotations

from collections.abc import Callable

from ..config.errors import UserError
from ..config.finding import number
from ..config.load import load_system
from ..config.machine import System
from ..config.names import PRESETS
from ..scaling.predict import Job, Prediction, curve, job_of_config, job_of_system, on_system
from ..scaling.predict import predict as run_predict
from ..scaling.step import ALGORITHMS, allreduce_curve
from .charts import Series, line_chart
from .headline import batch_of, shown_log
from .plots import Plot
from .prediction_plots import Outlook, Part
from .run_folder import Subject


def outlook(subject: Subject, system: str | None = None, gpus: int | None = None) -> Outlook | None:
    """The prediction for the recipe of a run.

    Args:
        subject: a run's folder, or published logs.
        system: the machine; None: the run's own, and None comes back where that is not described
            or the recipe is not the benchmark's.
        gpus: accelerators; None: as many ranks as the run had.

    Raises:
        UserError: `system` was asked for and the recipe cannot be put on it.
    """
    config = subject.folder.config if subject.folder else None
    if system is None:
        machine = _described(config.run.system.name) if config else None
        if config is None or machine is None:
            return None
        try:
            return _drawn(run_predict(job_of_config(on_system(config.run, machine, gpus))), subject)
        except UserError:  # nobody asked: another network or data set has no outlook
            return None
    machine = load_system(system)
    if config is not None:
        job = job_of_config(on_system(config.run, machine, gpus))
    else:
        job = _job_of_log(subject, system, machine, gpus)
    return _drawn(run_predict(job), subject)


def _described(name: str) -> System | None:
    """The machine of `config/system/` with this name in it, if its speed is known.

    A run's own config.yaml says nothing of speed: performance is no part of a run's digest.
    """
    for path in sorted((PRESETS / "system").glob("*.yaml")):
        found = load_system(str(path))
        if found.name == name and found.performance is not None:
            return found
    return None


def _job_of_log(subject: Subject, name: str, machine: System, gpus: int | None) -> Job:
    """A job of the global batch of a log that no config lies beside."""
    batch = batch_of(subject.first) if subject.first else None
    if gpus is None:
        raise UserError(f"--system: --gpus expected beside it: {subject.path} says no ranks")
    if batch is None or gpus < 1 or batch % gpus:
        raise UserError(
            f"--gpus: a divisor of the log's global batch ({batch or 0:g}) expected, found {gpus}"
        )
    return job_of_system(name, machine, gpus, int(batch) // gpus)


def _drawn(answer: Prediction, subject: Subject) -> Outlook:
    step_low, step_high = (f"{value * 1e3:.4g}" for value in answer.step_interval_s)
    low, high = (f"{value:,.4g}" for value in answer.time_interval_s)
    shown = shown_log(subject)
    first, run = answer.phases[0], shown.figures if shown else None
    batch = batch_of(run) if run else None
    rate = run.images_per_s if run else None
    seen = run.run_s if run and run.reached else None
    samples = number(run.parameters.get("train_samples")) if run else None
    real = "" if samples is None or samples > 1e6 else " (another data set)"
    rows = (
        ("Step", f"{answer.step.total_s * 1e3:.4g} ms", f"{step_low} to {step_high} ms",
         f"{batch / rate * 1e3:.4g} ms" if batch and rate else ""),
        ("Throughput", f"{answer.images_per_s:,.0f} images/s", "",
         f"{rate:,.0f} images/s" if rate else ""),
        ("Time to train", f"{answer.run.total_s:,.4g} s", f"{low} to {high} s",
         f"{seen:,.4g} s{real}" if seen is not None else ""),
        ("Epochs", f"{answer.epochs:g}", "{:.0f} to {:.0f}".format(*answer.epochs_interval),
         f"{run.reached.epoch:g}" if run and run.reached and run.reached.epoch else ""),
        ("Efficiency", f"{answer.efficiency:.1%}", "", ""),
    )  # fmt: skip
    return Outlook(
        machine=answer.machine.system.name,
        size=f"{answer.job.gpus:,} x {first.batch} images",
        rows=rows,
        step=_parts({name: value * 1e3 for name, value in answer.step.parts.items()}),
        overlap=_overlap(answer),
        plots=_plots(answer),
    )


def _parts(values: dict[str, float]) -> tuple[Part, ...]:
    """Parts one after another, each where the one before it ends."""
    total, at, parts = sum(values.values()), 0.0, []
    for name, value in values.items():
        if value > 0:
            label = name.removesuffix("_s").replace("_", " ")
            parts.append(Part(label, f"{value:.4g} ms", 100 * at / total, 100 * value / total))
            at += value
    return tuple(parts)


def _overlap(answer: Prediction) -> tuple[Part, ...]:
    """Backward, and each group of gradients on the network from its start to its end."""
    groups = answer.step.groups
    backward_s = max([answer.step.backward_s, *(group.ready_s for group in groups)])
    end_s = max([backward_s, *(group.end_s for group in groups)])
    bars = [Part("backward", f"{backward_s * 1e3:.4g} ms", 0.0, 100 * backward_s / end_s)]
    for place, group in enumerate(groups, start=1):
        taken_s = group.end_s - group.start_s
        bars.append(
            Part(
                f"group {place}, {group.n_bytes / 1e6:.3g} MB, {group.algorithm}",
                f"{taken_s * 1e3:.4g} ms",
                100 * group.start_s / end_s,
                100 * taken_s / end_s,
            )
        )
    return tuple(bars) if groups else ()


def _plots(answer: Prediction) -> tuple[Plot, ...]:
    points, batch = curve(answer), answer.phases[0].batch
    if len(points) < 2:
        return ()

    def line(value: Callable[[Prediction], float]) -> list[tuple[float, float]]:
        return [(float(point.job.gpus), value(point)) for point in points]

    plots = [
        Plot(
            "Time to train",
            f"s, {batch} images on each; dashed: 90 % interval",
            line_chart(
                "outlook-time",
                "Time to train by accelerators",
                [
                    Series("", (line(lambda p: p.run.total_s),), 0, dots=True),
                    Series("", (line(lambda p: p.time_interval_s[0]),), 2),
                    Series("", (line(lambda p: p.time_interval_s[1]),), 2),
                ],
                x_label="accelerators",
                log="xy",
            ),
        ),
        Plot(
            "Efficiency",
            "% of computation alone",
            line_chart(
                "outlook-efficiency",
                "Efficiency by accelerators",
                [Series("", (line(lambda p: 100 * p.efficiency),), 0, dots=True)],
                x_label="accelerators",
                from_zero=True,
                log="x",
            ),
        ),
    ]
    return (*plots, *_allreduce_plot(answer))


def _allreduce_plot(answer: Prediction) -> tuple[Plot, ...]:
    """Time of one allreduce by its size, a line an algorithm."""
    gpus = answer.job.gpus
    if gpus == 1:
        return ()
    lines = []
    for style, (letter, name) in enumerate(zip("ABCDE", ALGORITHMS, strict=True)):
        lines.append(Series(letter, (allreduce_curve(answer.machine, gpus, name),), style))
    names = (f"{one.label} {name}" for one, name in zip(lines, ALGORITHMS, strict=True))
    chart = line_chart("outlook-allreduce", "Allreduce", lines, x_label="message, MB", log="xy")
    title = f"Allreduce on {gpus:,} accelerators"
    return (Plot(title, "ms; " + ", ".join(names).replace("_", " "), chart),)
