"""Rules of round v0.6 alone: its checker follows the nesting of events record by record."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain, shown
from ...logging.events import Event
from ..logged_run import LoggedRun, as_setting, epoch_of
from ..rule import CHECKER, ERROR, Violation, missing, rule
from .training import EPOCH_KEYS

_060 = ("0.6.0",)
_SOURCE = f"{CHECKER}, training_0.6.0"


@rule("MLP601", "invalid-cache-clear-060", ERROR, f"{_SOURCE}/common.yaml", rulesets=_060)
def cache_clear_value(run: LoggedRun) -> Iterator[Violation]:
    """cache_clear is true, and logged before init_start."""
    begin = run.first("init_start")
    for event in run.all("cache_clear"):
        if event.value != True:  # noqa: E712 (1 passes officially too)
            yield as_setting(event).violation("true")
            return
        if begin is not None and event.order > begin.order:
            what = f"is logged after {begin.place}"
            yield Violation.at(event, what, "before init_start", "after")
            return


@rule("MLP602", "missing-event-060", ERROR, f"{_SOURCE}/common.yaml", rulesets=_060)
def events_missing(run: LoggedRun) -> Iterator[Violation]:
    """Blocks, epochs and evaluations all have their start and stop records."""
    keys = [f"{kind}_{end}" for kind in ("epoch", "eval", "block") for end in ("start", "stop")]
    yield from missing(run, keys)


class _State:
    """Where the run is, as the 0.6.0 checker tracks it: a method for each event, which says what is
    wrong with it. An epoch of None was no number."""

    def __init__(self) -> None:
        self.running = False
        self.in_block = self.in_epoch = self.in_eval = False
        self.accuracy_printed = True
        self.last_epoch: float | None = 0
        self.last_eval: float | None = 0
        self.block_first_epoch: float | None = -1
        self._stopped = False

    def step(self, event: Event) -> str | None:
        """Follow one event."""
        inside = self.running or event.key in ("run_start", "run_stop")
        problem: str | None = getattr(self, event.key)(epoch_of(event), event)
        if event.key.endswith("_start") and not inside:
            return "outside run_start to run_stop"
        return problem

    def run_start(self, _epoch: float | None, _event: Event) -> str | None:
        self.running = not self._stopped
        return None

    def run_stop(self, _epoch: float | None, _event: Event) -> str | None:
        self.running, self._stopped = False, True
        return "inside an evaluation" if self.in_eval else None

    def epoch_start(self, epoch: float | None, _event: Event) -> str | None:
        problem = None
        if self.in_epoch:
            problem = "inside another epoch"
        elif epoch is None or epoch != (self.last_epoch or 0) + 1:
            problem = f"epoch {_named(epoch)} after epoch {_named(self.last_epoch)}"
        self.in_epoch, self.last_epoch = True, epoch
        return problem

    def epoch_stop(self, epoch: float | None, _event: Event) -> str | None:
        fits = self.in_epoch and epoch is not None and epoch == self.last_epoch
        self.in_epoch = False
        return None if fits else f"epoch {_named(epoch)} is not the one that was started"

    def eval_start(self, epoch: float | None, _event: Event) -> str | None:
        problem = None
        if self.in_eval:
            problem = "inside another evaluation"
        elif not self.accuracy_printed:
            problem = "the evaluation before it logged no accuracy"
        elif epoch is None or not (self.last_eval or 0) < epoch <= (self.last_epoch or 0):
            problem = f"epoch {_named(epoch)} is not a new epoch that was trained"
        self.in_eval, self.accuracy_printed, self.last_eval = True, False, epoch
        return problem

    def eval_stop(self, epoch: float | None, _event: Event) -> str | None:
        was_in_eval, self.in_eval = self.in_eval, False
        return self._under_evaluation(epoch, was_in_eval)

    def eval_accuracy(self, epoch: float | None, _event: Event) -> str | None:
        self.accuracy_printed = True
        return self._under_evaluation(epoch, True)

    def _under_evaluation(self, epoch: float | None, fits: bool) -> str | None:
        fits = fits and epoch is not None and epoch == self.last_eval
        return None if fits else f"epoch {_named(epoch)} is not the one under evaluation"

    def block_start(self, first: float | None, event: Event) -> str | None:
        count = epoch_of(event, "epoch_count")
        due = self.last_eval if self.in_epoch else (self.last_epoch or 0) + 1
        problem = None
        if self.in_block:
            problem = "inside another block"
        elif first is None or first != due:
            problem = f"first epoch {_named(first)}, expected {_named(due)}"
        elif count is None or count <= 0:
            problem = f"epoch_count {_named(count)}, expected above 0"
        self.in_block, self.accuracy_printed, self.block_first_epoch = True, True, first
        return problem

    def block_stop(self, first: float | None, _event: Event) -> str | None:
        problem = None
        if not self.in_block:
            problem = "no block was started"
        elif not self.accuracy_printed:
            problem = "its evaluation logged no accuracy"
        elif first is None or first != self.block_first_epoch:
            problem = f"first epoch {_named(first)} is not the block's"
        self.in_block = False
        return problem


def _named(value: float | None) -> str:
    return "?" if value is None else plain(value)


_NESTED = ("run_start", "run_stop", *EPOCH_KEYS)


@rule("MLP603", "misnested-events-060", ERROR, f"{_SOURCE}/common.yaml", rulesets=_060)
def nesting(run: LoggedRun) -> Iterator[Violation]:
    """Blocks hold epochs 1, 2, 3 ..., evaluated in turn, each evaluation with its accuracy."""
    state = _State()
    events = sorted((e for key in _NESTED for e in run.all(key)), key=lambda event: event.order)
    steps = [(event, state.step(event)) for event in events]
    wrong = [(event, problem) for event, problem in steps if problem is not None]
    if wrong:
        event, problem = wrong[0]
        more = f" (and {len(wrong) - 1} more records out of place)" if len(wrong) > 1 else ""
        expected = "blocks, epochs and evaluations nested in order"
        yield Violation(f"{event.place}: {problem}{more}", event.line, expected, problem)


ONCE = (
    "global_batch_size",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_warmup_epochs",
    "model_bn_span",
)
"""Hyper-parameters that the checker of 0.6.0 wants exactly once."""
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
    keys=(*ONCE, *(key for keys in _OWN.values() for key in keys)),
)
def hyperparameters(run: LoggedRun) -> Iterator[Violation]:
    """Batch, base learning rate, warm-up and bn_span are logged and above 0; opt_name is lars or
    sgd and has its own keys once."""
    yield from missing(run, ONCE)
    above = [key for key in ONCE if key != "opt_name"]
    for key in [*above, *_OWN["lars"]]:
        for event in run.all(key):
            value = number(event.value)
            if value is None or value < 0 or (value == 0 and key != "lars_epsilon"):
                yield as_setting(event).violation("above 0")
                break
    for event in run.all("opt_learning_rate_decay_boundary_epochs"):
        if not isinstance(event.value, list | str | dict) or not event.value:
            text = shown(event.value)
            yield Violation.at(event, f"is {text}", "epochs", text)
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
