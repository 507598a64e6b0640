"""Rules on hyper-parameters of the closed division."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain, shown
from ...logging.events import Event, type_name
from .. import constraints
from ..rule import CHECKER, ERROR, NOTE, POLICY, RULES_TEXT, Case, Found, as_official, between, rule

_CLOSED = f"{CHECKER}, closed_resnet.yaml"
_LARS = f"{CHECKER}, closed_resnet_lars.yaml"
_SGD = f"{CHECKER}, closed_resnet_sgd.yaml"
_FROM_070 = between("0.7.0")


_NUMBERS = (
    "global_batch_size",
    "gradient_accumulation_steps",
    "train_samples",
    "eval_samples",
    "eval_accuracy",
    "opt_base_learning_rate",
    *dict.fromkeys((*benchmark.LARS_KEYS, *benchmark.SGD_KEYS)),
)


@rule("NO_NUMBER", POLICY, f"{CHECKER} compares true as 1", in_open=NOTE)
def numbers_are_numbers(case: Case) -> Iterator[Found]:
    """Counts, accuracies and hyper-parameters are no booleans and not infinite. (What other rules
    say of their values they say of true as 1, of false as 0, as the official checker does.)"""
    for key in _NUMBERS:
        for event in case.all(key):
            infinite = isinstance(event.value, float) and math.isinf(event.value)
            if isinstance(event.value, bool) or infinite:
                text = type_name(event.value)
                yield Found(
                    f"{_named(event)} is {text}, no number",
                    event.line,
                    "a number",
                    text,
                    "the official checker takes it for a number",
                )
                return


def _named(event: Event) -> str:
    return f"{event.key} (line {event.line})"


@rule("BATCH_SIZE", ERROR, _CLOSED, in_open=None)
def batch_size(case: Case) -> Iterator[Found]:
    """global_batch_size is logged, a number above 0."""
    event = case.first("global_batch_size")
    if event is None:
        if case.absent("global_batch_size"):
            yield Found("no global_batch_size in the log", None, "global_batch_size", "none")
        return
    if isinstance(event.value, str):
        text = f"text {shown(event.value)}"
    else:
        size = as_official(event.value)
        if size is not None and size > 0:
            return
        text = type_name(event.value) if number(event.value) is None else plain(event.value)
    yield Found(f"{_named(event)} is {text}", event.line, "a number above 0", shown(event.value))


@rule("OPT_NAME", ERROR, _CLOSED, in_open=None)
def opt_name(case: Case) -> Iterator[Found]:
    """opt_name is logged, lars or sgd."""
    if case.absent("opt_name"):
        yield Found("no opt_name in the log", None, "lars or sgd", "none")
    for event in case.all("opt_name"):
        if event.value not in benchmark.OPTIMIZERS:
            hint = ""
            if isinstance(event.value, str) and event.value.lower() in benchmark.OPTIMIZERS:
                hint = f' (did you mean "{event.value.lower()}"?)'
            yield Found(
                f"opt_name {shown(event.value)} (line {event.line}): allowed are "
                f"{', '.join(benchmark.OPTIMIZERS)}{hint}",
                event.line,
                " or ".join(benchmark.OPTIMIZERS),
                shown(event.value),
                "any other optimizer belongs to the open division",
            )
            return


@rule(
    "ACCUMULATION",
    ERROR,
    f"{CHECKER}, closed_common.yaml",
    rulesets=between("1.0.0"),
    in_open=None,
)
def accumulation(case: Case) -> Iterator[Found]:
    """gradient_accumulation_steps is logged, above 0 (from 1.0.0 on)."""
    key = "gradient_accumulation_steps"
    if case.absent(key):
        yield Found(
            f"no {key} in the log: closed logs need it since 1.0.0",
            None,
            "a number above 0",
            "none",
            "log it once before init_stop, 1 without accumulation",
        )
    for event in case.all(key):
        steps = as_official(event.value)
        if steps is None or steps <= 0:
            yield Found(
                f"{_named(event)} is {shown(event.value)}",
                event.line,
                "a number above 0",
                shown(event.value),
            )
            return


_WEIGHT_RULESETS = benchmark.WEIGHT_NAMES_RULESETS


@rule("WEIGHT_INIT_MISSING", ERROR, _CLOSED, rulesets=_WEIGHT_RULESETS, in_open=None)
def weights_logged(case: Case) -> Iterator[Found]:
    """weights_initialization is logged (the checker of the v1.1 round only warned)."""
    if case.absent("weights_initialization"):
        count = len(benchmark.weight_names())
        yield Found(
            f"no weights_initialization in the log: {count} tensors expected",
            None,
            f"{count} records with metadata.tensor",
            "none",
            "log one record a tensor after init_start",
        )


@rule("WEIGHT_INIT_NAMES", ERROR, _CLOSED, rulesets=_WEIGHT_RULESETS, in_open=None)
def weights_named(case: Case) -> Iterator[Found]:
    """weights_initialization names exactly the 161 tensors of the reference."""
    events = case.all("weights_initialization")
    if not events or case.log.truncated:
        return
    tensors = [event.metadata.get("tensor") for event in events]
    names = Counter(name if isinstance(name, str) else shown(name) for name in tensors)
    wanted = benchmark.weight_names()
    missing = sorted(wanted - set(names))
    extra = sorted(set(names) - wanted)
    twice = sorted(name for name, count in names.items() if count > 1)
    parts = [
        f"{len(group)} {what} ({', '.join(shown(name) for name in group[:3])}"
        f"{', ...' if len(group) > 3 else ''})"
        for what, group in (("missing", missing), ("unknown", extra), ("more than once", twice))
        if group
    ]
    if parts:
        yield Found(
            f"weights_initialization names other tensors than the reference: {'; '.join(parts)}",
            events[0].line,
            f"the {len(wanted)} names of the reference, once each",
            f"{len(events)} records",
        )


@rule(
    "HYPERPARAMETERS_MISSING",
    ERROR,
    f"{_LARS}, closed_resnet_sgd.yaml",
    rulesets=_FROM_070,
    in_open=None,
)
def hyperparameters_logged(case: Case) -> Iterator[Found]:
    """Every hyper-parameter of the optimizer in use is logged."""
    wanted = {"lars": benchmark.LARS_KEYS, "sgd": benchmark.SGD_KEYS}.get(case.optimizer or "", ())
    missing = [key for key in wanted if case.absent(key)]
    if missing:
        names = ", ".join(missing)
        yield Found(f"no {names} in the log", None, names, "none", "log each before init_stop")


def _fixed(case: Case, key: str, expected: float, what: str) -> Iterator[Found]:
    for event in case.all(key):
        if event.value != expected:  # false is 0 here, as officially; NO_NUMBER says it
            yield Found(
                f"{_named(event)} is {shown(event.value)}: {what} fixed to {plain(expected)}",
                event.line,
                plain(expected),
                shown(event.value),
                "any other value belongs to the open division",
            )
            return


@rule("END_LR", ERROR, f"{_LARS}, closed_resnet_sgd.yaml", rulesets=_FROM_070, in_open=None)
def end_lr(case: Case) -> Iterator[Found]:
    """The end learning rate is 0.0001."""
    if case.optimizer is not None:
        key = f"{case.optimizer}_opt_end_learning_rate"
        yield from _fixed(case, key, benchmark.END_LR, "end learning rate")


@rule("POWER", ERROR, _LARS, rulesets=_FROM_070, optimizer="lars", in_open=None)
def lars_power(case: Case) -> Iterator[Found]:
    """LARS decays with power 2."""
    key = "lars_opt_learning_rate_decay_poly_power"
    yield from _fixed(case, key, benchmark.DECAY_POWER, "power")


@rule("EPSILON", ERROR, _LARS, rulesets=_FROM_070, optimizer="lars", in_open=None)
def lars_epsilon(case: Case) -> Iterator[Found]:
    """LARS has epsilon 0."""
    yield from _fixed(case, "lars_epsilon", benchmark.LARS_EPSILON, "epsilon")


@rule("WEIGHT_DECAY", ERROR, f"{_LARS}, closed_resnet_sgd.yaml", rulesets=_FROM_070, in_open=None)
def weight_decay(case: Case) -> Iterator[Found]:
    """The weight decay is 0.0001 x 2^N."""
    for event in case.all(f"{case.optimizer}_opt_weight_decay"):
        value = as_official(event.value)
        if value is not None and constraints.weight_decay_fits(value):
            continue
        near = constraints.nearest_weight_decays(value or 0)
        yield Found(
            f"{_named(event)} is {shown(event.value)}: must be "
            f"{plain(benchmark.WEIGHT_DECAY_UNIT)} x 2^N, {near}",
            event.line,
            f"{plain(benchmark.WEIGHT_DECAY_UNIT)} x 2^N",
            shown(event.value),
            near,
        )
        return


@rule("SGD_BASE_LR", ERROR, _SGD, rulesets=_FROM_070, optimizer="sgd", in_open=None)
def sgd_base_lr(case: Case) -> Iterator[Found]:
    """The base learning rate of SGD is 0.001 x k."""
    for event in case.all("sgd_opt_base_learning_rate"):
        value = as_official(event.value)
        if value is None or not constraints.sgd_lr_fits(value):
            yield Found(
                f"{_named(event)} is {shown(event.value)}: must be 0.001 x k, k an integer",
                event.line,
                "0.001 x k",
                shown(event.value),
            )
            return


def _momentum(case: Case, optimizer: str) -> Iterator[Found]:
    event = case.first(f"{optimizer}_opt_momentum")
    if event is None or case.optimizer not in (optimizer, None):
        return
    value = number(event.value)
    if value is None:
        text = shown(event.value)
        yield Found(f"{_named(event)} is {text}, expected a number", event.line, "a number", text)
        return
    severity = constraints.momentum_severity(optimizer, value, case.batch)
    if severity is None:
        return
    batch = "" if case.batch is None else f" at batch {plain(case.batch)}"
    unclear = ": the rules say 32k, which is not defined" if severity == NOTE else ""
    yield Found(
        f"{_named(event)} is {plain(value)}{batch}, expected "
        f"{constraints.momentum_rule(optimizer)}{unclear}",
        event.line,
        constraints.momentum_rule(optimizer),
        plain(value),
        "",
        severity,
    )


@rule("R07", POLICY, f"{RULES_TEXT} line 839", rulesets=_FROM_070, in_open=NOTE)
def lars_momentum(case: Case) -> Iterator[Found]:
    """LARS momentum is 0.9 for a batch below 32k (32,000; up to 32,767 a note)."""
    yield from _momentum(case, "lars")


@rule("R08", POLICY, f"{RULES_TEXT} line 852", rulesets=_FROM_070, in_open=NOTE)
def sgd_momentum(case: Case) -> Iterator[Found]:
    """SGD momentum is 0.9."""
    yield from _momentum(case, "sgd")


@rule("R09", POLICY, f"{RULES_TEXT} line 849", rulesets=_FROM_070, optimizer="sgd", in_open=NOTE)
def sgd_power(case: Case) -> Iterator[Found]:
    """SGD decays with power 2."""
    key = "sgd_opt_learning_rate_decay_poly_power"
    yield from _fixed(case, key, benchmark.DECAY_POWER, "power")


@rule("R10", POLICY, f"{RULES_TEXT} lines 850, 854", rulesets=_FROM_070, in_open=NOTE)
def schedule_lengths(case: Case) -> Iterator[Found]:
    """Rate, decay steps and warm-up are finite numbers from 0 on; SGD decays in whole steps."""
    keys = {
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
    }.get(case.optimizer or "", ())
    for key in keys:
        event = case.first(key)
        if event is None:
            continue
        value = number(event.value)
        integral = key == "sgd_opt_learning_rate_decay_steps"
        if value is not None and value >= 0 and (not integral or value.is_integer()):
            continue
        wanted = "an integer from 0 on" if integral else "a number from 0 on"
        yield Found(
            f"{_named(event)} is {shown(event.value)}, expected {wanted}",
            event.line,
            wanted,
            shown(event.value),
        )


@rule("R11", POLICY, f"{RULES_TEXT} lines 844, 855", rulesets=_FROM_070, in_open=NOTE)
def label_smoothing(case: Case) -> Iterator[Found]:
    """Label smoothing, where a log has it, is 0 or 0.1."""
    for key in case.logged_keys():
        if not key.endswith("label_smoothing"):
            continue
        wrong = (e for e in case.all(key) if number(e.value) not in benchmark.LABEL_SMOOTHING)
        event = next(wrong, None)
        if event is not None:
            yield Found(
                f"{_named(event)} is {shown(event.value)}, expected 0 or 0.1",
                event.line,
                "0 or 0.1",
                shown(event.value),
            )


RULES = (
    numbers_are_numbers,
    opt_name,
    batch_size,
    hyperparameters_logged,
    end_lr,
    lars_power,
    lars_epsilon,
    weight_decay,
    sgd_base_lr,
    accumulation,
    weights_logged,
    weights_named,
    lars_momentum,
    sgd_momentum,
    sgd_power,
    schedule_lengths,
    label_smoothing,
)
