"""Rules on hyper-parameters of the closed division."""

import math
from collections import Counter

from ...config import benchmark
from ...host.finding import POLICY, number, shown
from ..limits import CLOSED, LARS
from ..logged_run import LoggedRun, as_setting
from ..rule import (
    CHECKER,
    CLOSED_ERROR,
    CLOSED_POLICY,
    FROM_070,
    LOST,
    NO_LOG,
    RULES_TEXT,
    Violations,
    against,
    missing,
    only_if,
    rule,
    since,
)


@rule("MLP703", "invalid-batch-size", CLOSED_ERROR, CLOSED)
def batch_size(run: LoggedRun) -> Violations:
    """global_batch_size is logged, a number above 0; if it is no integer, or more than the images
    of ImageNet, that is policy."""
    if event := run.first("global_batch_size"):
        batch = number(event.value) or 0.0
        imagenet_samples = benchmark.IMAGENET_TRAIN_SAMPLES
        if batch <= 0:
            yield as_setting(event).violation("a number above 0")
        elif batch > imagenet_samples or not batch.is_integer():
            yield as_setting(event).violation(
                f"an integer up to {imagenet_samples:,}", severity=POLICY
            )
    yield from missing(run, ["global_batch_size"])


@rule(
    "MLP710",
    "invalid-accumulation",
    CLOSED_ERROR,
    f"{CHECKER}, closed_common.yaml; {NO_LOG}",
    rulesets=since("1.0.0"),
    why=(
        "The batch of an update is the global batch size: with accumulation it comes in "
        "several steps."
    ),
    example="no `gradient_accumulation_steps` in the log.",
)
def accumulation(run: LoggedRun) -> Violations:
    """gradient_accumulation_steps is logged, above 0 (from 1.0.0 on); if it is no integer, or does
    not divide the batch, that is policy."""
    key = "gradient_accumulation_steps"
    yield from missing(
        run,
        [key],
        "a number above 0",
        "log it once before init_stop, 1 without accumulation",
        ": closed logs need it since 1.0.0",
    )
    for event in run.all(key):
        steps = number(event.value) or 0.0
        if steps <= 0 or not steps.is_integer():
            yield as_setting(event).violation(
                "an integer above 0", severity=only_if(steps > 0, POLICY)
            )
            return
        if run.batch is not None and run.batch % steps:
            yield as_setting(event).violation(
                f"a divisor of the batch ({run.batch:,g})", severity=POLICY
            )
            return


_WEIGHTS = ("weights_initialization",)


@rule(
    "MLP711",
    "missing-weight-initialization",
    CLOSED_ERROR,
    CLOSED,
    rulesets=benchmark.WEIGHT_NAMES_RULESETS,
    follows_from=(LOST,),
)
def weights_logged(run: LoggedRun) -> Violations:
    """weights_initialization is logged (the checker of the v1.1 round only warned)."""
    count = len(benchmark.weight_names())
    return missing(
        run,
        _WEIGHTS,
        f"{count} records with metadata.tensor",
        "log one record a tensor after init_start",
        f": {count} tensors expected",
    )


@rule(
    "MLP712",
    "weight-initialization-names",
    CLOSED_ERROR,
    CLOSED,
    rulesets=benchmark.WEIGHT_NAMES_RULESETS,
    follows_from=(LOST,),
)
def weights_named(run: LoggedRun) -> Violations:
    """weights_initialization names exactly the 161 tensors of the reference."""
    events = run.all("weights_initialization")
    if not events or run.log.truncated:
        return
    tensors = [event.metadata.get("tensor") for event in events]
    names = Counter(name if isinstance(name, str) else shown(name) for name in tensors)
    reference = Counter(benchmark.weight_names())
    # Counters: a name that is there twice is left over too
    wrong = sorted((names - reference) + (reference - names))
    if wrong:
        actual = f"names other tensors than the reference: {len(wrong)} are missing, unknown or"
        actual += f" there twice, such as {shown(wrong[0])}"
        yield against(
            "weights_initialization",
            actual,
            f"its {len(reference)} names, once each",
            line=events[0].line,
        )


@rule(
    "MLP704",
    "missing-hyperparameter",
    CLOSED_ERROR,
    f"{LARS}, closed_resnet_sgd.yaml",
    rulesets=FROM_070,
    why=(
        "Hyper-parameters are the same in all runs of an entry and can be borrowed by others:"
        " both need them in the log."
    ),
    example="no `lars_opt_momentum` in the log.",
)
def hyperparameters_logged(run: LoggedRun) -> Violations:
    """Every hyper-parameter of the optimizer in use is logged."""
    return missing(
        run,
        benchmark.OPTIMIZER_KEYS.get(run.optimizer or "", ()),
        advice="log each before init_stop",
    )


_SCHEDULE = {
    "lars": (
        "lars_opt_base_learning_rate",
        "lars_opt_learning_rate_decay_steps",
        "lars_opt_learning_rate_warmup_epochs",
    ),
    "sgd": (
        "sgd_opt_base_learning_rate",
        "sgd_opt_learning_rate_decay_steps",
        "opt_learning_rate_warmup_epochs",
    ),
}


@rule(
    "MLP716",
    "invalid-schedule-length",
    CLOSED_POLICY,
    f"{RULES_TEXT} lines 850, 854",
    rulesets=FROM_070,
)
def schedule_lengths(run: LoggedRun) -> Violations:
    """The base rate is a finite number above 0; decay steps and warm-up are finite numbers from 0
    on, those of SGD in whole steps or epochs."""
    for key in _SCHEDULE.get(run.optimizer or "", ()):
        event = run.first(key)
        if not event:
            continue
        value = number(event.value)
        is_rate = key.endswith("base_learning_rate")
        integral = run.optimizer == "sgd" and not is_rate
        fits = value is not None and (value > 0 or (value == 0 and not is_rate))
        if fits and (not integral or float(value or 0).is_integer()):
            continue
        expected = "a number from 0 on"
        if is_rate:
            expected = "a number above 0"
        elif integral:
            expected = "an integer from 0 on"
        yield as_setting(event).violation(expected)


@rule(
    "MLP718", "invalid-bn-span", CLOSED_POLICY, "batch norm is over images of one batch"
)
def bn_span(run: LoggedRun) -> Violations:
    """model_bn_span, where it is logged, is a number from 1 to the global batch."""
    if event := run.first("model_bn_span"):
        span = number(event.value)
        batch = run.batch or math.inf
        if span is None or not 1 <= span <= batch:
            yield as_setting(event).violation(f"from 1 to the batch ({batch:,g})")
