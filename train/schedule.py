"""Learning rate, momentum and batch by step: pure functions of the step, counted from 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..config.plan import Plan
from ..config.schema import Run


class Settings(NamedTuple):
    """What one optimizer step uses."""

    lr: float
    momentum: float
    global_batch_size: int


def step_settings(run: Run, plan: Plan) -> Callable[[int], Settings]:
    """Settings of every step of `run`; learning rate or momentum follow the batch if asked to."""
    lr_at = _lr_of_shape(run, plan)
    first_batch = run.batch.reference or plan.global_batch_size

    def at(step: int) -> Settings:
        batch = plan.segment_of_step(step).global_batch_size
        lr, momentum = lr_at(step), run.optimizer.momentum
        if run.batch.follow == "lr":
            lr *= batch / first_batch
        elif run.batch.follow == "momentum":
            momentum = momentum_for_batch(batch, first_batch, momentum)
        return Settings(lr, momentum, batch)

    return at


def _lr_of_shape(run: Run, plan: Plan) -> Callable[[int], float]:
    s, base_lr = run.schedule, run.optimizer.base_lr
    milestones = [(plan.epoch_end_step(m.after_epoch), m.factor) for m in s.milestones]
    ends: dict[str, Any] = {"base_lr": base_lr, "end_lr": s.end_lr, "decay_steps": plan.decay_steps}
    decays: dict[str, Callable[[int], float]] = {
        "poly": partial(poly, power=s.power, **ends),
        "cosine": partial(cosine, **ends),
        "step": lambda step: base_lr * factor_at(step + plan.warmup_steps, milestones),
    }

    def lr(step: int) -> float:
        if s.shape == "sony_b":
            return sony_b(plan.images_after(step) / plan.train_samples)
        if step <= plan.warmup_steps:
            return warmup(step, plan.warmup_steps, start_lr=s.warmup_start_lr, base_lr=base_lr)
        return decays[s.shape](step - plan.warmup_steps)

    return lr


def warmup(step: int, warmup_steps: int, *, start_lr: float, base_lr: float) -> float:
    """Linear from `start_lr` (step 0, not taken) to `base_lr` (step W): Goyal et al. 2.2."""
    return start_lr + (base_lr - start_lr) * step / warmup_steps


def poly(step: int, *, base_lr: float, end_lr: float, power: float, decay_steps: int) -> float:
    """end + (base - end) (1 - t / D) ** power, `step` t counted from the end of the warm-up.

    Power 2 and D = the rest of the run in NVIDIA's entries and the TensorFlow reference; Fujitsu
    has power 2.2 and a D that ends before the run does. Constant from D on.
    """
    done = min(1.0, step / decay_steps) if decay_steps else 1.0
    return end_lr + (base_lr - end_lr) * (1 - done) ** power


def cosine(step: int, *, base_lr: float, end_lr: float, decay_steps: int) -> float:
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


def momentum_for_batch(batch: int, reference_batch: int, reference_momentum: float) -> float:
    """Momentum that keeps the noise scale lr N / (B (1 - m)) at one learning rate (Smith and Le).

    Sony prints this garbled; as products it would make momentum fall with the batch. 54K from 0.9
    at 32K gives 0.9407, what later entries found by tuning.
    """
    return 1 - (1 - reference_momentum) * reference_batch / batch


def akiba_sgd_share(epoch: float, *, centre: float = 10.0, period: float = 5.0) -> float:
    """Share of SGD in Akiba's RMSprop warm-up (1711.04325): 0 to 1, 0.5 at `centre`.

    The printed middle branch would reach 1.5; 0.5 + (e - c) / p joins its neighbours.
    """
    if epoch < centre:
        return 0.5 * math.exp(2 * (epoch - centre) / period)
    return min(1.0, 0.5 + (epoch - centre) / period)
