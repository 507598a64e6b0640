"""Predicted against published: every figure of `published/`, worst first, no row hidden; and with
rows left out of the fit, by system, round and size (`cross_validate`). Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from statistics import mean
from typing import NamedTuple

import numpy as np

from ..config.communication import plan_own
from ..config.load import load, load_system
from ..config.machine import Performance, Point, System
from .epochs import read_table
from .fit import build
from .gpu import SHEET, Sheet, update_s
from .hardware import uses_sheet
from .predictor import PredictedJob, Prediction, job_of_config, job_of_system, predict
from .step import step_time

MLPERF_RUNS = "mlperf_runs.csv"
SCALING_TABLES = "scaling_tables.csv"

# Settings of a published variant; the rest of a row's recipe is the system's own.
ALGORITHM_OF_VARIANT = {
    "flat ring allreduce": "ring",
    "hierarchical allreduce": "hierarchical",
    "2D-Torus 48x72": "torus_2d(48x72)",  # the only grid of Sony's Table 4 that is not the squarest
}

# Horovod PR 542 names no batch: that at which one V100 has its rate (DeepLearningExamples, fp32).
UNNAMED_BATCH = 96

# Where a paper does not say: KNOWN_REASONS names these rows.
UNNAMED_EPOCHS = 90.0

SCORED_RUNS = 5

# Sony's five runs, three of them with batch-size control (Mikami et al., Tables 3 and 5).
SONY_RUNS_S = {
    "sony_1024": 505.0,
    "sony_2176": 224.0,
    "sony_3456": 122.0,
    "sony_3456_64k": 115.0,
    "sony_4096": 129.0,
}

# Why a row is not a fair test of the model, where that is known. The row counts all the same.
KNOWN_REASONS = {
    "XL675d-Gen10-Plus_A100-SXM-80GB_4N": "20 ms more, evaluations as expected: communication?",
    "XL675d-Gen10-Plus_A100-SXM-80GB_8N": "5 ms more, evaluations as expected: communication?",
    "v100-512": "9 ms more at both batches, evaluations as on DGX-2H: communication or launches?",
    "v100-256": "9 ms more at both batches, evaluations as on DGX-2H: communication or launches?",
    "dgxa100_n2_ngc20.06": "same software: 8 GPUs with twice the batch take 144.8 ms, not 2 x 86.8",
    "dgx1_multi_ngc18.11": "v0.5 software: no fused kernels and host-side update; epochs as given",
    "dgx2h_multi_ngc18.11": "v0.5 software: no fused kernels and host-side update; epochs as given",
    "cloud-tpu-v4": "software of v2.0, two rounds after the calibrated points",
    "tpu-v4-512": "software of v0.7; no entry of this size came later",
    "dgxh100_n4_preview": "preview software",
    "sony_1024": "settings of You et al.; why it takes 2.4 x their Table 6 is not published",
    "sony_2176": "earlier software",
    "Sony sony_": "what its clock starts and stops at is not said",
    "Horovod": "network, GPU and batch not named",
    "abci_2048xV100_mxnet": "one of ABCI's points is April's rate divided by this efficiency",
    "akiba_2017": "MN-1's only point is this run's rate divided by its efficiency",
    "fujitsu_2019": "epochs not published: 90 assumed; its rate is a lower bound",
    "ying_2018": "software before v0.6; epochs not published: 90 assumed",
}


@dataclass(frozen=True)
class Row:
    """A published figure and ours. `kind` is step (ms) or time (s)."""

    kind: str
    source: str
    machine: str
    name: str
    gpus: int
    batch: int
    published: float
    predicted: float
    low: float
    high: float
    """What we expected it between, with 90 % probability."""
    calibrated: bool
    reason: str = ""

    @property
    def error(self) -> float:
        """Signed, relative."""
        return self.predicted / self.published - 1

    @property
    def side(self) -> int:
        """Where the published figure lies: -1 below the interval, 0 inside, 1 above."""
        if self.published < self.low:
            return -1
        return int(self.published > self.high)


@dataclass(frozen=True)
class Summary:
    """Mean absolute relative errors over the predicted rows of a kind."""

    kind: str
    rows: int
    calibrated: int
    mean_absolute_error: float
    bias: float
    within_10_percent: int
    within_interval: int
    faster: int
    """Below their 90 % interval."""
    slower: int
    """Above it."""


class Published(NamedTuple):
    """What was published of a job: its step, its time to train or both (0: not given)."""

    source: str
    name: str
    job: PredictedJob
    step_ms: float
    time_s: float
    version: str = ""
    """The round of MLPerf."""

    @property
    def step_s(self) -> float:
        return self.step_ms / 1e3


def validate() -> list[Row]:
    """All rows, worst first within calibrated and predicted ones alike; ties by name.

    Errors count to 1e-9: two figures of one prediction differ by less, and by machine.
    """
    rows: list[Row] = []
    for run in (*_mlperf_runs(), *_table_runs(), *_sony_runs()):
        rows.extend(_rows(run, predict(run.job)))
    return sorted(
        rows,
        key=lambda row: (
            -round(abs(row.error), 9),
            row.name,
            row.kind,
            row.machine,
            row.gpus,
        ),
    )


def summarise(rows: Sequence[Row], kind: str) -> Summary:
    """Over the rows of a kind that are not calibrated."""
    of_kind = [row for row in rows if row.kind == kind]
    predicted = [row for row in of_kind if not row.calibrated]
    errors = [row.error for row in predicted] or [0.0]
    sides = [row.side for row in predicted]
    return Summary(
        kind=kind,
        rows=len(predicted),
        calibrated=len(of_kind) - len(predicted),
        mean_absolute_error=mean(map(abs, errors)),
        bias=mean(errors),
        within_10_percent=sum(abs(row.error) <= 0.1 for row in predicted),
        within_interval=sides.count(0),
        faster=sides.count(-1),
        slower=sides.count(1),
    )


def _mlperf_runs() -> Iterator[Published]:
    for row in read_table(MLPERF_RUNS):
        if row["machine"]:
            nodes = {"ranks_per_node": int(row["accel_per_node"])}
            system = _system(row["machine"]).model_copy(update=nodes)
            yield Published(
                source="mlperf_runs",
                name=_mlperf_name(row),
                job=_job(row, system),
                step_ms=float(row["ms_per_step"]),
                time_s=float(row["score_s"]),
                version=row["version"],
            )


def _mlperf_name(row: dict[str, str]) -> str:
    return f"{row['version']} {row['org']} {row['system']}"


def _table_runs() -> Iterator[Published]:
    for row in read_table(SCALING_TABLES):
        if row["machine"]:
            precision = row["precision"].replace("bf16", "fp16")
            algorithm = ALGORITHM_OF_VARIANT.get(row["variant"])
            job = _job(row, _system(row["machine"]), algorithm=algorithm)
            images = job.gpus * job.batch
            images_per_s = float(row["images_per_s"] or "inf")
            step_ms = row["ms_per_step"] or images / images_per_s * 1e3
            yield Published(
                source=row["table"],
                name=f"{row['table']} {row['system']} {precision} {row['variant']}",
                job=replace(job, precision=precision),
                step_ms=float(step_ms),
                time_s=float(row["time_to_train_s"] or 0),
            )


def _job(
    row: dict[str, str], system: System, algorithm: str | None = None
) -> PredictedJob:
    batch = row["batch_per_accelerator"] or UNNAMED_BATCH
    return job_of_system(
        row["machine"],
        system,
        int(row["n_accelerators"]),
        int(batch),
        epochs=_epochs(row["epochs"]),
        algorithm=algorithm,
    )


_system = lru_cache(load_system)


def _epochs(runs: str) -> float:
    """Of `60;60;64;60;60`: mean of the middle three of five, as the score is."""
    if not runs:
        return UNNAMED_EPOCHS
    epochs = sorted(map(float, runs.replace("-", ";").split(";")))
    if len(epochs) == SCORED_RUNS:
        epochs = epochs[1:-1]
    return mean(epochs)


def _sony_runs() -> Iterator[Published]:
    """Whole runs with a batch schedule: the presets on Sony's stack, by its own allreduce."""
    stack = _system("abci_nnl")
    for preset, time_s in SONY_RUNS_S.items():
        run = load(preset).run
        system = stack.model_copy(update={"nodes": run.system.nodes})
        job = job_of_config(run.model_copy(update={"system": system}))
        yield Published(
            source="sony_tables_3_5",
            name=f"Sony {preset}",
            job=replace(job, name="abci_nnl", plan=plan_own(system, job.gpus)),
            step_ms=0.0,
            time_s=time_s,
        )


def _rows(run: Published, answer: Prediction) -> Iterator[Row]:
    """What was published of one job against `answer`."""
    job = run.job
    step_interval_ms = [1e3 * value for value in answer.step_interval_s]
    reasons = [why for word, why in KNOWN_REASONS.items() if word in run.name]
    calibrated = any(_is_of(point, run) for point in answer.machine.points)
    for kind, published, predicted, (low, high) in (
        ("step", run.step_ms, answer.step.total_s * 1e3, step_interval_ms),
        ("time", run.time_s, answer.run.total_s, answer.time_interval_s),
    ):
        if published:
            yield Row(
                kind=kind,
                source=run.source,
                machine=job.name,
                name=run.name,
                gpus=job.gpus,
                batch=job.batch,
                published=published,
                predicted=predicted,
                low=low,
                high=high,
                calibrated=calibrated,
                reason=reasons[0] if reasons else "",
            )


def _is_of(point: Point, run: Published) -> bool:
    """Whether a machine's point is the step that was published of `run`."""
    return (
        point.gpus == run.job.gpus
        and point.batch == run.job.batch
        and math.isclose(point.step_s, run.step_s, rel_tol=1e-4)
    )


# --- rows left out of the fit ------------------------------------------------------------------

LARGE_GPUS = 256
SMALL_GPUS = 128
"""What "small" is where large runs are predicted from small ones."""

_HUBER = 0.25
"""In sigmas: beyond it a row pulls no harder, so that nearly the sum of absolute errors is the
least. An entry can be much slower than its site's other entries, but not much faster."""
_SIGMA = 0.05
_ITERATIONS = 20


@dataclass(frozen=True)
class Score:
    """How well what was left out was predicted."""

    left_out: str
    steps: Summary
    times: Summary
    """Of times to train."""
    large: Summary
    """Of the steps of 256 accelerators and more."""


@lru_cache
def cases() -> tuple[Published, ...]:
    """All runs of MLPerf on machines with a data sheet."""
    return tuple(
        run for run in _mlperf_runs() if uses_sheet(_about(run.job.system), "fp16")
    )


def cross_validate() -> list[Score]:
    """The model judged on what it was not fitted to: the constants of `gpu.py` fitted again without
    the rows that are asked for, and the machine files without those points that are among them.
    By system (from its data sheet alone), by round, by size, and each configuration by itself (its
    machine's other points stay)."""
    by_system = _left_out(lambda run: run.job.name)
    by_round = _left_out(lambda run: run.version)
    by_size = _left_out(lambda run: f"{run.job.gpus} x {run.job.batch}")
    scores = [
        _score("a system", *by_system.values()),
        _score("a round", *by_round.values()),
    ]
    for version, rows in sorted(by_round.items()):
        large = [row for row in rows if row.gpus >= LARGE_GPUS]
        if large:
            scores.append(_score(f"v{version}, from {LARGE_GPUS} on", large))
    scores.append(_score(f"more than {SMALL_GPUS} accelerators", _large_from_small()))
    scores.append(_score("a batch and size", *by_size.values()))
    return scores


def fit_sheet(runs: Sequence[Published]) -> Sheet:
    """The four constants with the least deviation from `runs`, by iterated least squares on the
    logarithm of the step. Equal configurations share a weight; what a step waits for is taken from
    the present constants."""
    repeats = Counter(map(_configuration, runs))
    weights = []
    known = []
    terms = []
    for run in runs:
        job = run.job
        machine = build(job.name, _with_points(job.system, lambda _: False))
        about = machine.performance
        beside_s = job.step(machine, job.batch).total_s - machine.compute_s(job.batch)
        known.append(beside_s + update_s(about))
        flops = job.batch / (about.tensor_flops_per_s or math.inf)
        moved = job.batch / about.memory_bytes_per_s
        cycle_s = about.graphs / about.clock_hz
        terms.append((flops, moved, cycle_s, float(not about.graphs)))
        weights.append(repeats[_configuration(run)] ** -0.5 / _SIGMA)
    measured = np.array([run.step_s for run in runs])
    design = np.array(terms)
    constants = np.array(SHEET)
    for _ in range(_ITERATIONS):
        steps = np.array(known) + design @ constants
        misses = np.log(measured / steps) * weights
        distance = np.maximum(np.abs(misses), 1e-12)
        pull = np.minimum(1.0, _HUBER / distance) ** 0.5
        row_weights = np.array(weights) * pull
        slopes = design / steps[:, None] * row_weights[:, None]
        # A constant that no row speaks of (launches without graphs) stays as it is.
        change, *_ = np.linalg.lstsq(slopes * constants, misses * pull, rcond=None)
        constants = constants * (1 + np.clip(change, -0.5, 0.5))
    return Sheet(*constants.tolist())


def _configuration(run: Published) -> tuple[str, int, int]:
    return run.job.system.accelerator, run.job.gpus, run.job.batch


def _left_out(key: Callable[[Published], str]) -> dict[str, list[Row]]:
    """Rows of the runs with one value of `key`, predicted by all the others."""
    rows = {}
    for value in dict.fromkeys(map(key, cases())):
        kept = [run for run in cases() if key(run) != value]
        asked = [run for run in cases() if key(run) == value]
        rows[value] = _ask(asked, kept, partial(_is_of_none, asked))
    return rows


def _is_of_none(runs: Sequence[Published], point: Point) -> bool:
    return not any(_is_of(point, run) for run in runs)


def _large_from_small() -> list[Row]:
    small = [run for run in cases() if run.job.gpus <= SMALL_GPUS]
    large = [run for run in cases() if run.job.gpus > SMALL_GPUS]
    return _ask(large, small, lambda point: point.gpus <= SMALL_GPUS)


def _ask(
    asked: Sequence[Published], kept: Sequence[Published], keep: Callable[[Point], bool]
) -> list[Row]:
    """Rows of the runs `asked`, by the constants of those `kept` and the points to `keep`."""
    sheet = fit_sheet(kept)
    rows: list[Row] = []
    for run in asked:
        system = _with_points(run.job.system, keep)
        machine = build(run.job.name, system, "fp16", sheet)
        rows.extend(_rows(run, predict(run.job, machine)))
    return rows


def _with_points(system: System, keep: Callable[[Point], bool]) -> System:
    """`system` with those points alone that `keep` keeps."""
    about = _about(system)
    compute = about.fp16
    if compute is not None:
        points = tuple(filter(keep, compute.points))
        compute = compute.model_copy(update={"points": points})
        if not points:
            compute = None
    changed = about.model_copy(update={"fp16": compute, "other_points": ()})
    return system.model_copy(update={"performance": changed})


def _about(system: System) -> Performance:
    assert system.performance is not None
    return system.performance


def _score(left_out: str, *groups: Sequence[Row]) -> Score:
    rows = list(chain(*groups))
    large = [row for row in rows if row.gpus >= LARGE_GPUS]
    return Score(
        left_out,
        steps=summarise(rows, "step"),
        times=summarise(rows, "time"),
        large=summarise(large, "step"),
    )


# --- what is published otherwise ------------------------------------------------------------------

EFFICIENCY_FROM = {"goyal_2017": 8, "akiba_2017": 1}
"""Accelerators that a table's efficiency compares with, where it has no rate that is compared."""


QUOTED = {
    "n_accelerators": "accelerators",
    "global_batch_size": "images",
    "time_to_train_s": "s",
    "efficiency_pct": "% efficiency",
}
"""Figures of a row that is not predicted, with their units."""


@dataclass(frozen=True)
class Efficiency:
    """Of weak scaling: a step of `from_gpus` over one of `gpus`, with as many images on each."""

    table: str
    from_gpus: int
    gpus: int
    batch: int
    published: float
    predicted: float


class Unplaced(NamedTuple):
    """A published row that no machine here predicts, and the reason."""

    name: str
    published: str
    top1_pct: str
    reason: str


def _efficiencies() -> Iterator[Efficiency]:
    for row in read_table(SCALING_TABLES):
        few = EFFICIENCY_FROM.get(row["table"])
        if few is not None:
            batch = int(row["batch_per_accelerator"])
            gpus = int(row["n_accelerators"])
            name = row["machine"]
            machine = build(name, _system(name), row["precision"])
            few_s = step_time(machine, few, batch).total_s
            predicted = few_s / step_time(machine, gpus, batch).total_s
            published = float(row["efficiency_pct"]) / 100
            yield Efficiency(row["table"], few, gpus, batch, published, predicted)


def _unplaced() -> Iterator[Unplaced]:
    for row in read_table(MLPERF_RUNS):
        if not row["machine"]:
            yield Unplaced(
                name=_mlperf_name(row),
                published=f"{row['score_s']} s",
                top1_pct="",
                reason=f"accelerator: {row['accelerator']}",
            )
    for row in read_table(SCALING_TABLES):
        if not row["machine"]:
            names = (row["table"], row["system"], row["variant"])
            figures = [f"{row[key]} {unit}" for key, unit in QUOTED.items() if row[key]]
            yield Unplaced(
                name=" ".join(filter(None, names)),
                published=", ".join(figures),
                top1_pct=row["top1_pct"],
                reason=row["left_out"],
            )


# --- all of it, as text ---------------------------------------------------------------------------

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""A header and rows."""


class Validation(NamedTuple):
    """All rows, their means, and how rows that were left out are predicted."""

    rows: list[Row]
    summaries: list[Summary]
    scores: list[Score]
    efficiencies: list[Efficiency]
    unplaced: list[Unplaced]


def run_validation() -> Validation:
    """Everything that `rn50 predict validate` prints."""
    rows = validate()
    return Validation(
        rows=rows,
        summaries=[summarise(rows, kind) for kind in ("step", "time")],
        scores=cross_validate(),
        efficiencies=list(_efficiencies()),
        unplaced=list(_unplaced()),
    )


def text_lines(validation: Validation) -> Iterator[str | Table]:
    """What people read, in its order: lines, and tables as header and rows."""
    header = (
        "error",
        "what",
        "published",
        "predicted",
        "GPUs x batch",
        "system",
        "row",
        "note",
    )
    yield header, [_row_cells(row) for row in validation.rows]
    yield ""
    for s in validation.summaries:
        yield (
            f"{s.kind}: mean absolute error {s.mean_absolute_error:.1%} over {s.rows} predicted "
            f"rows (mean {s.bias:+.1%}; {s.within_10_percent} within 10 %, {s.within_interval} "
            f"within their 90 % interval, {s.faster} faster, {s.slower} slower); {s.calibrated} "
            "calibrated rows do not count"
        )
    yield ""
    for e in validation.efficiencies:
        yield (
            f"efficiency of {e.table}, {e.gpus} GPUs against {e.from_gpus} with {e.batch} images "
            f"each: {e.published:.0%} published, {e.predicted:.0%} predicted"
        )
    yield ""
    yield f"{len(validation.unplaced)} published rows have no machine that could be predicted:"
    yield (
        ("row", "published", "top-1, %", "why not"),
        [tuple(row) for row in validation.unplaced],
    )
    yield ""
    yield "fp16 steps of machines with a data sheet, fitted without what is predicted:"
    titles = (
        "left out at a time",
        "rows",
        "mean error",
        "bias",
        "in 90 % interval",
        "times in theirs",
        "faster",
        "slower",
        f"from {LARGE_GPUS} on: rows",
        "mean error",
    )
    yield titles, [_score_cells(score) for score in validation.scores]


def _row_cells(row: Row) -> tuple[str, ...]:
    return (
        f"{round(row.error, 9) + 0.0:+.1%}",  # no sign of the last bit
        row.kind,
        f"{row.published:.6g} {'ms' if row.kind == 'step' else 's'}",
        f"{row.predicted:.4g}",
        f"{row.gpus} x {row.batch}",
        row.machine,
        row.name,
        "calibrated" if row.calibrated else row.reason,
    )


def _score_cells(score: Score) -> tuple[str, ...]:
    steps = score.steps
    times = score.times
    return (
        score.left_out,
        f"{steps.rows}",
        f"{steps.mean_absolute_error:.1%}",
        f"{steps.bias:+.1%}",
        f"{steps.within_interval / steps.rows:.0%}",
        f"{times.within_interval / times.rows:.0%}",
        f"{times.faster / times.rows:.0%}",
        f"{times.slower / times.rows:.0%}",
        f"{score.large.rows}",
        f"{score.large.mean_absolute_error:.1%}",
    )
