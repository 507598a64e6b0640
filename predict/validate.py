"""Predicted against published: every figure of `published/`, worst first, no row hidden; and how
rows are predicted that are left out of the fit (`left_out`). Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import filterfalse
from statistics import mean
from typing import NamedTuple

import numpy as np

from ..config.communication import plan_own
from ..config.load import load, load_system
from ..config.machine import Point, System
from .epochs import read_table
from .fit import build
from .gpu import SHEET, Sheet, from_sheet
from .hardware import Machine, uses_sheet
from .predictor import PredictedJob, job_of_config, job_of_system, predict

UNNAMED_BATCH = 96
"""Horovod PR 542 names no batch: at this one a V100 has its rate (DeepLearningExamples, fp32)."""
UNNAMED_EPOCHS = 90
"""Where a paper does not say; the notes name these rows."""
SCORED_RUNS = 5
SMALL_GPUS = 128
"""What "small" is where large runs are predicted from small ones."""

_HUBER = 0.25
"""Sigmas beyond which a row pulls no harder, so that nearly the sum of absolute errors is the
least. An entry can be much slower than its site's other entries, but not much faster."""
_SIGMA = 0.05
_ITERATIONS = 20


class Published(NamedTuple):
    """What was published of a job: its step, its time to train or both (0: not given)."""

    name: str
    job: PredictedJob
    step_s: float
    time_s: float
    note: str
    version: str = ""
    """The round of MLPerf."""


@dataclass(frozen=True)
class Row:
    """A published figure and ours, in seconds. `kind` is step or time."""

    kind: str
    machine: str
    name: str
    gpus: int
    batch: int
    published_s: float
    predicted_s: float
    low_s: float
    high_s: float
    """The published figure was expected between these with 90 % probability."""
    calibrated: bool
    note: str
    """Why the row is not a fair test of the model, where that is known. It counts all the same."""

    @property
    def error(self) -> float:
        """Signed, relative; to 1e-9, for two figures of one prediction differ by the last bit."""
        return round(self.predicted_s / self.published_s - 1, 9) + 0.0


class Summary(NamedTuple):
    """How well the rows of a kind that are not calibrated were predicted."""

    name: str
    rows: int
    mean_error: float
    """The mean of absolute, relative errors."""
    bias: float
    in_interval: float
    faster: float
    """Share of the rows that were published below their 90 % interval."""
    slower: float


def published() -> list[Published]:
    """Every published figure on a machine that a file describes."""
    return [*map(_of_row, filter(has_machine, tables())), *_sony_runs()]


def tables() -> list[dict[str, str]]:
    """The rows of both tables, MLPerf's with the columns of the other."""
    rows = [
        row | {"time_to_train_s": row["score_s"], "precision": "fp16"}
        for row in read_table("mlperf_runs.csv")
    ]
    return rows + read_table("scaling_tables.csv")


def has_machine(row: dict[str, str]) -> bool:
    """Whether a file of `config/system/` predicts the row."""
    return row["machine"] != ""


def name_of(row: dict[str, str]) -> str:
    """The name under which a row is shown."""
    columns = ["version", "org", "table", "system"]
    if "table" in row:
        columns += ["precision", "variant"]
    return " ".join(row[column] for column in columns if row.get(column))


_system = lru_cache(load_system)


def _of_row(row: dict[str, str]) -> Published:
    system = _system(row["machine"])
    if "accel_per_node" in row:
        nodes = {"ranks_per_node": int(row["accel_per_node"])}
        system = system.model_copy(update=nodes)
    job = job_of_system(
        row["machine"],
        system,
        int(row["n_accelerators"]),
        int(row["batch_per_accelerator"] or UNNAMED_BATCH),
        algorithm=row.get("allreduce") or None,
        epochs=_epochs(row["epochs"] or str(UNNAMED_EPOCHS)),
        precision=row["precision"].replace("bf16", "fp16"),
    )
    step_s = job.gpus * job.batch / float(row["images_per_s"] or "inf")
    if row["ms_per_step"]:
        step_s = float(row["ms_per_step"]) / 1e3
    return Published(
        name_of(row),
        job,
        step_s,
        float(row["time_to_train_s"] or 0),
        row["note"],
        row.get("version", ""),
    )


def _epochs(runs: str) -> float:
    """The mean of the middle three of five (`60;60;64;60;60`), as the score is."""
    epochs = sorted(map(float, runs.replace("-", ";").split(";")))
    if len(epochs) == SCORED_RUNS:
        epochs = epochs[1:-1]
    return mean(epochs)


def _sony_runs() -> Iterator[Published]:
    """Five whole runs, three with batch-size control (Mikami et al., Tables 3 and 5): the presets
    on Sony's stack, by its own allreduce."""
    for row in read_table("sony_runs.csv"):
        run = load(row["preset"]).run
        nodes = {"nodes": run.system.nodes}
        system = _system("abci_nnl").model_copy(update=nodes)
        job = job_of_config(run.model_copy(update={"system": system}))
        job = replace(job, name="abci_nnl", plan=plan_own(system, job.gpus))
        name = f"Sony {row['preset']}"
        yield Published(name, job, 0.0, float(row["time_s"]), row["note"])


def compare(run: Published, machine: Machine | None = None) -> Iterator[Row]:
    """The figures of `run` beside ours, by `machine` in place of the system's own model."""
    job = run.job
    answer = predict(job, machine)
    calibrated = any(_is_of(point, run) for point in answer.machine.points)
    for kind, published_s, predicted_s, interval_s in (
        ("step", run.step_s, answer.step.total_s, answer.step_interval_s),
        ("time", run.time_s, answer.run.total_s, answer.time_interval_s),
    ):
        if published_s:
            yield Row(
                kind,
                job.name,
                run.name,
                job.gpus,
                job.batch,
                published_s,
                predicted_s,
                *interval_s,
                calibrated,
                run.note,
            )


def _is_of(point: Point, run: Published) -> bool:
    """Whether a machine's point is the step that was published of `run`."""
    return (
        point.gpus == run.job.gpus
        and point.batch == run.job.batch
        and math.isclose(point.step_s, run.step_s, rel_tol=1e-4)
    )


def validate() -> list[Row]:
    """All rows, worst first; ties by name."""
    rows = [row for run in published() for row in compare(run)]
    return sorted(rows, key=lambda row: (-abs(row.error), row.name, row.kind, row.gpus))


def summarise(name: str, rows: Sequence[Row], kind: str) -> Summary:
    """The rows of a kind that are not calibrated."""
    predicted = [row for row in rows if row.kind == kind and not row.calibrated]
    return Summary(
        name,
        rows=len(predicted),
        mean_error=mean(abs(row.error) for row in predicted),
        bias=mean(row.error for row in predicted),
        in_interval=mean(
            row.low_s <= row.published_s <= row.high_s for row in predicted
        ),
        faster=mean(row.published_s < row.low_s for row in predicted),
        slower=mean(row.published_s > row.high_s for row in predicted),
    )


# --- rows left out of the fit ------------------------------------------------------------------


LEFT_OUT: dict[str, Callable[[Published], object]] = {
    "a system": lambda run: run.job.name,
    "a round": lambda run: run.version,
    "a batch and size": lambda run: (run.job.gpus, run.job.batch),
    f"more than {SMALL_GPUS} accelerators": lambda run: run.job.gpus > SMALL_GPUS,
}
"""What is left out at a time: the runs with one value. A system is predicted from its data sheet
alone; where a configuration is left out, its machine's other points stay."""


@lru_cache
def cases() -> tuple[Published, ...]:
    """All runs of MLPerf on machines with a data sheet."""
    return tuple(run for run in published() if run.version and _has_sheet(run.job))


def _has_sheet(job: PredictedJob) -> bool:
    performance = job.system.performance
    return performance is not None and uses_sheet(performance, "fp16")


def left_out(name: str) -> list[Row]:
    """The model judged on what it was not fitted to: rows predicted by the constants of `gpu.py`
    fitted again without them, and by machine files without those points that are among them."""
    key = LEFT_OUT[name]
    rows: list[Row] = []
    for value in filter(None, dict.fromkeys(map(key, cases()))):
        judged = [run for run in cases() if key(run) == value]
        sheet = fit_sheet([run for run in cases() if key(run) != value])
        for run in judged:
            points = [
                point
                for point in _points(run.job.system)
                if not any(_is_of(point, hidden) for hidden in judged)
            ]
            system = _with_points(run.job.system, tuple(points))
            machine = build(run.job.name, system, "fp16", sheet)
            rows.extend(compare(run, machine))
    return rows


def fit_sheet(runs: Sequence[Published]) -> Sheet:
    """The four constants with the least deviation from `runs`, by iterated least squares on the
    logarithm of the step. Equal configurations share a weight; what a step waits for is taken from
    the present constants."""
    repeats = Counter(map(_configuration, runs))
    weights = np.array([repeats[_configuration(run)] ** -0.5 / _SIGMA for run in runs])
    design = np.array(list(map(_terms_s, runs)))
    beside_s = np.array(list(map(_step_s, runs))) - design @ SHEET
    measured_s = np.array([run.step_s for run in runs])
    constants = np.array(SHEET)
    for _ in range(_ITERATIONS):
        step_s = beside_s + design @ constants
        misses = np.log(measured_s / step_s) * weights
        distance = np.maximum(np.abs(misses), 1e-12)
        # the root of Huber's weight: 1 near the model, falling with the distance beyond _HUBER
        pull = np.minimum(1.0, _HUBER / distance) ** 0.5
        slopes = design * constants * (weights * pull / step_s)[:, None]
        # A constant that no row speaks of (launches without graphs) stays as it is.
        change, *_ = np.linalg.lstsq(slopes, misses * pull, rcond=None)
        constants = constants * (1 + np.clip(change, -0.5, 0.5))
    return Sheet(*constants.tolist())


def _configuration(run: Published) -> tuple[str, int, int]:
    return run.job.system.accelerator, run.job.gpus, run.job.batch


def _terms_s(run: Published) -> list[float]:
    """Seconds of a step for one of each constant, in which it is linear."""
    performance = run.job.system.performance
    assert performance is not None

    def alone_s(sheet: Sheet) -> float:
        fixed_s, per_image_s = from_sheet(performance, sheet)
        return fixed_s + run.job.batch * per_image_s

    none_s = alone_s(Sheet(0, 0, 0, 0))
    return [alone_s(Sheet(*row)) - none_s for row in np.eye(4).tolist()]


def _step_s(run: Published) -> float:
    """A step by the data sheet alone."""
    job = replace(run.job, system=_with_points(run.job.system, ()))
    return job.step(build(job.name, job.system), job.batch).total_s


def _points(system: System) -> tuple[Point, ...]:
    """The fp16 steps that were measured on a machine with a data sheet."""
    assert system.performance is not None
    fp16 = system.performance.fp16
    return fp16.points if fp16 else ()


def _with_points(system: System, points: tuple[Point, ...]) -> System:
    """`system`, calibrated on `points` alone."""
    assert system.performance is not None
    fp16 = system.performance.fp16
    if fp16 is not None:
        fp16 = fp16.model_copy(update={"points": points}) if points else None
    changed = {"fp16": fp16, "other_points": ()}
    performance = system.performance.model_copy(update=changed)
    return system.model_copy(update={"performance": performance})


# --- all of it, as text ---------------------------------------------------------------------------


QUOTED = {
    "accelerators": "n_accelerators",
    "images": "global_batch_size",
    "s": "time_to_train_s",
    "efficiency, %": "efficiency_pct",
    "top-1, %": "top1_pct",
    "why not": "note",
}
"""Columns of the rows that no machine here predicts."""


class Validation(NamedTuple):
    """Everything that `rn50 predict validate` prints."""

    rows: list[Row]
    summaries: list[Summary]
    """One of all rows of a kind, then those of rows that were left out of the fit."""
    without_machine: list[dict[str, str]]


def run_validation() -> Validation:
    """All rows, their means, and how rows that were left out are predicted."""
    rows = validate()
    summaries = [summarise(f"{kind}s", rows, kind) for kind in ("step", "time")]
    for name in LEFT_OUT:
        judged = left_out(name)
        for kind in ("step", "time"):
            label = f"{kind}s, {name} left out"
            summaries.append(summarise(label, judged, kind))
    unplaced = []
    for row in filterfalse(has_machine, tables()):
        figures = {title: row.get(column, "") for title, column in QUOTED.items()}
        unplaced.append({"row": name_of(row)} | figures)
    return Validation(rows, summaries, unplaced)


ROW_TITLES = (
    "error",
    "what",
    "published",
    "predicted",
    "GPUs x batch",
    "system",
    "row",
    "note",
)


def row_cells(row: Row) -> tuple[str, ...]:
    """A row for people; steps are in milliseconds."""
    factor, unit = (1e3, "ms") if row.kind == "step" else (1, "s")
    return (
        f"{row.error:+.1%}",
        row.kind,
        f"{row.published_s * factor:.6g} {unit}",
        f"{row.predicted_s * factor:.4g}",
        f"{row.gpus} x {row.batch}",
        row.machine,
        row.name,
        "calibrated" if row.calibrated else row.note,
    )


SUMMARY_TITLES = (
    "not calibrated",
    "rows",
    "mean error",
    "bias",
    "in 90 % interval",
    "faster",
    "slower",
)


def summary_cells(summary: Summary) -> tuple[str, ...]:
    """A summary for people."""
    name, rows, *shares = summary
    return name, f"{rows}", *map("{:.1%}".format, shares)
