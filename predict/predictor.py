"""A run on a described machine: step time, rate, time to train, each with an interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from ..config.benchmark import (
    CROP_PX,
    EVAL_PERIOD_EPOCHS,
    IMAGENET_TRAIN_SAMPLES,
    NETWORK,
    RESNET50_TENSORS,
    TARGET_ACCURACY,
)
from ..config.communication import (
    Communication,
    at_size,
    plan_of_any,
    plan_own,
    what_if,
)
from ..config.engines import Family
from ..config.groups import gradient_groups
from ..config.machine import System
from ..config.plan import build_plan
from ..config.schema import Data, Model, Run
from ..config.values import MOST_EPOCHS
from ..host.errors import UserError
from .epochs import LEVEL_SIGMAS, Epochs, epochs_to_target, evaluations, stop_epoch
from .fit import build
from .gpu import SIGMA_POINT, beyond_memory
from .hardware import Machine
from .layer_table import wire_groups
from .step import Step, step_time
from .train_time import Phase, TrainTime, steps_per_epoch, train_time
from .work import training_flops, utilisation

SIGMA_MODEL = 0.036
"""Relative error of a step near its calibration: vendors with the same parts differ by as much."""
SIGMA_FEW_POINTS = 0.06
"""The same where one or two points are all that is known of a machine."""
SIGMA_WAITING = 0.4
"""The relative error of what a step does beside computing."""
SIGMA_PER_DOUBLING_OF_GPUS = 0.01
SIGMA_PER_HALVING_OF_BATCH = 0.02
SIGMA_FIXED_COSTS = 0.4
"""Relative error of what a run costs beside its steps (first epoch, evaluations)."""
SIGMAS_FASTER = 1.5
SIGMAS_SLOWER = 1.0
DELAY = 0.122
"""The 90 % interval of a time is skewed, as the published times left out are (`validate.py`): a run
can lose time in ways that no step shows, but gains none. The interval reaches SIGMAS_FASTER down,
and up by SIGMAS_SLOWER and the share DELAY of the time, in quadrature."""

MAX_GPUS = 1 << 20
CURVE_DOUBLINGS = range(-6, 3)
CURVE_IMAGES = 200_000
"""The largest global batch of a scaling curve beyond the asked one."""


_FLOPS_PER_IMAGE = training_flops(Model(), Data()) or 0
"""What ResNet-50 needs at 224 px, in training."""


@dataclass(frozen=True)
class Segment:
    """Epochs from `first_epoch` (1-based) on with one batch."""

    first_epoch: int
    ranks: int
    batch: int
    steps_per_epoch: float


@dataclass(frozen=True)
class PredictedJob:
    """What is to be predicted. None: the system's or the published runs' own choice."""

    name: str
    system: System
    gpus: int
    segments: tuple[Segment, ...]
    plan: Communication
    epochs: float | None = None
    precision: str = "fp16"
    ruleset: str = "4.0.0"
    period: int = EVAL_PERIOD_EPOCHS
    offset: int | None = None
    last_epoch: int | None = None
    """The epoch with which a config's run ends, if it has not reached the target."""
    bn_average: bool = True

    @property
    def batch(self) -> int:
        """Images of an accelerator in the first segment."""
        return self.segments[0].batch

    @property
    def global_batch_size(self) -> int:
        """Images of a step in the first segment."""
        return self.segments[0].ranks * self.batch

    def step(self, machine: Machine, batch: int) -> Step:
        """One step with `batch` images each; ranks that idle take part in the sum."""
        return step_time(machine, self.gpus, batch, self.plan)

    def at_size(self, gpus: int, batch: int) -> PredictedJob:
        """The same way of training on another number of accelerators."""
        return replace(
            self,
            gpus=gpus,
            segments=_one_batch(gpus, batch),
            plan=at_size(self.plan, self.system, gpus),
            last_epoch=self.last_epoch if gpus == self.gpus else None,
        )

    def stop_epoch(self, needed_epochs: float) -> int:
        """The epoch with which a run ends that needs so many to the target."""
        epoch = stop_epoch(needed_epochs, self.period, self.offset)
        return epoch if self.last_epoch is None else min(epoch, self.last_epoch)


@dataclass(frozen=True)
class Prediction:
    """The answer, and how sure it is: (low, high) hold with 90 % probability."""

    job: PredictedJob
    machine: Machine
    step: Step
    phases: tuple[Phase, ...]
    run: TrainTime
    epochs: float
    needed: Epochs
    """What published runs needed, before the next evaluation."""
    epochs_interval: tuple[float, float]
    evaluations: int
    step_interval_s: tuple[float, float]
    time_interval_s: tuple[float, float]

    @property
    def images_per_s(self) -> float:
        """Data set over the time of an epoch, as MLPerf counts it."""
        first = self.phases[0]
        return IMAGENET_TRAIN_SAMPLES / (first.steps_per_epoch * first.step_s)

    @property
    def efficiency(self) -> float:
        """Time of computation alone over the step: one rank without others would reach 1."""
        return self.machine.compute_s(self.job.batch) / self.step.total_s

    @property
    def node_efficiency(self) -> float | None:
        """A step of one node over the step, with as many images on each accelerator, as Sony
        defines it. None: there is one node."""
        per_node = self.job.system.ranks_per_node
        if self.job.gpus <= per_node:
            return None
        node = self.job.at_size(per_node, self.job.batch)
        return node.step(self.machine, node.batch).total_s / self.step.total_s

    @property
    def training_flops(self) -> float:
        """FLOPs of the run; evaluations are not counted."""
        return _FLOPS_PER_IMAGE * IMAGENET_TRAIN_SAMPLES * self.epochs

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation; None: the peak is not known."""
        job = self.job
        flops_per_s = _FLOPS_PER_IMAGE * self.images_per_s
        return utilisation(flops_per_s, job.gpus, job.system, job.precision)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that each rank sends in a step."""
        return sum(group.n_bytes for group in wire_groups("single", self.job.precision))

    @property
    def gpu_hours(self) -> float:
        """What the run occupies, its initialisation included."""
        run_s = self.machine.performance.init_s + self.run.total_s
        return self.job.gpus * run_s / 3600

    def warnings(self) -> list[str]:
        """A line for each point of the fit that is missed by more than three of its sigmas."""
        lines = []
        for point in self.machine.points:
            if point in self.machine.performance.other_points:
                continue
            modelled_s = step_time(self.machine, point.gpus, point.batch).total_s
            off = math.log(modelled_s / point.step_s)
            if abs(off) > 3 * SIGMA_POINT:
                lines.append(
                    f"{self.job.name}: {point.gpus} x {point.batch}: {point.step_s * 1e3:.2f} ms "
                    f"published, {modelled_s * 1e3:.2f} ms modelled: more than three sigmas away"
                )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """What `rn50 predict --json` prints: figures for programs, and what else is known."""
        step = self.step
        run = self.run
        return {
            "step_time_ms": round(step.total_s * 1e3, 4),
            "images_per_s": round(self.images_per_s, 1),
            "time_to_train_s": round(run.total_s, 3),
            "interval": [round(value, 3) for value in self.time_interval_s],
            "breakdown": {
                "step_ms": _rounded(step.parts, 1e3),
                "run_s": _rounded(run.parts),
            },
            "step_time_interval_ms": [
                round(value * 1e3, 4) for value in self.step_interval_s
            ],
            "epochs": self.epochs,
            "epochs_needed": round(self.needed.expected, 2),
            "epochs_interval": self.epochs_interval,
            "evaluations": self.evaluations,
            "steps_per_epoch": self.phases[0].steps_per_epoch,
            "global_batch_size": self.job.global_batch_size,
            "allreduce": step.allreduce,
            "communication": self.job.plan.to_dict(),
            "gpus": self.job.gpus,
            "batch_per_gpu": self.job.batch,
            "efficiency": round(self.efficiency, 4),
            "node_efficiency": self.node_efficiency and round(self.node_efficiency, 4),
            "training_flops": self.training_flops,
            "mfu": self.mfu and round(self.mfu, 4),
            "gradient_bytes_per_step": self.gradient_bytes,
            "gpu_hours": round(self.gpu_hours, 3),
            "system": self.job.name,
            "precision": self.job.precision,
            "init_s": self.machine.performance.init_s,
            "calibrated_on": [
                {
                    "gpus": point.gpus,
                    "batch": point.batch,
                    "step_ms": point.step_s * 1e3,
                    "source": point.source,
                }
                for point in self.machine.points
            ],
            "data_sheet": self.machine.has_sheet,
            # whether the time of such software on it is known from measurements
            "measured": bool(self.machine.measured),
            "warnings": self.warnings(),
        }


def _rounded(parts: Mapping[str, float], scale: float = 1.0) -> dict[str, float]:
    """Parts as JSON has them, in another unit."""
    return {
        name.replace(" ", "_"): round(scale * seconds, 4)
        for name, seconds in parts.items()
    }


def job_of_system(
    name: str,
    system: System,
    gpus: int,
    batch: int,
    *,
    algorithm: str | None = None,
    groups: str | None = None,
    mpi: Family | None = None,
    **choices: Any,
) -> PredictedJob:
    """A job of constant batch by the machine's own software.

    Args:
        name: what answers call the machine.
        system: the machine.
        gpus: its accelerators.
        batch: images of each in a step.
        algorithm: a what-if in place of the machine's, and so is `groups`.
        groups: see `algorithm`.
        mpi: the one that Horovod was linked to.
        **choices: further fields of the job.

    Raises:
        UserError: the numbers make no run.
    """
    _check_gpus(gpus)
    if not gpus <= gpus * batch <= IMAGENET_TRAIN_SAMPLES:
        raise UserError(
            f"--batch-per-gpu: 1 to {IMAGENET_TRAIN_SAMPLES // gpus} on {gpus} GPUs expected (the "
            f"training set holds {IMAGENET_TRAIN_SAMPLES} images), found {batch}"
        )
    per_node = system.ranks_per_node
    if gpus > per_node and gpus % per_node:
        raise UserError(
            f"--gpus: whole nodes of {name} expected, multiples of {per_node} such as "
            f"{gpus // per_node * per_node}, found {gpus}"
        )
    segments = _one_batch(gpus, batch)
    plan = what_if(plan_own(system, gpus, mpi), system, gpus, algorithm, groups)
    return _checked(PredictedJob(name, system, gpus, segments, plan, **choices))


def _check_gpus(gpus: int) -> None:
    if not 1 <= gpus <= MAX_GPUS:
        raise UserError(f"--gpus: 1 to {MAX_GPUS} expected, found {gpus}")


def _one_batch(gpus: int, batch: int) -> tuple[Segment, ...]:
    return (Segment(1, gpus, batch, steps_per_epoch(gpus, batch)),)


def job_of_config(
    run: Run,
    *,
    algorithm: str | None = None,
    groups: str | None = None,
    mpi: Family | None = None,
    **choices: Any,
) -> PredictedJob:
    """The job a config describes, its batch schedule included, as `rn50 launch` runs it.

    Args:
        algorithm: a what-if in place of the config's, and so is `groups`.
        mpi: the one that Horovod was linked to.

    Raises UserError: another network than ResNet-50, another data set, an allreduce that no launch
    takes, or contradictions.
    """
    check_network(run, run.name)
    if run.data.train_samples != IMAGENET_TRAIN_SAMPLES:
        raise UserError(
            f"data.train_samples: {IMAGENET_TRAIN_SAMPLES} (ImageNet) expected, "
            f"found {run.data.train_samples}"
        )
    plan = build_plan(run)
    segments = []
    for segment in plan.segments:
        steps: float = plan.train_samples / segment.global_batch_size
        if run.data.last_batch == "pad":
            steps = math.ceil(steps)
        ranks = segment.active_ranks
        segments.append(Segment(segment.first_epoch, ranks, segment.per_rank, steps))
    # a closed run of one batch stops when it converges, which published runs tell
    converges = (
        run.division == "closed"
        and len(segments) == 1
        and run.eval.target == TARGET_ACCURACY
    )
    last_epoch = plan.eval_epochs[-1]
    if run.limits.epochs is not None:
        last_epoch = min(last_epoch, run.limits.epochs)
    communication = plan_of_any(run, mpi)
    job = PredictedJob(
        name=run.system.name,
        system=run.system,
        gpus=plan.ranks,
        segments=tuple(segments),
        plan=what_if(communication, run.system, plan.ranks, algorithm, groups),
        epochs=None if converges else float(last_epoch),
        precision=precision_of(run, run.system),
        ruleset=run.ruleset,
        period=run.eval.period,
        offset=run.eval.offset,
        last_epoch=last_epoch,
        bn_average=run.eval.bn_stats != "local",
    )
    return _checked(replace(job, **choices))


def check_network(run: Run, source: str) -> None:
    """Raises UserError, named by `source`, where `run` trains no ResNet-50 v1.5 at 224 px."""
    differences = []
    for key, expected in (NETWORK | {"data.crop_px": CROP_PX}).items():
        value = attrgetter(key)(run)
        if value != expected:
            differences.append(f"{key} {value} (not {expected})")
    if differences:
        raise UserError(
            f"{source}: ResNet-50 v1.5 at {CROP_PX} px expected, found {', '.join(differences)}"
        )


def on_system(run: Run, system: System, gpus: int | None = None) -> Run:
    """The recipe of `run` on another machine: the same ranks (or `gpus`), laid on its nodes. Its
    points are those of whole nodes, so `job_of_config` takes `system` beside it. Raises UserError:
    a number of GPUs that fills no whole nodes."""
    ranks = run.system.world_size if gpus is None else gpus
    _check_gpus(ranks)
    per_node = min(ranks, system.ranks_per_node)
    if ranks % per_node:
        raise UserError(
            f"--gpus: a multiple of {per_node} (a node) expected, found {ranks}"
        )
    nodes = {"nodes": ranks // per_node, "ranks_per_node": per_node}
    resized = system.model_copy(update=nodes)
    return run.model_copy(update={"system": resized})


def precision_of(run: Run, system: System) -> str:
    """How `system` computes the config's dtype: float32 is TF32 by default from Ampere on."""
    if run.model.dtype != "float32":
        return "fp16"
    performance = system.performance
    has_tf32 = performance and performance.tf32 and not performance.fp32
    return "tf32" if has_tf32 else "fp32"


def predict(job: PredictedJob, machine: Machine | None = None) -> Prediction:
    """Step time, time to train and their intervals, by `machine` in place of the system's own
    model. Raises UserError: a system without a model."""
    if machine is None:
        machine = build(job.name, job.system, job.precision)
    step = job.step(machine, job.batch)
    epochs = job.epochs
    if epochs is not None:
        needed = Epochs(epochs, epochs, epochs)
        epochs_interval = (epochs, epochs)
    else:
        needed = epochs_to_target(job.global_batch_size, job.ruleset)
        epochs, low, high = (float(job.stop_epoch(value)) for value in needed)
        epochs_interval = (low, high)
    evals = evaluations(math.ceil(epochs), job.period, job.offset)
    phases = _phases(machine, job, epochs)
    run = train_time(
        machine,
        phases,
        evals,
        job.gpus,
        bn_average=job.bn_average,
        algorithms=job.plan.priced,
    )
    sigma = step_sigma(machine, job.gpus, job.batch, step.total_s)
    spread = 1 + LEVEL_SIGMAS * sigma
    return Prediction(
        job=job,
        machine=machine,
        step=step,
        phases=phases,
        run=run,
        epochs=epochs,
        needed=needed,
        epochs_interval=epochs_interval,
        evaluations=evals,
        step_interval_s=(step.total_s / spread, step.total_s * spread),
        time_interval_s=_time_interval_s(run, sigma, needed, run.training_s / epochs),
    )


def _time_interval_s(
    run: TrainTime, step_sigma: float, epochs: Epochs, epoch_s: float
) -> tuple[float, float]:
    """The skewed interval of a time to train (`DELAY`)."""
    total_s = run.total_s
    beside_s = SIGMA_FIXED_COSTS * (total_s - run.training_s)
    sigma = math.hypot(run.training_s * step_sigma, beside_s) / total_s
    fewer_epochs_s = (epochs.expected - epochs.low) * epoch_s
    more_epochs_s = (epochs.high - epochs.expected) * epoch_s
    # independent causes add up as squares do (hypot)
    faster_s = SIGMAS_FASTER * sigma * total_s
    slower_s = SIGMAS_SLOWER * sigma * total_s
    below_s = math.hypot(faster_s, fewer_epochs_s)
    above_s = math.hypot(slower_s, DELAY * total_s, more_epochs_s)
    return max(0.2 * total_s, total_s - below_s), total_s + above_s


def curve(answer: Prediction) -> list[Prediction]:
    """The same job on fewer and on more GPUs, with the same batch on each (weak scaling)."""
    job = answer.job
    per_node = job.system.ranks_per_node
    counts = set()
    for doublings in CURVE_DOUBLINGS:
        count = max(1, round(job.gpus * 2.0**doublings))
        # whole nodes, as a job has them
        if count > per_node:
            count = count // per_node * per_node
        if doublings <= 0 or count * job.batch <= CURVE_IMAGES:
            counts.add(count)
    points = []
    for count in sorted(counts):
        epochs = job.epochs if count == job.gpus else None
        points.append(predict(replace(job.at_size(count, job.batch), epochs=epochs)))
    return points


def strong_curve(answer: Prediction) -> list[Prediction]:
    """The same global batch and epochs on fewer and on more GPUs, as far as they hold it in equal
    shares."""
    job = answer.job
    images = job.gpus * job.batch
    points = []
    for count in [point.job.gpus for point in curve(answer)]:
        if images % count == 0:
            scaled = replace(job.at_size(count, images // count), epochs=answer.epochs)
            with suppress(UserError):
                points.append(predict(_checked(scaled)))
    return points


def step_sigma(machine: Machine, gpus: int, batch: int, total_s: float) -> float:
    """The relative error of a step; it grows with the distance from the points. The constants' part
    follows from the weighing of data sheet and points (`hardware.py`); the rest was set so that
    90 % intervals hold 85 to 95 % of the rows left out (`validate.py`).

    Args:
        machine: the machine's model.
        gpus: how many take part.
        batch: images of each.
        total_s: the step as it is predicted.
    """
    points = machine.points
    # a machine without a point is known from its data sheet: as one device
    known_gpus = max((point.gpus for point in points), default=1)
    doublings = max(0.0, math.log2(gpus / known_gpus))
    far = SIGMA_PER_DOUBLING_OF_GPUS * doublings
    if machine.covariance is None:
        batches = [point.batch for point in points]
        smaller = math.log2(min(batches) / batch)
        larger = math.log2(batch / max(batches))
        other_batch = SIGMA_PER_HALVING_OF_BATCH * max(0.0, smaller, larger)
        return math.hypot(SIGMA_FEW_POINTS, other_batch, far)
    growing = machine.growing_s(batch) / total_s
    fixed = machine.fixed_s / total_s
    per_image, launch, both = machine.covariance
    # of a weighted sum of two errors that depend on each other
    variance = growing**2 * per_image + fixed**2 * launch
    variance += 2 * growing * fixed * both
    waiting = SIGMA_WAITING * (1 - growing - fixed)
    return math.hypot(SIGMA_MODEL, math.sqrt(variance), waiting, far)


def _phases(machine: Machine, job: PredictedJob, epochs: float) -> tuple[Phase, ...]:
    starts = [segment.first_epoch - 1 for segment in job.segments]
    ends = [*starts[1:], math.inf]
    phases = []
    for segment, start, end in zip(job.segments, starts, ends, strict=True):
        if start < epochs:
            step_s = job.step(machine, segment.batch).total_s
            trained = min(end, epochs) - start
            phases.append(
                Phase(trained, segment.batch, segment.steps_per_epoch, step_s)
            )
    return tuple(phases)


def _checked(job: PredictedJob) -> PredictedJob:
    """`job`, its memory, epochs and grouping proved to exist."""
    largest = max(segment.batch for segment in job.segments)
    refusal = beyond_memory("--batch-per-gpu", largest, job.system, job.precision)
    if refusal:
        raise UserError(refusal)
    if job.epochs is not None and not 1 <= job.epochs <= MOST_EPOCHS:
        raise UserError(f"--epochs: 1 to {MOST_EPOCHS} expected, found {job.epochs:g}")
    rule = job.plan.groups
    try:
        gradient_groups(rule, [1] * RESNET50_TENSORS)
    except ValueError as error:
        raise UserError(f"--groups: {error} expected, found {rule}") from None
    return job
