"""The closed division's limits on single values, each written once: it judges configs and logs.

A limit asks for a setting by its name: a logged run gives the records that have it, a config under
check its key. Source: training_rules.adoc (v0.7 to v4.0), table of lines 834-857.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from ..config import benchmark
from ..config.finding import ERROR, NOTE, POLICY, number, plain
from .logged_run import LABEL_SMOOTHING_KEYS
from .rule import (
    BOTH,
    CHECKER,
    CLOSED_ERROR,
    CLOSED_POLICY,
    FROM_070,
    RULES_TEXT,
    HasSettings,
    Setting,
    Violation,
    missing,
    rule,
)

CLOSED = f"{CHECKER}, closed_resnet.yaml"
LARS = f"{CHECKER}, closed_resnet_lars.yaml"
SGD = f"{CHECKER}, closed_resnet_sgd.yaml"
_LARS_AND_SGD = f"{LARS}, closed_resnet_sgd.yaml"
limit = partial(rule, judges=BOTH, rulesets=FROM_070)
_INTEGER = 1e-5  # the official checker's is_integer
_FLOAT32 = 1e-7
"""Relative rounding of a number that was printed from float32: 0.9 as 0.8999999761581421."""


def _judge(
    run: HasSettings, name: str, fits: Callable[[Any], bool], expected: str
) -> Iterator[Violation]:
    """The first value of a setting that does not fit."""
    for setting in run.settings(name):
        if not fits(setting.value):
            advice = "any other value belongs to the open division"
            yield setting.violation(expected, advice=advice)
            return


def _fixed(run: HasSettings, name: str, expected: float) -> Iterator[Violation]:
    return _judge(run, name, lambda value: number(value) == expected, plain(expected))


def is_integer(value: float) -> bool:
    """As the official checker rounds."""
    return math.isfinite(value) and abs(round(value) - value) < _INTEGER


@rule(
    "MLP102",
    "invalid-submission-value",
    ERROR,
    f"{CHECKER}, common.yaml",
    judges=BOTH,
    keys=benchmark.submission_keys("0.6.0"),
)
def submission_values(run: HasSettings) -> Iterator[Violation]:
    """org and platform are not empty (other values that name nobody, null or blanks, are policy);
    division, status and benchmark are allowed words."""
    allowed = {
        "submission_division": benchmark.DIVISIONS,
        "submission_status": benchmark.statuses(run.ruleset),
        "submission_benchmark": (benchmark.BENCHMARK,),
    }
    for key in benchmark.submission_keys(run.ruleset):
        for setting in list(run.settings(key))[:1]:
            value, words = setting.value, allowed.get(key)
            if words is not None and value not in words:
                yield _wrong_word(setting, words, "the case of letters counts")
            elif words is None and value == "":
                yield setting.violation("a name", "it is empty")
            elif key in ("submission_org", "submission_platform") and not (
                isinstance(value, str) and value.strip()
            ):
                yield setting.violation("a name", severity=POLICY)


def _wrong_word(setting: Setting, words: tuple[str, ...], advice: str) -> Violation:
    hint = ""
    if isinstance(setting.value, str) and setting.value.strip().lower() in words:
        hint = f'did you mean "{setting.value.strip().lower()}"?'
    return setting.violation(" or ".join(words), hint, advice=advice)


@rule("MLP702", "invalid-optimizer", CLOSED_ERROR, CLOSED, judges=BOTH)
def optimizer_name(run: HasSettings) -> Iterator[Violation]:
    """The optimizer is lars or sgd; a log says which."""
    yield from missing(run, ["opt_name"], "lars or sgd")
    for setting in run.settings("optimizer"):
        if setting.value not in benchmark.OPTIMIZERS:
            advice = "any other optimizer belongs to the open division"
            yield _wrong_word(setting, benchmark.OPTIMIZERS, advice)
            return


@limit(
    "MLP705",
    "end-learning-rate",
    CLOSED_ERROR,
    _LARS_AND_SGD,
    keys=("lars_opt_end_learning_rate", "sgd_opt_end_learning_rate"),
)
def end_lr(run: HasSettings) -> Iterator[Violation]:
    """The end learning rate is 0.0001."""
    yield from _fixed(run, "end_lr", benchmark.END_LR)


@limit(
    "MLP706",
    "lars-decay-power",
    CLOSED_ERROR,
    LARS,
    optimizer="lars",
    keys=("lars_opt_learning_rate_decay_poly_power",),
)
def lars_power(run: HasSettings) -> Iterator[Violation]:
    """LARS decays with power 2."""
    yield from _fixed(run, "decay_power", benchmark.DECAY_POWER)


@limit("MLP707", "lars-epsilon", CLOSED_ERROR, LARS, optimizer="lars", keys=("lars_epsilon",))
def lars_epsilon(run: HasSettings) -> Iterator[Violation]:
    """LARS has epsilon 0."""
    yield from _fixed(run, "epsilon", benchmark.LARS_EPSILON)


@limit(
    "MLP708",
    "weight-decay",
    CLOSED_ERROR,
    _LARS_AND_SGD,
    keys=("lars_opt_weight_decay", "sgd_opt_weight_decay"),
)
def weight_decay(run: HasSettings) -> Iterator[Violation]:
    """The weight decay is 0.0001 x 2^N."""
    expected = f"{plain(benchmark.WEIGHT_DECAY_UNIT)} x 2^N"
    for setting in run.settings("weight_decay"):
        ratio = (number(setting.value) or 0.0) / benchmark.WEIGHT_DECAY_UNIT
        if not (0 < ratio < math.inf):
            yield setting.violation(expected, "for example 5e-05")
            return
        power = math.log2(ratio)
        if not is_integer(power):
            below = math.floor(power)
            near = (f"{benchmark.WEIGHT_DECAY_UNIT * 2.0**n:g}" for n in (below, below + 1))
            yield setting.violation(expected, f"nearest allowed {' and '.join(near)}")
            return


@limit(
    "MLP709",
    "sgd-base-learning-rate",
    CLOSED_ERROR,
    SGD,
    optimizer="sgd",
    keys=("sgd_opt_base_learning_rate",),
)
def sgd_base_lr(run: HasSettings) -> Iterator[Violation]:
    """The base learning rate of SGD is 0.001 x k."""

    def fits(value: object) -> bool:
        lr = number(value)
        return lr is not None and is_integer(lr / benchmark.SGD_LR_UNIT)

    yield from _judge(run, "base_lr", fits, "0.001 x k, k an integer")


def _momentum_severity(optimizer: str, momentum: float, batch: float | None) -> str | None:
    """How bad a momentum is; None: fine. Free for LARS from a batch of 32k on."""
    if math.isclose(momentum, benchmark.MOMENTUM, rel_tol=_FLOAT32):
        return None
    if optimizer == "lars" and batch is not None:
        if batch >= benchmark.MOMENTUM_FREE_BEYOND_DOUBT:
            return None
        if batch >= benchmark.MOMENTUM_FREE_FROM_BATCH:
            return NOTE
    return POLICY


def _momentum(run: HasSettings, optimizer: str) -> Iterator[Violation]:
    if run.optimizer not in (optimizer, None):
        return
    for setting in list(run.settings(f"{optimizer}_momentum"))[:1]:
        value = number(setting.value)
        if value is None:
            yield setting.violation("a number")
            continue
        severity = _momentum_severity(optimizer, value, run.batch)
        if severity is not None:
            expected = plain(benchmark.MOMENTUM)
            if optimizer == "lars":
                expected += f" below a batch of {benchmark.MOMENTUM_FREE_FROM_BATCH:,}"
            why = "" if run.batch is None else f"the batch is {run.batch:,g}"
            if severity == NOTE:
                why += "; the rules say 32k, which is not defined"
            yield setting.violation(expected, why, severity=severity)


@limit(
    "MLP713",
    "lars-momentum",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 839",
    keys=("lars_opt_momentum", "global_batch_size"),
)
def lars_momentum(run: HasSettings) -> Iterator[Violation]:
    """LARS momentum is 0.9 for a batch below 32k (32,000; up to 32,767 a note)."""
    yield from _momentum(run, "lars")


@limit(
    "MLP714",
    "sgd-momentum",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 852",
    keys=("sgd_opt_momentum", "global_batch_size"),
)
def sgd_momentum(run: HasSettings) -> Iterator[Violation]:
    """SGD momentum is 0.9."""
    yield from _momentum(run, "sgd")


@limit(
    "MLP715",
    "sgd-decay-power",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 849",
    optimizer="sgd",
    keys=("sgd_opt_learning_rate_decay_poly_power",),
)
def sgd_power(run: HasSettings) -> Iterator[Violation]:
    """SGD decays with power 2."""
    yield from _fixed(run, "decay_power", benchmark.DECAY_POWER)


@limit(
    "MLP717",
    "label-smoothing",
    CLOSED_POLICY,
    f"{RULES_TEXT} lines 844, 855",
    keys=LABEL_SMOOTHING_KEYS,
)
def label_smoothing(run: HasSettings) -> Iterator[Violation]:
    """Label smoothing, where a log has it, is 0 or 0.1."""
    wrong: set[str] = set()
    for setting in run.settings("label_smoothing"):
        key = setting.place.partition(" ")[0]
        value = number(setting.value)
        near = (math.isclose(value or 0.0, s, rel_tol=_FLOAT32) for s in benchmark.LABEL_SMOOTHING)
        if (value is None or not any(near)) and key not in wrong:
            wrong.add(key)
            yield setting.violation("0 or 0.1")


def _count(run: HasSettings, key: str, expected: int) -> Iterator[Violation]:
    for setting in list(run.settings(key))[:1]:
        if setting.value != "" and number(setting.value) != expected:  # missing-samples says ""
            advice = "the count of images, neither batches nor a padded count"
            yield setting.violation(str(expected), advice=advice)


@limit(
    "MLP801",
    "eval-samples",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 443",
    exempt_if_synthetic=True,
    keys=("eval_samples",),
)
def eval_samples(run: HasSettings) -> Iterator[Violation]:
    """eval_samples is 50,000: evaluation is as thorough as the reference's."""
    yield from _count(run, "eval_samples", benchmark.IMAGENET_EVAL_SAMPLES)


@limit(
    "MLP802",
    "train-samples",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 251",
    exempt_if_synthetic=True,
    keys=("train_samples",),
)
def train_samples(run: HasSettings) -> Iterator[Violation]:
    """train_samples is 1,281,167: each image once an epoch."""
    yield from _count(run, "train_samples", benchmark.IMAGENET_TRAIN_SAMPLES)


def cadence_problem(epochs: list[float]) -> str | None:
    """What is wrong with the evaluated epochs (rising, distinct); None: every 4, from 1-4 on. One
    at epoch 0, before training, is harmless."""
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
