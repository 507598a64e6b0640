"""What follows from a config by arithmetic: ranks, batches, steps, epochs. Pure, no framework."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..host.errors import UserError
from .manifest import Part
from .schema import Batch, BatchChange, Run
from .values import MOST_EPOCHS, Duration


@dataclass(frozen=True)
class Segment:
    """A part of the run with one batch. Steps and samples count from 0, epochs from 1. Samples
    are positions in the stream of training images (see `data/sampling.py`)."""

    first_epoch: int
    first_step: int
    first_sample: int
    per_rank: int
    active_ranks: int

    @property
    def global_batch_size(self) -> int:
        """Images of all ranks in a step."""
        return self.per_rank * self.active_ranks


@dataclass(frozen=True)
class Plan:
    """The numbers of a run. Epochs are 1-based, steps count optimizer updates from 1."""

    ranks: int
    train_samples: int
    last_batch: str
    segments: tuple[Segment, ...]
    parts: int = 1
    """How many parts the set has, each read by one node (`data.shards`); 1: all ranks read all."""
    epochs: int = 0
    total_steps: int = 0
    warmup_steps: int = 0
    decay_steps: int = 0
    warmup_images: float = 0
    decay_images: float = 0
    log_every_steps: int = 1
    checkpoint_every_steps: int = 1
    min_accuracy_by_steps: int = 0
    eval_epochs: tuple[int, ...] = ()

    @property
    def global_batch_size(self) -> int:
        """Images of a step in the first segment."""
        return self.segments[0].global_batch_size

    @property
    def steps_per_epoch(self) -> float:
        """Steps of an epoch in the first segment; a fraction where epochs mix within a batch."""
        exact = self.train_samples / self.global_batch_size
        return exact if self.last_batch == "mix" else math.ceil(exact)

    @property
    def last_step(self) -> int:
        """The last step that is trained: it ends the epoch of the last evaluation."""
        return self.epoch_end_step(self.eval_epochs[-1])

    def segment_of_epoch(self, epoch: int) -> Segment:
        """The segment in which an epoch is trained."""
        return next(s for s in reversed(self.segments) if s.first_epoch <= epoch)

    def segment_of_step(self, step: int) -> Segment:
        """The segment in which a step is trained."""
        return next(s for s in reversed(self.segments) if s.first_step < step)

    def part_of(self, rank: int) -> Part:
        """The part of the set that `rank` reads; ranks of a node follow each other."""
        return Part(rank * self.parts // self.ranks, self.parts)

    def samples_per_epoch(self, segment: Segment) -> int:
        """Samples that one epoch of a segment takes, the padding of "pad" included."""
        batch = segment.global_batch_size
        if self.last_batch == "pad":
            return math.ceil(self.train_samples / batch) * batch
        return self.train_samples

    def epoch_end_step(self, epoch: int) -> int:
        """The step that completes `epoch`: all its images have been seen once by then."""
        if epoch < 1:
            return 0
        if self.last_batch == "mix":
            return self.step_at(epoch * self.train_samples)
        segment = self.segment_of_epoch(epoch)
        epochs = epoch - segment.first_epoch + 1
        samples = epochs * self.samples_per_epoch(segment)
        return segment.first_step + samples // segment.global_batch_size

    def step_at(self, images: float) -> int:
        """The first step after which so many images have been trained on."""
        for segment in reversed(self.segments):
            within = images - segment.first_sample
            if within > 0:
                steps = math.ceil(within / segment.global_batch_size)
                return segment.first_step + steps
        return 0

    def images_after(self, step: int) -> int:
        """Samples consumed once `step` is done: images trained on, padding included."""
        if step < 1:
            return 0
        segment = self.segment_of_step(step)
        steps = step - segment.first_step
        return segment.first_sample + steps * segment.global_batch_size

    def epoch_at(self, step: int) -> float:
        """Epochs done once `step` is done, as a fraction."""
        if step < 1:
            return 0.0
        images = self.images_after(step)
        if self.last_batch == "mix":
            return images / self.train_samples
        segment = self.segment_of_step(step)
        within = images - segment.first_sample
        return segment.first_epoch - 1 + within / self.samples_per_epoch(segment)

    def steps(self, duration: Duration, total_steps: int | None = None) -> int:
        """Whole steps in a duration from the start of the run; `total_steps`: what "%" is of."""
        if duration.unit == "steps":
            return int(duration.value)
        if duration.unit == "%":
            return round(duration.value / 100 * (total_steps or 0))
        if len(self.segments) == 1:
            return round(duration.value * self.steps_per_epoch)
        # epochs have different lengths: the whole ones by the segments, a share of the next
        full_epochs = math.floor(duration.value)
        start = self.epoch_end_step(full_epochs)
        steps = self.epoch_end_step(full_epochs + 1) - start
        return start + round((duration.value - full_epochs) * steps)


def momentum_for_batch(
    follow: str, batch: int, reference_batch: int, reference_momentum: float
) -> float:
    """Momentum at a global batch, from that of a reference batch. The learning rate cancels.

    "momentum" keeps the noise scale lr N / (B (1 - m)) (Smith and Le, 1710.06451). Any other value
    is Sony's formula as printed (1811.05233 section 3.2), dashes read as products.

    Args:
        follow: the value of `batch.follow`.
        batch: the global batch.
        reference_batch: the global batch of `reference_momentum`.
        reference_momentum: the momentum that the config gives.
    """
    growth = batch / reference_batch
    if follow == "momentum":
        growth = reference_batch / batch
    return 1 - (1 - reference_momentum) * growth


def build_plan(run: Run) -> Plan:
    """Derive the plan of `run`. Raises UserError where its parts contradict each other."""
    plan = Plan(
        ranks=run.system.world_size,
        train_samples=run.data.train_samples,
        last_batch=run.data.last_batch,
        segments=(),
        parts=run.system.nodes if run.data.shards else 1,
    )
    batches: list[Batch | BatchChange] = [run.batch, *run.batch.changes]
    for batch in batches:
        segment = _segment(run, plan, batch)
        plan = replace(plan, segments=(*plan.segments, segment))
    _check_momentum(run, plan)
    epochs = _epochs(plan, run.schedule.length)
    total = plan.epoch_end_step(epochs)
    plan = replace(plan, epochs=epochs, total_steps=total)
    plan = _with_schedule(plan, run)
    # epoch e is evaluated when (e - 1) mod period = offset, as the message below says
    period = run.eval.period
    offset = run.eval.offset
    evals = [epoch for epoch in range(1, epochs + 1) if (epoch - 1) % period == offset]
    if not evals:
        raise UserError(
            f"eval.offset: no evaluation in {epochs} epochs with period {period} and "
            f"offset {offset} (epoch e is evaluated when (e - 1) mod period = offset)"
        )
    by = run.limits.min_accuracy_by
    return replace(
        plan,
        log_every_steps=max(1, plan.steps(run.log.every, total)),
        checkpoint_every_steps=max(1, plan.steps(run.checkpoint.every, total)),
        # a step that never comes, where the limit is off
        min_accuracy_by_steps=total + 1 if by is None else plan.steps(by, total),
        eval_epochs=tuple(evals),
    )


def _segment(run: Run, plan: Plan, batch: Batch | BatchChange) -> Segment:
    """The segment of `batch` after those that `plan` has."""
    ranks = plan.ranks
    per_rank = batch.per_rank
    active = batch.active_ranks or ranks
    if active > ranks:
        raise UserError(
            f"batch.active_ranks: at most {ranks} ranks expected, found {active}"
        )
    if per_rank * active > plan.train_samples:
        raise UserError(
            f"batch.per_rank: {per_rank} on {active} ranks makes a global batch of "
            f"{per_rank * active}, more than the {plan.train_samples} training images"
        )
    min_nodes = run.system.job.min_nodes
    if run.data.shards and (plan.last_batch, active, min_nodes) != ("pad", ranks, None):
        raise UserError(
            "data.shards: node needs data.last_batch: pad, all ranks active and no "
            f"system.job.min_nodes, found {plan.last_batch}, {active} of {ranks} and {min_nodes}"
        )
    epochs_before = batch.after_epoch if isinstance(batch, BatchChange) else 0
    step = plan.epoch_end_step(epochs_before)
    return Segment(
        first_epoch=epochs_before + 1,
        first_step=step,
        first_sample=plan.images_after(step),
        per_rank=per_rank,
        active_ranks=active,
    )


def _with_schedule(plan: Plan, run: Run) -> Plan:
    """`plan` with the lengths of warm-up and decay, in steps and in images trained on.

    With one batch and the decay counted from the warm-up, both are whole steps. Otherwise epochs
    are exact: set sizes of images, which a step may pass (Sony, arXiv:1811.05233 section 3.2).
    """
    schedule = run.schedule
    total = plan.total_steps
    mixes = plan.last_batch == "mix"
    from_start = schedule.decay_from == "run_start"
    exact = len(plan.segments) > 1 or from_start

    def end(duration: Duration, start: float) -> float:
        """Images trained on at the end of `duration`, which starts at so many."""
        first = plan.step_at(start)
        if exact and duration.unit == "epochs":
            if mixes:
                return start + duration.value * plan.train_samples
            # padded epochs are counted from the start of the run
            duration = Duration(plan.epoch_at(first) + duration.value, "epochs")
            first = 0
        return plan.images_after(first + plan.steps(duration, total))

    warmup_images = end(schedule.warmup, 0)
    warmup = plan.step_at(warmup_images)
    if warmup >= total:
        raise UserError(
            f"schedule.warmup: less than the whole run ({total} steps) expected, "
            f"found {schedule.warmup} = {warmup} steps"
        )
    first = 0 if from_start else warmup_images
    if schedule.decay is not None:
        last = end(schedule.decay, first)
    elif exact and mixes:
        last = plan.epochs * plan.train_samples
    else:
        last = plan.images_after(total)
    return replace(
        plan,
        warmup_steps=warmup,
        warmup_images=warmup_images,
        decay_steps=plan.step_at(last) - plan.step_at(first),
        decay_images=last - first,
    )


def spread(global_batch: int, ranks: int) -> tuple[int, int]:
    """(images per rank, ranks with a share) of the same global batch on at most so many ranks: all
    shares are equal, so the largest number of ranks that divides it takes part."""
    active = min(ranks, global_batch)
    while global_batch % active:
        active -= 1
    return global_batch // active, active


def _check_momentum(run: Run, plan: Plan) -> None:
    follow = run.batch.follow
    if not follow.startswith("momentum"):
        return
    reference = run.batch.reference or plan.global_batch_size
    for segment in plan.segments:
        batch = segment.global_batch_size
        momentum = momentum_for_batch(follow, batch, reference, run.optimizer.momentum)
        if momentum < 0:
            raise UserError(
                f"batch.follow: {follow} gives momentum {momentum:.4g} at a global batch of "
                f"{batch} (reference {reference}); expected 0 or more"
            )


def _epochs(plan: Plan, length: Duration) -> int:
    """Epochs that a run of `length` touches."""
    epochs = math.ceil(length.value)
    if length.unit == "steps":
        steps = plan.steps(length)
        epochs = max(1, math.floor(plan.epoch_at(steps)))
        while plan.epoch_end_step(epochs) < steps:
            epochs += 1
    if epochs > MOST_EPOCHS:
        raise UserError(
            f"schedule.length: at most {MOST_EPOCHS:,} epochs expected, found {length}"
        )
    return epochs
