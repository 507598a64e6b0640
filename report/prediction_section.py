"""What a recipe would take on a described machine, as a section of its report."""

from __future__ import annotations

from typing import NamedTuple

from ..config.errors import UserError
from ..config.load import load_system
from ..config.machine import System
from ..config.names import PRESETS
from ..scaling.predict import Job, Prediction, job_of_config, job_of_system, on_system, predict
from .charts import page_chart
from .headline import batch_of, shown_log
from .plots import Plot
from .prediction import charts, share_rows, summary_rows
from .run_folder import Subject


class Outlook(NamedTuple):
    """What the recipe of a report would take on a described machine."""

    machine: str
    size: str
    """Accelerators and images on each."""
    rows: tuple[tuple[str, str, str, str], ...]
    """Name, predicted, its 90 % interval, as run ("" where the run does not say)."""
    step: list[tuple[str, str, str]]
    """Parts of a step: name, time, share."""
    plots: list[Plot]
    parts_s: dict[str, float]
    """The same parts by their names in scaling/step.py, in seconds."""


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
            job = job_of_config(on_system(config.run, machine, gpus), system=machine)
            return _drawn(predict(job), subject)
        except UserError:  # nobody asked: another network or data set has no outlook
            return None
    machine = load_system(system)
    if config is not None:
        job = job_of_config(on_system(config.run, machine, gpus), system=machine)
    else:
        job = _job_of_log(subject, system, machine, gpus)
    return _drawn(predict(job), subject)


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
    seen = _as_run(subject)
    return Outlook(
        machine=answer.machine.system.name,
        size=f"{answer.job.gpus:,} x {answer.phases[0].batch} images",
        rows=tuple((*row, seen.get(row[0], "")) for row in summary_rows(answer)),
        step=share_rows({name: value * 1e3 for name, value in answer.step.parts.items()}, "ms"),
        plots=[
            Plot(chart.title, "", page_chart(f"outlook-{chart.name}", chart.title, chart.draw))
            for chart in charts(answer)
        ]
        if answer.job.gpus > 1
        else [],
        parts_s=answer.step.parts,
    )


def _as_run(subject: Subject) -> dict[str, str]:
    """Row of the prediction -> what the run itself came to, where its log says so."""
    shown = shown_log(subject)
    if shown is None:
        return {}
    run, seen = shown.figures, {}
    batch, rate = batch_of(run), run.images_per_s
    if rate:
        seen["training rate"] = f"{rate:,.0f} images/s"
        if batch:
            seen["step"] = f"{batch / rate * 1e3:.2f} ms"
    if run.reached:
        samples = run.train_samples
        real = "" if samples is None or samples > 1e6 else " (another data set)"
        if run.run_s is not None:
            seen["time to train"] = f"{run.run_s:,.1f} s{real}"
        if run.reached.epoch:
            seen["epochs"] = f"{run.reached.epoch:g}"
    return seen
