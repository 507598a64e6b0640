"""Rules of round v0.6 alone: its checker follows the nesting of events record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...config import benchmark
from ...config.finding import number, plain, shown
from ...logging.events import Event
from ..logged_run import INTERVAL_KEYS, LoggedRun
from ..rule import CHECKER, ERROR, Violation, rule

_060 = ("0.6.0",)
_SOURCE = f"{CHECKER}, training_0.6.0"


@rule(
    *("MLP601", "invalid-cache-clear-060", ERROR, f"{_SOURCE}/common.yaml"),
    rulesets=_060,
    keys=("cache_clear", "init_start"),
)
def cache_clear_value(run: LoggedRun) -> Iterator[Violation]:
    """cache_clear is true, and logged before init_start."""
    begin = run.first("init_start")
    for event in run.all("cache_clear"):
        if event.value != True:  # noqa: E712 (1 passes officially too)
            text = f"cache_clear (line {event.line}) is {shown(event.value)}, must be true"
            yield Violation(text, event.line, "true", shown(event.value))
            return
        if begin is not None and event.order > begin.order:
            text = f"cache_clear (line {event.line}) is logged after init_start (line {begin.line})"
            yield Violation(text, event.line, "before init_start", "after")
            return


@rule(
    *("MLP602", "missing-event-060", ERROR, f"{_SOURCE}/common.yaml"),
    rulesets=_060,
    keys=INTERVAL_KEYS,
)
def events_missing(run: LoggedRun) -> Iterator[Violation]:
    """Blocks, epochs and evaluations all have their start and stop records."""
    keys = [f"{kind}_{end}" for kind in ("epoch", "eval", "block") for end in ("start", "stop")]
    missing = [key for key in keys if run.absent(key)]
    if missing:
        yield Violation(f"no {', '.join(missing)} in the log", None, ", ".join(missing), "none")


class _State:
    """Where the run is, as the 0.6.0 checker tracks it; None: an epoch that was no number."""

    def __init__(self) -> None:
        self.run_started = self.run_stopped = False
        self.in_block = self.in_epoch = self.in_eval = False
        self.accuracy_printed = True
        self.last_epoch: float | None = 0
        self.last_eval: float | None = 0
        self.block_first_epoch: float | None = -1


def _run_start(state: _State, _: Event) -> str | None:
    state.run_started = True
    return None


def _run_stop(state: _State, _: Event) -> str | None:
    state.run_stopped = True
    return "inside an evaluation" if state.in_eval else None


def _epoch_start(state: _State, event: Event) -> str | None:
    epoch = number(event.metadata.get("epoch_num"))
    problem = None
    if not state.run_started or state.run_stopped:
        problem = "outside run_start to run_stop"
    elif state.in_epoch:
        problem = "inside another epoch"
    elif epoch is None or epoch != (state.last_epoch or 0) + 1:
        problem = f"epoch {_named(epoch)} after epoch {_named(state.last_epoch)}"
    state.in_epoch = True
    state.last_epoch = epoch
    return problem


def _epoch_stop(state: _State, event: Event) -> str | None:
    epoch = number(event.metadata.get("epoch_num"))
    fits = state.in_epoch and epoch is not None and epoch == state.last_epoch
    state.in_epoch = False
    return None if fits else f"epoch {_named(epoch)} is not the one that was started"


def _eval_start(state: _State, event: Event) -> str | None:
    epoch = number(event.metadata.get("epoch_num"))
    problem = None
    if not state.run_started or state.run_stopped:
        problem = "outside run_start to run_stop"
    elif state.in_eval:
        problem = "inside another evaluation"
    elif not state.accuracy_printed:
        problem = "the evaluation before it logged no accuracy"
    elif epoch is None or not (state.last_eval or 0) < epoch <= (state.last_epoch or 0):
        problem = f"epoch {_named(epoch)} is not a new epoch that was trained"
    state.in_eval, state.accuracy_printed, state.last_eval = True, False, epoch
    return problem


def _eval_stop(state: _State, event: Event) -> str | None:
    epoch = number(event.metadata.get("epoch_num"))
    fits = state.in_eval and epoch is not None and epoch == state.last_eval
    state.in_eval = False
    return None if fits else f"epoch {_named(epoch)} is not the one under evaluation"


def _eval_accuracy(state: _State, event: Event) -> str | None:
    epoch = number(event.metadata.get("epoch_num"))
    state.accuracy_printed = True
    if epoch is not None and epoch == state.last_eval:
        return None
    return f"epoch {_named(epoch)} is not the one under evaluation"


def _block_start(state: _State, event: Event) -> str | None:
    first = number(event.metadata.get("first_epoch_num"))
    count = number(event.metadata.get("epoch_count"))
    due = state.last_eval if state.in_epoch else (state.last_epoch or 0) + 1
    problem = None
    if not state.run_started or state.run_stopped:
        problem = "outside run_start to run_stop"
    elif state.in_block:
        problem = "inside another block"
    elif first is None or first != due:
        problem = f"first epoch {_named(first)}, expected {_named(due)}"
    elif count is None or count <= 0:
        problem = f"epoch_count {_named(count)}, expected above 0"
    state.in_block, state.accuracy_printed, state.block_first_epoch = True, True, first
    return problem


def _block_stop(state: _State, event: Event) -> str | None:
    first = number(event.metadata.get("first_epoch_num"))
    problem = None
    if not state.in_block:
        problem = "no block was started"
    elif not state.accuracy_printed:
        problem = "its evaluation logged no accuracy"
    elif first is None or first != state.block_first_epoch:
        problem = f"first epoch {_named(first)} is not the block's"
    state.in_block = False
    return problem


def _named(value: float | None) -> str:
    return "?" if value is None else plain(value)


_STEPS: dict[str, Callable[[_State, Event], str | None]] = {
    "run_start": _run_start,
    "run_stop": _run_stop,
    "epoch_start": _epoch_start,
    "epoch_stop": _epoch_stop,
    "eval_start": _eval_start,
    "eval_stop": _eval_stop,
    "eval_accuracy": _eval_accuracy,
    "block_start": _block_start,
    "block_stop": _block_stop,
}


@rule(
    *("MLP603", "misnested-events-060", ERROR, f"{_SOURCE}/common.yaml"),
    rulesets=_060,
    keys=tuple(_STEPS),
)
def nesting(run: LoggedRun) -> Iterator[Violation]:
    """Blocks hold epochs 1, 2, 3 ..., evaluated in turn, each evaluation with its accuracy."""
    events = sorted((e for key in _STEPS for e in run.all(key)), key=lambda event: event.order)
    state = _State()
    first: tuple[Event, str] | None = None
    count = 0
    for event in events:
        problem = _STEPS[event.key](state, event)
        if problem is not None:
            count += 1
            first = first or (event, problem)
    if first is not None:
        event, problem = first
        more = f" (and {count - 1} more records out of place)" if count > 1 else ""
        text = f"{event.key} (line {event.line}): {problem}{more}"
        yield Violation(text, event.line, "blocks, epochs and evaluations nested in order", problem)


_ONCE = (
    "global_batch_size",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_warmup_epochs",
    "model_bn_span",
)
_OWN = {
    "sgd": ("opt_learning_rate_decay_boundary_epochs",),
    "lars": (
        "lars_opt_learning_rate_decay_steps",
        "lars_opt_learning_rate_decay_poly_power",
        "lars_opt_weight_decay",
        "lars_epsilon",
    ),
}


@rule(
    *("MLP604", "invalid-hyperparameter-060", ERROR, f"{_SOURCE}/resnet.yaml"),
    rulesets=_060,
    keys=(*_ONCE, *(key for keys in _OWN.values() for key in keys)),
)
def hyperparameters(run: LoggedRun) -> Iterator[Violation]:
    """Batch, base learning rate, warm-up and bn_span are logged and above 0; opt_name is lars or
    sgd and has its own keys once."""
    missing = [key for key in _ONCE if run.absent(key)]
    if missing:
        yield Violation(f"no {', '.join(missing)} in the log", None, ", ".join(missing), "none")
    above = [key for key in _ONCE if key != "opt_name"]
    for key in [*above, *_OWN["lars"]]:
        for event in run.all(key):
            value = number(event.value)
            if value is None or value < 0 or (value == 0 and key != "lars_epsilon"):
                text = shown(event.value)
                message = f"{key} (line {event.line}) is {text}, expected above 0"
                yield Violation(message, event.line, "above 0", text)
                break
    for event in run.all("opt_learning_rate_decay_boundary_epochs"):
        if not isinstance(event.value, list | str | dict) or not event.value:
            text = shown(event.value)
            yield Violation(
                f"{event.key} (line {event.line}) is {text}", event.line, "epochs", text
            )
            break
    name = run.value("opt_name")
    if run.all("opt_name") and name not in benchmark.OPTIMIZERS:
        event = run.all("opt_name")[0]
        text = f"opt_name {shown(name)} (line {event.line}): allowed are lars, sgd"
        yield Violation(text, event.line, "lars or sgd", shown(name))
        return
    for optimizer, keys in _OWN.items():
        for key in keys:
            count, due = len(run.all(key)), int(name == optimizer)
            if count != due:
                text = f"{key} is logged {count} x, expected {due} x for opt_name {shown(name)}"
                yield Violation(text, None, str(due), str(count))
