"""Learning rate, momentum and batch by step: pure functions of the step, counted from 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ..config.plan import Plan, momentum_for_batch
from ..config.schema import Run

LearningRate = Callable[[int], float]


class Settings(NamedTuple):
    """What one optimizer step uses."""

    lr: float
    momentum: float
    global_batch_size: int


def step_settings(run: Run, plan: Plan) -> Callable[[int], Settings]:
    """Settings of every step of `run`; learning rate or momentum follow the batch if asked to."""
    lr_at = SHAPES[run.schedule.shape](run, plan)
    first_batch = run.batch.reference or plan.global_batch_size

    def at(step: int) -> Settings:
        batch = plan.segment_of_step(step).global_batch_size
        lr = lr_at(step)
        momentum = run.optimizer.momentum
        if run.batch.follow == "lr":
            lr *= batch / first_batch
        elif run.batch.follow != "none":
            momentum = momentum_for_batch(
                run.batch.follow, batch, first_batch, momentum
            )
        return Settings(lr, momentum, batch)

    return at


def _falling(run: Run, plan: Plan, curve: Callable[..., float]) -> LearningRate:
    """A curve over the images trained on since the start of the decay, in steps of the first batch:
    with one batch these are the steps themselves, to the last bit."""
    schedule = run.schedule
    batch = plan.global_batch_size
    origin = 0.0 if schedule.decay_from == "run_start" else plan.warmup_images / batch
    late = int(schedule.decay_from == "first_step_after_warmup")
    ends = {
        "base_lr": run.optimizer.base_lr,
        "end_lr": schedule.end_lr,
        "decay_steps": plan.decay_images / batch,
    }
    return lambda step: curve(
        max(0.0, plan.images_after(step - late) / batch - origin), **ends
    )


def _stepped(run: Run, plan: Plan) -> LearningRate:
    milestones = [
        (plan.epoch_end_step(m.after_epoch), m.factor) for m in run.schedule.milestones
    ]
    return lambda step: run.optimizer.base_lr * factor_at(step, milestones)


def _after_warmup(run: Run, plan: Plan, decay: LearningRate) -> LearningRate:
    """Linear warm-up over the images trained on, then `decay`."""
    start_lr = run.schedule.warmup_start_lr
    base_lr = run.optimizer.base_lr
    batch = plan.global_batch_size
    warmup_steps = plan.warmup_images / batch

    def lr(step: int) -> float:
        if (done := plan.images_after(step) / batch) <= warmup_steps:
            return warmup(
                done,
                warmup_steps,
                start_lr=start_lr,
                base_lr=base_lr,
            )
        return decay(step)

    return lr


def _poly(run: Run, plan: Plan) -> LearningRate:
    curve = partial(poly, power=run.schedule.power)
    return _after_warmup(run, plan, _falling(run, plan, curve))


SHAPES: dict[str, Callable[[Run, Plan], LearningRate]] = {
    "poly": _poly,
    "cosine": lambda run, plan: _after_warmup(run, plan, _falling(run, plan, cosine)),
    "step": lambda run, plan: _after_warmup(run, plan, _stepped(run, plan)),
    "sony_b": lambda _, plan: (
        lambda step: sony_b(plan.images_after(step) / plan.train_samples)
    ),
}
"""The learning rate of every step, by `schedule.shape`."""


def warmup(
    step: float, warmup_steps: float, *, start_lr: float, base_lr: float
) -> float:
    """Linear from `start_lr` (step 0, not taken) to `base_lr` (step W): Goyal et al. 2.2."""
    return start_lr + (base_lr - start_lr) * step / warmup_steps


def poly(
    step: float, *, base_lr: float, end_lr: float, power: float, decay_steps: float
) -> float:
    """end + (base - end) (1 - t / D) ** power, `step` t counted from `schedule.decay_from`.

    Power 2 and D = the rest of the run in NVIDIA's entries and the TensorFlow reference; Fujitsu
    has power 2.2 and a D that ends before the run does. Constant from D on.
    """
    done = min(1.0, step / decay_steps) if decay_steps else 1.0
    return end_lr + (base_lr - end_lr) * (1 - done) ** power


def cosine(
    step: float,
    *,
    base_lr: float,
    end_lr: float,
    decay_steps: float,
) -> float:
    """Half a cosine from `base_lr` to `end_lr` (DeepLearningExamples RN50v1.5)."""
    done = min(1.0, step / decay_steps) if decay_steps else 1.0
    return end_lr + (base_lr - end_lr) * 0.5 * (1 + math.cos(math.pi * done))


def factor_at(step: int, milestones: Sequence[tuple[int, float]]) -> float:
    """The factor of the last milestone (step after which it holds, factor) passed; 1 before."""
    return next((f for after, f in reversed(milestones) if step > after), 1.0)


def sony_b(epoch: float) -> float:
    """Sony's configuration B (1811.05233 section 3.2), `epoch` = images processed / set size."""
    if epoch < 5:
        return 0.2 + (29 - 0.2) * epoch / 5
    return (29 if epoch < 30 else 50) * (1 - min(epoch, 90) / 90) ** 2


def akiba_sgd_share(epoch: float) -> float:
    """Share of SGD in Akiba's RMSprop warm-up (1711.04325): 0 to 1, 0.5 at epoch 10.

    The printed middle branch would reach 1.5; 0.5 + (e - 10) / 5 joins its neighbours.
    """
    periods = (epoch - 10) / 5
    return 0.5 * math.exp(2 * periods) if periods < 0 else min(1.0, 0.5 + periods)
