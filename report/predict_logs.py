"""Step times from MLPerf logs: what `rn50 predict calibrate` fits a machine to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ..config.benchmark import BENCHMARK, IMAGENET_EVAL_SAMPLES, IMAGENET_TRAIN_SAMPLES
from ..config.machine import System
from ..config.schema import Run
from ..host.errors import UserError
from ..logging.places import config_of
from ..predict.calibrate import Measurement
from ..predict.predictor import check_network, precision_of
from .compare import read_all
from .run_summary import RunSummary, show


class CalibrationRun(NamedTuple):
    """A run to calibrate on: its log, its config where one lies beside, its number of GPUs."""

    log: RunSummary
    run: Run | None
    gpus: int


def find_source(argument: str) -> CalibrationRun:
    """The run that `PATH` (its folder, or a log in one) or `PATH:GPUS` (any MLPerf log) means.
    Raises UserError: unreadable, a config of another network, or nothing that says how many
    GPUs."""
    path, gpus = _split(argument)
    subject = read_all([path])[0]
    log = subject.runs[0]
    run = subject.config
    if run is not None:
        check_network(run, str(config_of(log.path.parent)))
        gpus = gpus or run.system.world_size
    if gpus is None:
        raise UserError(
            f"{log.path}: LOG:GPUS expected (a log does not say on how many GPUs it ran, and no "
            "config.yaml is beside it)"
        )
    return CalibrationRun(log, run, gpus)


def common_precision(
    sources: Sequence[CalibrationRun], system: System, requested: str | None
) -> str:
    """What the runs computed in: fp16, fp32 or tf32; `requested`, or fp16, where no config says.
    Raises UserError: runs of different precisions, or another one asked for."""
    precisions = {precision_of(source.run, system) for source in sources if source.run}
    if requested is not None:
        precisions.add(requested)
    if len(precisions) > 1:
        names = " and ".join(sorted(precisions))
        raise UserError(f"runs of one precision expected, found {names}")
    return next(iter(precisions), "fp16")


def read_measurement(source: CalibrationRun) -> Measurement:
    """Step time of a run, and the clocks around it. Raises UserError: unreadable, no epochs in it,
    or not this benchmark."""
    run = source.log
    log = run.path
    gpus = source.gpus
    batch = _whole(run, "global_batch_size")
    samples = _whole(run, "train_samples", IMAGENET_TRAIN_SAMPLES)
    images = _whole(run, "eval_samples", IMAGENET_EVAL_SAMPLES)
    benchmark = run.submission.get("benchmark", BENCHMARK)
    if benchmark != BENCHMARK or (
        source.run is None and samples != IMAGENET_TRAIN_SAMPLES
    ):
        # Our own runs of other networks and crops write the same benchmark.
        raise UserError(
            f"{log}: submission_benchmark {BENCHMARK} with train_samples {IMAGENET_TRAIN_SAMPLES} "
            f"or a config.yaml beside it expected, found {benchmark} with {samples}"
        )
    if batch % gpus:
        raise UserError(
            f"{log}: a global batch of {batch} is no multiple of {gpus} GPUs"
        )
    starts_s = [part.start_s for part in (*run.time.blocks, *run.time.epochs)]
    first_s = min(starts_s, default=0.0)
    # Of another set, what is fixed in an evaluation cannot be told apart.
    evaluation_s = run.eval_s
    if images != IMAGENET_EVAL_SAMPLES:
        evaluation_s = None
    return Measurement(
        gpus=gpus,
        batch=batch // gpus,
        step_s=_epoch_s(run) / math.ceil(samples / batch),
        source=show(str(log)[-200:]),
        startup_s=max(first_s, 0.0) or None,
        evaluation_s=evaluation_s,
    )


def _split(argument: str) -> tuple[Path, int | None]:
    path, _, gpus = argument.rpartition(":")
    # a file may have a colon in its name
    if not path or not gpus.isdecimal() or Path(argument).exists():
        return Path(argument), None
    if int(gpus) < 1:
        raise UserError(
            f"{argument}: GPUs after the colon from 1 expected, found {gpus}"
        )
    return Path(path), int(gpus)


def _epoch_s(run: RunSummary) -> float:
    """Median over blocks of an epoch's time without evaluations, saves and interruptions; the first
    and last do not count.

    Other programs' stamps of single epochs are too early where the engine is asynchronous.
    """
    time = run.time
    excluded = (*time.evaluations, *time.saves, *time.interruptions)
    epochs_s = [time.without(part, excluded) for part in time.blocks or time.epochs]
    if not epochs_s:
        raise UserError(f"{run.path}: finished blocks or epochs expected, found none")
    epoch_s = median(epochs_s[1:-1] or epochs_s[-1:])
    if epoch_s <= 0:
        raise UserError(
            f"{run.path}: epochs longer than 0 s expected, found {epoch_s:g}"
        )
    return epoch_s


def _whole(run: RunSummary, key: str, default: int | None = None) -> int:
    value = run.parameters.get(key, default)
    if type(value) is not int or value < 1:
        raise UserError(
            f"{run.path}: {key}: a whole number from 1 expected, found {value!r}"
        )
    return value
