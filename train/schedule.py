"""Learning rate, momentum and batch by step: pure functions of the step, counted from 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ..config.plan import Plan, momentum_for_batch
from ..config.schema import Run

LearningRate = Callable[[int], float]
Curve = Callable[[float], float]
"""The part of the way that is left, by the part of the decay that is done."""


class Settings(NamedTuple):
    """What one optimizer step uses."""

    lr: float
    momentum: float
    global_batch_size: int


def step_settings(run: Run, plan: Plan) -> Callable[[int], Settings]:
    """Settings of every step of `run`; learning rate or momentum follow the batch if asked to."""
    lr_at = SHAPES[run.schedule.shape](run, plan)
    follow = run.batch.follow
    first_batch = run.batch.reference or plan.global_batch_size

    def at(step: int) -> Settings:
        """The settings of a step."""
        batch = plan.segment_of_step(step).global_batch_size
        lr = lr_at(step)
        momentum = run.optimizer.momentum
        if follow == "lr":
            lr *= batch / first_batch
        elif follow != "none":
            momentum = momentum_for_batch(follow, batch, first_batch, momentum)
        return Settings(lr, momentum, batch)

    return at


def _falling(run: Run, plan: Plan, shape: Curve) -> LearningRate:
    """From the base learning rate to `schedule.end_lr`, over the images trained on since the start
    of the decay, in steps of the first batch: with one batch these are the steps themselves, to the
    last bit. Constant after `schedule.decay`."""
    schedule = run.schedule
    batch = plan.global_batch_size
    origin = 0.0 if schedule.decay_from == "run_start" else plan.warmup_images / batch
    late = int(schedule.decay_from == "first_step_after_warmup")
    decay_steps = plan.decay_images / batch
    fall = run.optimizer.base_lr - schedule.end_lr

    def lr(step: int) -> float:
        """The learning rate of a step, constant after the decay."""
        steps = max(0.0, plan.images_after(step - late) / batch - origin)
        done = min(1.0, steps / decay_steps) if decay_steps else 1.0
        return schedule.end_lr + fall * shape(done)

    return lr


def _stepped(run: Run, plan: Plan) -> LearningRate:
    base_lr = run.optimizer.base_lr
    factors = {
        plan.epoch_end_step(milestone.after_epoch): milestone.factor
        for milestone in run.schedule.milestones
    }

    def lr(step: int) -> float:
        """The learning rate of a step, by the last milestone before it."""
        factor = 1.0
        for after_step, milestone_factor in factors.items():
            if step > after_step:
                factor = milestone_factor
        return base_lr * factor

    return lr


def _after_warmup(run: Run, plan: Plan, decay: LearningRate) -> LearningRate:
    """Linear warm-up over the images trained on (Goyal et al. 2.2), then `decay`."""
    start_lr = run.schedule.warmup_start_lr
    rise = run.optimizer.base_lr - start_lr
    batch = plan.global_batch_size
    warmup_steps = plan.warmup_images / batch

    def lr(step: int) -> float:
        """The learning rate of a step, rising until the warm-up is over."""
        done = plan.images_after(step) / batch
        if done > warmup_steps:
            return decay(step)
        return start_lr + rise * done / warmup_steps

    return lr


def _poly(run: Run, plan: Plan) -> LearningRate:
    """Power 2 and a decay over the rest of the run in NVIDIA's entries and TensorFlow's reference;
    Fujitsu has power 2.2 and a decay that ends before the run does."""
    power = run.schedule.power
    decay = _falling(run, plan, lambda done: (1 - done) ** power)
    return _after_warmup(run, plan, decay)


def cosine(done: float) -> float:
    """Half a wave from 1 to 0 (DeepLearningExamples RN50v1.5)."""
    return 0.5 * (1 + math.cos(math.pi * done))


SHAPES: dict[str, Callable[[Run, Plan], LearningRate]] = {
    "poly": _poly,
    "cosine": lambda run, plan: _after_warmup(run, plan, _falling(run, plan, cosine)),
    "step": lambda run, plan: _after_warmup(run, plan, _stepped(run, plan)),
    "sony_b": lambda _, plan: (
        lambda step: sony_b(plan.images_after(step) / plan.train_samples)
    ),
}
"""The learning rate of every step, by `schedule.shape`."""


def sony_b(epoch: float) -> float:
    """Sony's configuration B (1811.05233 section 3.2), `epoch` = images processed / set size."""
    if epoch < 5:
        return 0.2 + (29 - 0.2) * epoch / 5
    base_lr = 29 if epoch < 30 else 50
    return base_lr * (1 - min(epoch, 90) / 90) ** 2


def akiba_sgd_share(epoch: float) -> float:
    """Share of SGD in Akiba's RMSprop warm-up (1711.04325): 0 to 1, 0.5 at epoch 10.

    The printed middle branch would reach 1.5; 0.5 + (e - 10) / 5 joins its neighbours.
    """
    periods = (epoch - 10) / 5
    if periods < 0:
        return 0.5 * math.exp(2 * periods)
    return min(1.0, 0.5 + periods)
