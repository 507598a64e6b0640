"""The closed division's limits on single values, each written once: it judges configs and logs.

A limit asks for a setting by its name: a logged run gives the records that have it, a config under
check its key. Source: training_rules.adoc (v0.7 to v4.0), table of lines 834-857.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from ..config import benchmark
from ..host.finding import ERROR, NOTE, POLICY, number, plain
from .rule import (
    BOTH,
    CHECKER,
    CLOSED_ERROR,
    CLOSED_ONLY,
    CLOSED_POLICY,
    FROM_070,
    RULES_TEXT,
    HasSettings,
    Violations,
    missing,
    only_if,
    rule,
)

CLOSED = f"{CHECKER}, closed_resnet.yaml"
LARS = f"{CHECKER}, closed_resnet_lars.yaml"
SGD = f"{CHECKER}, closed_resnet_sgd.yaml"
_LARS_AND_SGD = f"{LARS}, closed_resnet_sgd.yaml"
# v0.6 has hyper-parameters of its own: log_rules/round_060.py
limit = partial(rule, judges=BOTH, rulesets=FROM_070)
_INTEGER = 1e-5  # the official checker's is_integer
_FLOAT32 = 1e-7
"""Relative rounding of a number that was printed from float32: 0.9 as 0.8999999761581421."""


def _judge(
    run: HasSettings, name: str, fits: Callable[[Any], bool], expected: str
) -> Violations:
    """The first value of a setting that does not fit."""
    for setting in run.settings(name):
        # one is enough: copies by other ranks would say the same
        if not fits(setting.value):
            yield setting.violation(
                expected, advice="any other value belongs to the open division"
            )
            return


def _word(run: HasSettings, name: str, *allowed: str) -> Violations:
    return _judge(run, name, lambda value: value in allowed, " or ".join(allowed))


def _fixed(run: HasSettings, name: str, expected: float) -> Violations:
    return _judge(run, name, lambda value: number(value) == expected, plain(expected))


def _one_of(
    run: HasSettings, name: str, allowed: tuple[float, ...], expected: str
) -> Violations:
    def fits(value: object) -> bool:
        """Whether a value is one of those allowed, to the rounding of float32."""
        setting = number(value)
        return setting is not None and any(
            math.isclose(setting, choice, rel_tol=_FLOAT32) for choice in allowed
        )

    return _judge(run, name, fits, expected)


def _is_integer(value: float) -> bool:
    """Whether a value is an integer to the official checker, which rounds."""
    return math.isfinite(value) and abs(round(value) - value) < _INTEGER


@rule(
    "MLP102",
    "invalid-submission-value",
    ERROR,
    f"{CHECKER}, common.yaml",
    judges=BOTH,
    why=(
        "Other programs compare these words as they are: a division `Closed` ends the "
        "official checker with a traceback."
    ),
    example='`{"key": "submission_division", "value": "Closed"}`',
)
def submission_values(run: HasSettings) -> Violations:
    """Names are not empty (null or blanks are policy); division, status
    and benchmark are allowed words."""
    allowed = {
        "submission_division": benchmark.DIVISIONS,
        "submission_status": benchmark.statuses(run.ruleset),
        "submission_benchmark": (benchmark.BENCHMARK,),
    }
    for key in benchmark.submission_keys(run.ruleset):
        for setting in list(run.settings(key))[:1]:
            value = setting.value
            allowed_values = allowed.get(key)
            if allowed_values:
                if value not in allowed_values:
                    yield setting.violation(" or ".join(allowed_values))
            elif not (isinstance(value, str) and value.strip()):
                # the official checker refuses "" alone
                yield setting.violation("a name", severity=only_if(value != "", POLICY))


@rule(
    "MLP702",
    "invalid-optimizer",
    CLOSED_ERROR,
    CLOSED,
    judges=BOTH,
    why="The closed division compares machines with two optimizers. The words are lower case.",
    example='`{"key": "opt_name", "value": "LARS"}`',
)
def optimizer_name(run: HasSettings) -> Violations:
    """The optimizer is lars or sgd; a log says which."""
    yield from missing(run, ["opt_name"], "lars or sgd")
    yield from _word(run, "optimizer", *benchmark.OPTIMIZERS)


@limit(
    "MLP705",
    "end-learning-rate",
    CLOSED_ERROR,
    _LARS_AND_SGD,
    why=(
        "The reference ends there. An end rate of 0, the usual choice elsewhere, belongs to "
        "the open division."
    ),
    example='`{"key": "lars_opt_end_learning_rate", "value": 0}`',
)
def end_lr(run: HasSettings) -> Violations:
    """The end learning rate is 0.0001."""
    return _fixed(run, "end_lr", benchmark.END_LR)


@limit("MLP706", "lars-decay-power", CLOSED_ERROR, LARS, optimizer="lars")
def lars_power(run: HasSettings) -> Violations:
    """LARS decays with power 2."""
    return _fixed(run, "decay_power", benchmark.DECAY_POWER)


@limit("MLP707", "lars-epsilon", CLOSED_ERROR, LARS, optimizer="lars")
def lars_epsilon(run: HasSettings) -> Violations:
    """LARS has epsilon 0."""
    return _fixed(run, "epsilon", benchmark.LARS_EPSILON)


@limit(
    "MLP708",
    "weight-decay",
    CLOSED_ERROR,
    _LARS_AND_SGD,
    why="The closed division leaves a grid of values, so that a finer search gives no advantage.",
    example='`{"key": "lars_opt_weight_decay", "value": 3e-05}`',
)
def weight_decay(run: HasSettings) -> Violations:
    """The weight decay is 0.0001 x 2^N."""

    def fits(value: object) -> bool:
        """Whether a value is the unit times a power of two."""
        ratio = (number(value) or 0.0) / benchmark.WEIGHT_DECAY_UNIT
        # N may be negative: 5e-05 is 0.0001 x 2^-1
        return 0 < ratio < math.inf and _is_integer(math.log2(ratio))

    return _judge(run, "weight_decay", fits, "0.0001 x 2^N, such as 2.5e-05 or 5e-05")


@limit("MLP709", "sgd-base-learning-rate", CLOSED_ERROR, SGD, optimizer="sgd")
def sgd_base_lr(run: HasSettings) -> Violations:
    """The base learning rate of SGD is 0.001 x k."""

    def fits(value: object) -> bool:
        """Whether a value is a multiple of the unit."""
        lr = number(value)
        return lr is not None and _is_integer(lr / benchmark.SGD_LR_UNIT)

    return _judge(run, "base_lr", fits, "0.001 x k, k an integer")


@limit(
    "MLP713", "lars-momentum", CLOSED_POLICY, f"{RULES_TEXT} line 839", optimizer="lars"
)
def lars_momentum(run: HasSettings) -> Violations:
    """LARS momentum is 0.9 for a batch below 32k (32,000; up to 32,767 a note)."""
    batch = run.batch or 0.0
    free_from = benchmark.MOMENTUM_FREE_FROM_BATCH
    # "32k" may mean 32,000 or 32,768: between them it is a note
    if batch < benchmark.MOMENTUM_FREE_BEYOND_DOUBT:
        expected = f"{benchmark.MOMENTUM} below a batch of {free_from:,}"
        for broken in _one_of(run, "momentum", (benchmark.MOMENTUM,), expected):
            yield broken._replace(severity=only_if(batch >= free_from, NOTE))


@limit(
    "MLP714", "sgd-momentum", CLOSED_POLICY, f"{RULES_TEXT} line 852", optimizer="sgd"
)
def sgd_momentum(run: HasSettings) -> Violations:
    """SGD momentum is 0.9."""
    return _one_of(run, "momentum", (benchmark.MOMENTUM,), plain(benchmark.MOMENTUM))


@limit(
    "MLP715",
    "sgd-decay-power",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 849",
    optimizer="sgd",
)
def sgd_power(run: HasSettings) -> Violations:
    """SGD decays with power 2."""
    return _fixed(run, "decay_power", benchmark.DECAY_POWER)


@limit("MLP717", "label-smoothing", CLOSED_POLICY, f"{RULES_TEXT} lines 844, 855")
def label_smoothing(run: HasSettings) -> Violations:
    """Label smoothing, where a log has it, is 0 or 0.1."""
    return _one_of(run, "label_smoothing", benchmark.LABEL_SMOOTHING, "0 or 0.1")


@rule(
    "MLP754",
    "decay-shape",
    CLOSED_ONLY,
    f"{_LARS_AND_SGD}; {RULES_TEXT} lines 834-857",
    judges=BOTH,
)
def decay_shape(run: HasSettings) -> Violations:
    """The learning rate decays by a polynomial (policy: counted from the end of the warm-up). Logs
    of this harness say so in `opt_learning_rate_decay_shape` and `_from`."""
    yield from _word(run, "decay_shape", "poly")
    for broken in _word(run, "decay_from", "warmup_end"):
        yield broken._replace(severity=POLICY)


@limit(
    "MLP801",
    "eval-samples",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 443",
    exempt_if_synthetic=True,
    why=(
        "An accuracy of few images scatters, and one of several evaluations then reaches the "
        "target by luck. The value counts images, neither batches nor what padding adds."
    ),
    example='`{"key": "eval_samples", "value": 1000}`',
)
def eval_samples(run: HasSettings) -> Violations:
    """eval_samples is 50,000: evaluation is as thorough as the reference's."""
    return _fixed(run, "eval_samples", benchmark.IMAGENET_EVAL_SAMPLES)


@limit(
    "MLP802",
    "train-samples",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 251",
    exempt_if_synthetic=True,
    why=(
        "Epochs are comparable only if each has every image of ImageNet once. Generated or "
        "own photos belong to the open division."
    ),
    example='`{"key": "train_samples", "value": 3200}`',
)
def train_samples(run: HasSettings) -> Violations:
    """train_samples is 1,281,167: each image once an epoch."""
    return _fixed(run, "train_samples", benchmark.IMAGENET_TRAIN_SAMPLES)


def cadence_problem(epochs: list[float]) -> str | None:
    """What is wrong with the evaluated epochs (rising, distinct); None: every 4, from one of 1 to 4
    on. One at epoch 0, before training, is harmless."""
    trained = [epoch for epoch in epochs if epoch > 0]
    if not trained:
        return None
    period = benchmark.EVAL_PERIOD_EPOCHS
    gaps = {later - earlier for earlier, later in pairwise(trained)}
    other_gaps = [plain(gap) for gap in sorted(gaps) if gap != period]
    parts = []
    if trained[0] > period:
        parts.append(f"the first at epoch {plain(trained[0])}")
    if other_gaps:
        parts.append(f"gaps of {', '.join(other_gaps[:6])} epochs")
    return " and ".join(parts) or None
