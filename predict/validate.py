"""Predicted against published: every figure of `published/`, worst first, no row hidden, and those
of MLPerf once more by constants that are fitted without their system. One table, from which all
means follow. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import filterfalse
from operator import attrgetter, itemgetter
from statistics import mean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ..config.communication import plan_own
from ..config.load import load, load_system
from ..config.machine import Point
from .epochs import read_table
from .fit import build
from .gpu import SHEET, Sheet
from .hardware import Machine
from .predictor import PredictedJob, job_of_config, job_of_system, predict

UNNAMED_BATCH = "96"
"""Horovod PR 542 names no batch: at this one a V100 has its rate (DeepLearningExamples, fp32)."""
UNNAMED_EPOCHS = "90"
"""The epochs where a paper does not say; the notes name these rows."""

_HUBER = 0.0125
"""Relative miss beyond which a row pulls no harder, so that nearly the sum of absolute errors is
the least. An entry can be much slower than its site's other entries, but not much faster."""

_system = cache(load_system)


class Published(NamedTuple):
    """What was published of a job: its step, its time to train or both (0: not given)."""

    name: str
    job: PredictedJob
    step_s: float
    time_s: float
    note: str
    version: str = ""
    """The round of MLPerf."""


class Row(NamedTuple):
    """A published figure and ours, in seconds."""

    error_percent: float
    """Signed; rounded, for two figures of one prediction differ by the last bit."""
    figure: str
    """A step or a time to train; of a system that was left out of the fit: also that."""
    published_s: float
    predicted_s: float
    low_s: float
    high_s: float
    """The published figure was expected between these with 90 % probability."""
    gpus: int
    batch: int
    system: str
    name: str
    calibrated: bool
    note: str
    """Why the row is not a fair test of the model, where that is known. It counts all the same."""


class Summary(NamedTuple):
    """How well the rows of a figure that are not calibrated were predicted."""

    figure: str
    rows: int
    mean_error_percent: float
    """The mean of absolute errors."""
    bias_percent: float
    faster_percent: float
    """Share of the rows that were published below their 90 % interval."""
    slower_percent: float


QUOTED = (
    "n_accelerators",
    "global_batch_size",
    "time_to_train_s",
    "efficiency_pct",
    "top1_pct",
    "note",
)
"""Columns of the rows that no machine here predicts."""


def tables() -> list[dict[str, str]]:
    """The rows of MLPerf's table, and those of papers, whose columns they have too."""
    entries = read_table("mlperf_runs.csv")
    rows = [row | {"time_to_train_s": row["score_s"]} for row in entries]
    return rows + read_table("scaling_tables.csv")


def name_of(row: dict[str, str]) -> str:
    """The name under which a row is shown."""
    columns = ("version", "org", "table", "system", "precision", "variant")
    return " ".join(filter(None, map(row.get, columns)))


@cache
def published() -> tuple[Published, ...]:
    """Every published figure on a machine that a file describes."""
    rows = filter(itemgetter("machine"), tables())
    return *map(_of_row, rows), *map(_of_preset, read_table("sony_runs.csv"))


def _of_row(row: dict[str, str]) -> Published:
    system = _system(row["machine"])
    if "accel_per_node" in row:
        nodes = {"ranks_per_node": int(row["accel_per_node"])}
        system = system.model_copy(update=nodes)
    # the middle three of five runs count, as in the score; a paper may say "78-82"
    runs = (row["epochs"] or UNNAMED_EPOCHS).replace("-", ";").split(";")
    epochs = sorted(map(float, runs))
    job = job_of_system(
        row["machine"],
        system,
        int(row["n_accelerators"]),
        int(row["batch_per_accelerator"] or UNNAMED_BATCH),
        algorithm=row.get("allreduce") or None,
        epochs=mean(epochs[1:-1] or epochs),
        precision=row.get("precision", "fp16").replace("bf16", "fp16"),
    )
    rate = float(row["images_per_s"] or "inf")
    step_s = float(row["ms_per_step"] or 1e3 * job.gpus * job.batch / rate) / 1e3
    time_s = float(row["time_to_train_s"] or 0)
    version = row.get("version", "")
    return Published(name_of(row), job, step_s, time_s, row["note"], version)


def _of_preset(row: dict[str, str]) -> Published:
    """A whole run of Mikami et al. (Tables 3 and 5): a preset on Sony's stack, by its own
    allreduce."""
    run = load(row["preset"], ["system=abci_nnl"]).run
    job = job_of_config(run)
    job = replace(job, name="abci_nnl", plan=plan_own(run.system, job.gpus))
    name = f"Sony {row['preset']}"
    return Published(name, job, 0.0, float(row["time_s"]), row["note"])


def validate() -> list[Row]:
    """All rows, worst first; ties by name."""
    rows = [row for run in published() for row in compare(run)]
    return sorted(rows, key=lambda row: (-abs(row.error_percent), *row[1:]))


def compare(
    run: Published, machine: Machine | None = None, remark: str = ""
) -> Iterator[Row]:
    """The figures of `run` beside ours, by `machine` in place of the system's own model."""
    job = run.job
    answer = predict(job, machine)
    is_calibrated = any(_is_of(point, run) for point in answer.machine.points)
    for figure, published_s, predicted_s, interval_s in (
        ("step", run.step_s, answer.step.total_s, answer.step_interval_s),
        ("time", run.time_s, answer.run.total_s, answer.time_interval_s),
    ):
        if published_s:
            yield Row(
                round(100 * (predicted_s / published_s - 1), 2),
                f"{figure}{remark}",
                published_s,
                predicted_s,
                *interval_s,
                job.gpus,
                job.batch,
                job.name,
                run.name,
                is_calibrated,
                run.note,
            )


def _is_of(point: Point, run: Published) -> bool:
    """Whether a machine's point is the step that was published of `run`."""
    is_size = (point.gpus, point.batch) == (run.job.gpus, run.job.batch)
    return is_size and math.isclose(point.step_s, run.step_s, rel_tol=1e-4)


def summarise(figure: str, rows: Sequence[Row]) -> Summary:
    """How well the rows of a figure were predicted."""
    judged = [row for row in rows if row.figure == figure and not row.calibrated]
    errors = [row.error_percent for row in judged]
    faster = [row.published_s < row.low_s for row in judged]
    slower = [row.published_s > row.high_s for row in judged]
    means = (
        mean(map(abs, errors)),
        mean(errors),
        100 * mean(faster),
        100 * mean(slower),
    )
    return Summary(figure, len(judged), *(round(value, 1) for value in means))


def without_machine() -> list[dict[str, str]]:
    """The published rows that no machine here predicts."""
    rows = filterfalse(itemgetter("machine"), tables())
    return [
        {"row": name_of(row)} | {column: row.get(column, "") for column in QUOTED}
        for row in rows
    ]


# --- systems left out of the fit ------------------------------------------------------------------


def cases() -> tuple[Published, ...]:
    """All runs of MLPerf, each on a machine with a data sheet."""
    return tuple(filter(attrgetter("version"), published()))


def left_out() -> Iterator[Row]:
    """The model judged on what it was not fitted to: the rows of a system predicted from its data
    sheet alone, by the constants of `gpu.py` fitted again without them."""
    for name in dict.fromkeys(run.job.name for run in cases()):
        sheet = fit_sheet([run for run in cases() if run.job.name != name])
        for run in cases():
            if run.job.name == name:
                machine = _by_sheet(run, sheet)
                yield from compare(run, machine, ", its system left out")


def fit_sheet(runs: Sequence[Published]) -> Sheet:
    """The four constants with the least deviation from `runs`, by least squares on the logarithm of
    the step. Equal configurations share a weight; what a step waits for is taken from the present
    constants."""
    sizes = [(run.job.system.accelerator, run.job.gpus, run.job.batch) for run in runs]
    weights = np.array([sizes.count(size) ** -0.5 for size in sizes])
    terms_s = np.array(list(map(_terms_s, runs)))
    measured_s = np.array([run.step_s for run in runs])

    def misses(factors: NDArray[np.float64]) -> NDArray[np.float64]:
        steps_s = terms_s @ np.append(factors, 1.0)
        return weights * np.log(steps_s / measured_s)

    # A constant that no row speaks of (launches without graphs) stays as it is.
    fit = least_squares(misses, np.ones(len(SHEET)), loss="huber", f_scale=_HUBER)
    return Sheet(*(fit.x * SHEET).tolist())


@cache
def _terms_s(run: Published) -> tuple[float, ...]:
    """The parts of a step by the data sheet alone: what each constant takes, then the rest."""
    batch = run.job.batch
    machine = _by_sheet(run, SHEET)
    sheets = [SHEET._replace(**{name: 0.0}) for name in SHEET._fields]
    others_s = [_by_sheet(run, sheet).compute_s(batch) for sheet in sheets]
    terms_s = [machine.compute_s(batch) - other_s for other_s in others_s]
    return *terms_s, run.job.step(machine, batch).total_s - math.fsum(terms_s)


def _by_sheet(run: Published, sheet: Sheet) -> Machine:
    """The model of a run's machine by its data sheet alone."""
    machine = build(run.job.name, run.job.system)
    no_points = {"fp16": None, "other_points": ()}
    performance = machine.performance.model_copy(update=no_points)
    system = machine.system.model_copy(update={"performance": performance})
    return build(machine.name, system, sheet=sheet)
