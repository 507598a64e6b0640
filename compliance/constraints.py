"""Closed-division limits on hyper-parameters, each in one place for config checks and log checks.

Source: training_rules.adoc (v0.7 to v4.0), table of lines 834-857.
"""

from __future__ import annotations

import math
from itertools import pairwise

from ..config import benchmark
from ..config.finding import NOTE, POLICY, plain

_INTEGER = 1e-5  # the official checker's is_integer


def is_integer(value: float) -> bool:
    """As the official checker rounds."""
    return math.isfinite(value) and abs(round(value) - value) < _INTEGER


def weight_decay_fits(value: float) -> bool:
    """Is it 1e-4 x 2^N for an integer N?"""
    ratio = value / benchmark.WEIGHT_DECAY_UNIT
    return ratio > 0 and math.isfinite(ratio) and is_integer(math.log2(ratio))


def nearest_weight_decays(value: float) -> str:
    """The allowed values on both sides, for people."""
    ratio = value / benchmark.WEIGHT_DECAY_UNIT
    if not ratio > 0 or not math.isfinite(ratio):
        return "for example 5e-05"
    below = math.floor(math.log2(ratio))
    sides = [f"{benchmark.WEIGHT_DECAY_UNIT * 2.0**power:g}" for power in (below, below + 1)]
    return f"nearest allowed {sides[0]} and {sides[1]}"


def sgd_lr_fits(value: float) -> bool:
    """Is it 0.001 x k for an integer k?"""
    return is_integer(value / benchmark.SGD_LR_UNIT)


def momentum_severity(optimizer: str, momentum: float, batch: float | None) -> str | None:
    """How bad a momentum is; None: fine. Free for LARS from a batch of 32k on."""
    if math.isclose(momentum, benchmark.MOMENTUM, rel_tol=1e-9):
        return None
    if optimizer == "lars" and batch is not None:
        if batch >= benchmark.MOMENTUM_FREE_BEYOND_DOUBT:
            return None
        if batch >= benchmark.MOMENTUM_FREE_FROM_BATCH:
            return NOTE
    return POLICY


def momentum_rule(optimizer: str) -> str:
    """What is expected, in words."""
    if optimizer != "lars":
        return plain(benchmark.MOMENTUM)
    return f"{benchmark.MOMENTUM} below a batch of {benchmark.MOMENTUM_FREE_FROM_BATCH:,}"


def cadence_problem(epochs: list[float]) -> str | None:
    """What is wrong with the evaluated epochs (rising, distinct); None: every 4, from 1-4 on.

    One at epoch 0, before training, is harmless.
    """
    trained = [epoch for epoch in epochs if epoch > 0]
    if not trained:
        return None
    period, slack = benchmark.EVAL_PERIOD_EPOCHS, 0.05
    gaps = [after - before for before, after in pairwise(trained)]
    odd = sorted({plain(round(gap, 3)) for gap in gaps if abs(gap - period) > slack})
    parts = []
    if trained[0] > period + slack:
        parts.append(f"the first at epoch {plain(trained[0])}")
    if odd:
        parts.append(f"gaps of {', '.join(odd[:6])} epochs")
    return " and ".join(parts) or None
