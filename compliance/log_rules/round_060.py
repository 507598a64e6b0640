"""Rules of round v0.6 alone. (The nesting of its events is left to the official checker.)"""

from ...config import benchmark
from ...host.finding import ERROR, number, shown
from ..logged_run import LoggedRun, as_setting
from ..rule import CHECKER, LOST, Violations, against, missing, rule

_060 = ("0.6.0",)
_SOURCE = f"{CHECKER}, training_0.6.0"


@rule(
    "MLP601", "invalid-cache-clear-060", ERROR, f"{_SOURCE}/common.yaml", rulesets=_060
)
def cache_clear_value(run: LoggedRun) -> Violations:
    """cache_clear is true, and logged before init_start."""
    begin = run.first("init_start")
    for event in run.all("cache_clear"):
        if event.value != True:  # noqa: E712 (1 passes officially too)
            yield as_setting(event).violation("true")
            return
        if begin and event.order > begin.order:
            yield against(
                event, f"is logged after {begin.place}", "it before init_start"
            )
            return


@rule(
    "MLP602",
    "missing-event-060",
    ERROR,
    f"{_SOURCE}/common.yaml",
    rulesets=_060,
    follows_from=(LOST,),
)
def events_missing(run: LoggedRun) -> Violations:
    """Blocks, epochs and evaluations all have their start and stop records."""
    keys = [
        f"{interval}_{end}"
        for interval in ("epoch", "eval", "block")
        for end in ("start", "stop")
    ]
    return missing(run, keys)


ONCE = (
    "global_batch_size",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_warmup_epochs",
    "model_bn_span",
)
"""Hyper-parameters that the checker of 0.6.0 wants exactly once."""
_BOUNDARIES = "opt_learning_rate_decay_boundary_epochs"
_LARS = (
    "lars_opt_learning_rate_decay_steps",
    "lars_opt_learning_rate_decay_poly_power",
    "lars_opt_weight_decay",
    "lars_epsilon",
)


@rule(
    "MLP604",
    "invalid-hyperparameter-060",
    ERROR,
    f"{_SOURCE}/resnet.yaml",
    rulesets=_060,
    follows_from=(LOST,),
)
def hyperparameters(run: LoggedRun) -> Violations:
    """Batch, base learning rate, warm-up and bn_span are logged and above 0; opt_name is lars or
    sgd and has its own keys once."""
    yield from missing(run, ONCE)
    for key in (*ONCE, *_LARS):
        if key == "opt_name":
            continue
        if event := run.first(key):
            value = number(event.value)
            if value is None or value < 0 or (value == 0 and key != "lars_epsilon"):
                yield as_setting(event).violation("above 0")
    name = run.first("opt_name")
    if not name:
        return
    if name.value not in benchmark.OPTIMIZERS:
        yield as_setting(name).violation("lars or sgd")
        return
    for optimizer, keys in (("sgd", (_BOUNDARIES,)), ("lars", _LARS)):
        for key in keys:
            count = len(run.all(key))
            due = int(name.value == optimizer)
            if count != due:
                yield against(
                    f"{key} is logged",
                    f"{count} x",
                    f"{due} x",
                    f"opt_name is {shown(name.value)}",
                )
