"""Learning-rate schedules: pure functions of the step, counted from 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..config.plan import Plan
from ..config.schema import Run


def lr_schedule(run: Run, plan: Plan) -> Callable[[int], float]:
    """The learning rate of `run` as a function of the step."""
    return partial(
        warmup_poly,
        base_lr=run.optimizer.base_lr,
        end_lr=run.schedule.end_lr,
        power=run.schedule.power,
        warmup_steps=plan.warmup_steps,
        decay_steps=plan.decay_steps,
    )


def warmup_poly(
    step: int,
    *,
    base_lr: float,
    end_lr: float,
    power: float,
    warmup_steps: int,
    decay_steps: int,
) -> float:
    """Linear warm-up from 0 to `base_lr`, polynomial decay to `end_lr`, then constant.

    lr = base * t / W for t <= W, else end + (base - end) * (1 - (t - W) / D) ** power
    (NVIDIA and the TensorFlow reference use power 2 and D = the rest of the run; Fujitsu 2.2 and
    its own D).
    """
    if step <= warmup_steps:
        return base_lr * step / warmup_steps
    done = min(1.0, (step - warmup_steps) / decay_steps) if decay_steps else 1.0
    return end_lr + (base_lr - end_lr) * (1 - done) ** power
