"""Time to train: start, first epoch, epochs x steps, evaluations. Pure.

T = start + first epoch's excess + sum of steps x step time + evaluations x their time.
Initialisation before run_start is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..config.benchmark import IMAGENET_EVAL_SAMPLES, IMAGENET_TRAIN_SAMPLES
from .hardware import Machine
from .step import group_cost_s

DATASET_BYTES = 140e9
"""ImageNet's training set as RecordIO: 1,281,167 JPEG of 110 KB."""

BATCH_NORM_STATISTICS_BYTES = 2 * 26_560 * 4
"""Running mean and variance of 26,560 channels in fp32, averaged before an evaluation."""


@dataclass(frozen=True)
class Phase:
    """Epochs with one batch."""

    epochs: float
    batch: int
    steps_per_epoch: float
    step_s: float


@dataclass(frozen=True)
class TrainTime:
    """The parts of the time between run_start and run_stop, in seconds."""

    startup_s: float
    """run_start to the first epoch: iterators, the first touch of the data."""
    first_epoch_excess_s: float
    """What the first epoch takes longer: reading what later epochs find cached."""
    training_s: float
    bn_statistics_s: float
    evaluation_s: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part, by its name for people."""
        return {
            "startup": self.startup_s,
            "first epoch excess": self.first_epoch_excess_s,
            "training": self.training_s,
            "bn statistics": self.bn_statistics_s,
            "evaluation": self.evaluation_s,
        }

    @property
    def total_s(self) -> float:
        """The time to train."""
        return math.fsum(self.parts.values())


def steps_per_epoch(ranks: int, batch: int) -> int:
    """ceil(floor(N / p) / b): every rank pads its own last batch."""
    return math.ceil(IMAGENET_TRAIN_SAMPLES // ranks / batch)


def train_time(
    machine: Machine,
    phases: Sequence[Phase],
    evals: int,
    gpus: int,
    *,
    bn_average: bool,
    algorithms: Sequence[str],
) -> TrainTime:
    """All clocks of a run.

    Args:
        machine: the machine's model.
        phases: the epochs, by their batch.
        evals: how often it evaluates.
        gpus: how many ranks take part.
        bn_average: whether batch-norm statistics are averaged over the ranks before each
            evaluation.
        algorithms: those of which the fastest averages them.
    """
    performance = machine.performance
    nodes = math.ceil(gpus / machine.system.ranks_per_node)
    # a node reads its ranks' images from storage once; later epochs find them in its memory
    epoch_s = phases[0].steps_per_epoch * phases[0].step_s
    reading_s = DATASET_BYTES / nodes / performance.read_bytes_per_s
    statistics_s = 0.0
    if bn_average and gpus > 1:
        _, statistics_s = group_cost_s(
            machine, gpus, BATCH_NORM_STATISTICS_BYTES, algorithms
        )
    return TrainTime(
        startup_s=performance.startup_s,
        first_epoch_excess_s=performance.first_epoch_s + max(0.0, reading_s - epoch_s),
        training_s=math.fsum(p.epochs * p.steps_per_epoch * p.step_s for p in phases),
        bn_statistics_s=evals * statistics_s,
        evaluation_s=evals * evaluation_s(machine, gpus),
    )


def evaluation_s(machine: Machine, gpus: int) -> float:
    """One evaluation: a fixed cost and each rank's share of the 50,000 images."""
    performance = machine.performance
    return (
        performance.eval_fixed_s
        + IMAGENET_EVAL_SAMPLES / gpus / performance.eval_images_per_s
    )
