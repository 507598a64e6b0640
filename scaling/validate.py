"""Predicted against published: every figure of `published/`, worst first, no row hidden. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import mean

from ..config.load import load, load_system
from .epochs import read_table
from .predict import Job, Prediction, job_of_config, job_of_system, predict

# Settings of a published variant; the rest of a row's recipe is the system's own.
ALGORITHM_OF_VARIANT = {
    "flat ring allreduce": "ring",
    "hierarchical allreduce": "hierarchical",
    "2D-Torus 48x72": "torus_2d(48x72)",  # the only grid of Sony's Table 6 that is not the squarest
}

# Horovod PR 542 names no batch: that at which one V100 has its rate (DeepLearningExamples, fp32).
UNNAMED_BATCH = 96

SCORED_RUNS = 5

# Total time of runs with batch-size control, target 0.75 (Mikami et al., Tables 3 and 5).
SONY_RUNS_S = {
    "sony_1024": 505,
    "sony_2176": 224,
    "sony_3456": 122,
    "sony_3456_64k": 115,
    "sony_4096": 129,
}

# What `left_out` prints of a row in scaling_tables.csv without a machine, by column.
QUOTED = {
    "n_accelerators": "{} accelerators",
    "global_batch_size": "batch {}",
    "epochs": "{} epochs",
    "time_to_train_s": "{} s",
    "efficiency_pct": "efficiency {} %",
    "top1_pct": "top-1 {} %",
    "variant": "{}",
}

# Why a row is not a fair test of the model, where that is known. The row counts all the same.
KNOWN_REASONS = {
    "XL675d-Gen10-Plus_A100-SXM-80GB_4N": "slower than its 2 and 8 nodes suggest",
    "XL675d-Gen10-Plus_A100-SXM-80GB_8N": "the same site as the 4-node outlier",
    "dgxa100_n2_ngc20.06": "same software: 8 GPUs with twice the batch take 144.8 ms, not 2 x 86.8",
    "dgx1_multi_ngc18.11": "v0.5 software: no fused kernels and host-side update; epochs as given",
    "dgx2h_multi_ngc18.11": "v0.5 software: no fused kernels and host-side update; epochs as given",
    "cloud-tpu-v4": "software of v2.0, two rounds after the calibrated points",
    "tpu-v4-512": "software of v0.7; no entry of this size came later",
    "dgxh100_n4_preview": "preview software",
    "sony_1024": "their reference run on earlier software; 1,024 GPUs of Table 6 are 2.4 x faster",
    "sony_2176": "earlier software",
    "Horovod": "network, GPU and batch not named",
    "abci_2048xV100_mxnet": "one of ABCI's points is this run's rate divided by its efficiency",
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


def validate() -> list[Row]:
    """All rows, worst first within calibrated and predicted ones alike; ties by name.

    Errors count to 1e-9: two figures of one prediction differ by less, and by machine.
    """
    rows = [*_mlperf_rows(), *_table_rows(), *_sony_runs()]
    return sorted(
        rows,
        key=lambda row: (-round(abs(row.error), 9), row.name, row.kind, row.machine, row.gpus),
    )


def summarise(rows: Sequence[Row], kind: str) -> Summary:
    """Over the rows of a kind that are not calibrated."""
    mine = [row for row in rows if row.kind == kind]
    predicted = [row.error for row in mine if not row.calibrated]
    return Summary(
        kind,
        len(predicted),
        len(mine) - len(predicted),
        mean(map(abs, predicted)),
        mean(predicted),
        sum(abs(error) <= 0.1 for error in predicted),
        sum(r.low <= r.published <= r.high for r in mine if not r.calibrated),
    )


def left_out() -> list[str]:
    """Published rows without a machine that could predict them: a line with figures and reason."""
    lines = [
        f"{row['version']} {row['org']} {row['system']}: a CPU-only system, without a step time"
        for row in read_table("mlperf_runs.csv")
        if not row["machine"]
    ]
    for row in read_table("scaling_tables.csv"):
        if not row["machine"]:
            figures = ", ".join(form.format(row[key]) for key, form in QUOTED.items() if row[key])
            lines.append(f"{row['table']} {row['system']}: {figures}: {row['left_out']}")
    return lines


def _mlperf_rows() -> Iterator[Row]:
    for row in read_table("mlperf_runs.csv"):
        if row["machine"]:
            gpus, batch = int(row["n_accelerators"]), int(row["batch_per_accelerator"])
            epochs = _epochs(row["epochs"])
            job = _job(row["machine"], gpus, batch, epochs, per_node=int(row["accel_per_node"]))
            name = f"{row['version']} {row['org']} {row['system']}"
            figures = float(row["ms_per_step"]), float(row["score_s"] or 0)
            yield from _rows("mlperf_runs", row["machine"], name, job, *figures)


def _table_rows() -> Iterator[Row]:
    for row in read_table("scaling_tables.csv"):
        if not row["machine"]:
            continue
        gpus = int(row["n_accelerators"])
        batch = int(row["batch_per_accelerator"] or UNNAMED_BATCH)
        precision = row["precision"].replace("bf16", "fp16")
        epochs = _epochs(row["epochs"].replace("-", ";")) if row["epochs"] else 90.0
        job = replace(
            _job(row["machine"], gpus, batch, epochs),
            precision=precision,
            algorithm=ALGORITHM_OF_VARIANT.get(row["variant"]),
        )
        name = f"{row['table']} {row['system']} {precision} {row['variant']}"
        step_ms = float(
            row["ms_per_step"] or gpus * batch / float(row["images_per_s"] or "inf") * 1e3
        )
        time_s = float(row["time_to_train_s"] or 0)
        yield from _rows(row["table"], row["machine"], name, job, step_ms, time_s)


def _sony_runs() -> Iterator[Row]:
    """Whole runs with a batch schedule: the presets on Sony's stack."""
    stack = load_system("abci_nnl")
    for preset, time_s in SONY_RUNS_S.items():
        run = load(preset).run
        system = stack.model_copy(update={"nodes": run.system.nodes})
        job = job_of_config(run.model_copy(update={"system": system}), groups="single")
        (row,) = _rows("sony_tables_3_5", "abci_nnl", f"Sony {preset}", job, 0.0, float(time_s))
        yield replace(row, reason=row.reason or "what its clock starts and stops at is not said")


def _rows(
    source: str, machine: str, name: str, job: Job, step_ms: float, time_s: float
) -> Iterator[Row]:
    """What was published of one job, its step or its time or both (0: not said), against ours."""
    answer, batch = predict(job), job.segments[0].batch
    step_interval_ms = [1e3 * value for value in answer.step_interval_s]
    for kind, published, predicted, (low, high) in (
        ("step", step_ms, answer.step.total_s * 1e3, step_interval_ms),
        ("time", time_s, answer.run.total_s, answer.time_interval_s),
    ):
        if published:
            yield Row(
                *(kind, source, machine, name, job.gpus, batch, published, predicted, low, high),
                calibrated=_is_point(answer, job.gpus, batch, step_ms),
                reason=next((why for word, why in KNOWN_REASONS.items() if word in name), ""),
            )


_load_system = lru_cache(load_system)


def _job(machine: str, gpus: int, batch: int, epochs: float, per_node: int | None = None) -> Job:
    system = _load_system(machine)
    if per_node is not None and per_node != system.ranks_per_node:
        system = system.model_copy(update={"ranks_per_node": per_node})
    return job_of_system(machine, system, gpus, batch, epochs=epochs)


def _is_point(answer: Prediction, gpus: int, batch: int, step_ms: float) -> bool:
    return any(
        (point.gpus, point.batch) == (gpus, batch)
        and math.isclose(point.step_s * 1e3, step_ms, rel_tol=1e-4)
        for point in answer.machine.points
    )


def _epochs(runs: str) -> float:
    """Of `60;60;64;60;60`: mean of the middle three of five, as the score is."""
    ordered = sorted(float(epochs) for epochs in runs.split(";"))
    return mean(ordered[1:-1] if len(ordered) == SCORED_RUNS else ordered)
