"""One run as the rules see it: its records, ruleset, division, clock and evaluations."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

from ..config import benchmark
from ..host.finding import number, shown
from ..logging.events import RUN_KEYS, Event, Log
from ..logging.run_time import epoch_of as started_epoch
from .rule import Setting

SAME_MS = 1000
"""Copies of a record, from ranks or nodes, lie within a second."""

_PREAMBLE = (*benchmark.SUBMISSION_KEYS, "cache_clear", "init_start")
LABEL_SMOOTHING_KEYS = (
    "label_smoothing",
    "model_label_smoothing",
    "lars_opt_label_smoothing",
    "sgd_opt_label_smoothing",
)
READ_KEYS = frozenset(
    {
        *RUN_KEYS,
        *_PREAMBLE,
        *benchmark.submission_keys("0.6.0"),
        *benchmark.LARS_KEYS,
        *benchmark.SGD_KEYS,
        *LABEL_SMOOTHING_KEYS,
        "eval_samples",
        "global_batch_size",
        "gradient_accumulation_steps",
        "opt_base_learning_rate",
        "opt_learning_rate_decay_boundary_epochs",
        "opt_learning_rate_decay_from",
        "opt_learning_rate_decay_shape",
        "opt_name",
        "seed",
        "train_samples",
        "weights_initialization",
    }
)
"""Keys that the parser keeps for every check: a rule declares none but others."""
_OF_THE_RUN = {*RUN_KEYS, "train_samples", "eval_samples"} - {"init_start", "run_stop"}

_SETTING_KEYS = {
    "optimizer": "opt_name",
    "end_lr": "{optimizer}_opt_end_learning_rate",
    "decay_shape": "opt_learning_rate_decay_shape",
    "decay_from": "opt_learning_rate_decay_from",
    "decay_power": "{optimizer}_opt_learning_rate_decay_poly_power",
    "epsilon": "lars_epsilon",
    "weight_decay": "{optimizer}_opt_weight_decay",
    "base_lr": "{optimizer}_opt_base_learning_rate",
    "momentum": "{optimizer}_opt_momentum",
}
"""The log's names of what configs and logs both have."""


class Evaluation(NamedTuple):
    """An `eval_accuracy` with a number; epoch None where there is no number."""

    order: int
    line: int
    time_ms: float
    time_s: float | None
    """Since run_start; None where one of the two has no stamp."""
    epoch: float | None
    accuracy: float


class Trained(NamedTuple):
    """What was trained before an evaluation: how many epochs, and the last one up to which all were
    trained (in a log without `epoch_start`: their number)."""

    epochs: int
    reach: int


class OwnTarget(NamedTuple):
    """The accuracy at which a run was to end; `problem`: why its config cannot be read."""

    accuracy: float = benchmark.TARGET_ACCURACY
    problem: str = ""
    last_epoch: int | None = None
    """That of the last evaluation of its schedule; None: there is no config."""


class LoggedRun:
    """What the rules ask about one log under one ruleset."""

    def __init__(
        self, log: Log, ruleset: str, own_target: OwnTarget | None = None
    ) -> None:
        self.log = log
        self.ruleset = ruleset
        self.own_target = own_target or OwnTarget()
        self.second_run_line: int | None = None
        self.events = log.events
        """The records of the first run, in file order."""
        self._index = log.by_key
        if second := _second_run(log):
            self.second_run_line = second.line
            self.events = [event for event in log.events if event.order < second.order]
            self._index = {}
            for event in self.events:
                self._index.setdefault(event.key, []).append(event)

    def all(self, key: str) -> list[Event]:
        """Records of a key in the first run."""
        return self._index.get(key, [])

    def settings(self, name: str) -> list[Setting]:
        """What the log has of a hyper-parameter; a name without a key of its own is the key."""
        keys = [_SETTING_KEYS.get(name, name).format(optimizer=self.optimizer)]
        if name == "label_smoothing":
            keys = [*LABEL_SMOOTHING_KEYS]
        return [as_setting(event) for event in self.of_keys(*keys)]

    def of_keys(self, *keys: str) -> list[Event]:
        """Records of some keys in the first run, key by key."""
        return [event for key in keys for event in self.all(key)]

    def first(self, key: str) -> Event | None:
        """The first record of a key."""
        return next(iter(self.all(key)), None)

    def value(self, key: str) -> Any:
        """The value of the first record of a key; None: there is none."""
        event = self.first(key)
        return event and event.value

    def numbered(self, key: str) -> list[tuple[float, Event]]:
        """The records of a key between run_start and the last run_stop, by their place in the log,
        whose epoch is a number, with that number."""
        begin, end = self._clock_orders
        during = (event for event in self.all(key) if begin < event.order < end)
        epochs = ((epoch_of(event), event) for event in during)
        return [(epoch, event) for epoch, event in epochs if epoch is not None]

    @cached_property
    def _clock_orders(self) -> tuple[int, float]:
        begin = self.start.order if self.start else 0
        stops = [stop.order for stop in self.all("run_stop")]
        return begin, max(stops, default=math.inf)

    def absent(self, key: str) -> bool:
        """No record of this key, and no other finding that says why: it was torn, or the run ended
        or was aborted before it was due."""
        if self.all(key) or key in self.log.lost_keys or self.log.truncated:
            return False
        # a run that never stopped, or was aborted, need not have come to these
        return key not in _OF_THE_RUN or (
            bool(self.all("run_stop")) and self.status != "aborted"
        )

    def at_least(self, ruleset: str) -> bool:
        """Whether the log is held to this round's rules or a later one's."""
        return benchmark.at_least(self.ruleset, ruleset)

    @cached_property
    def division(self) -> str | None:
        """closed or open; None where the log says neither."""
        value = self.value("submission_division")
        return next((name for name in benchmark.DIVISIONS if name == value), None)

    @cached_property
    def optimizer(self) -> str | None:
        """lars or sgd; None for any other."""
        return benchmark.known_optimizer(self.value("opt_name"))

    @cached_property
    def batch(self) -> float | None:
        """The global batch size."""
        return number(self.value("global_batch_size"))

    @cached_property
    def start(self) -> Event | None:
        """The first run_start."""
        return self.first("run_start")

    @cached_property
    def stop(self) -> Event | None:
        """The first run_stop: the one that the official score uses."""
        return self.first("run_stop")

    @cached_property
    def status(self) -> Any:
        """What the first run_stop says of the run."""
        return self.stop and self.stop.metadata.get("status")

    @cached_property
    def run_ms(self) -> float | None:
        """Time on the clock; None where it has no start or no stop."""
        if not self.start or not self.stop:
            return None
        return number(self.stop.time_ms - self.start.time_ms)

    @cached_property
    def slack_ms(self) -> float:
        """How far a stamp may lie off the clock: a second, or 1 % of a shorter run."""
        if self.run_ms is None:
            return SAME_MS
        return min(SAME_MS, 0.01 * max(0.0, self.run_ms))

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        """All evaluations with a number, in file order."""
        return [
            Evaluation(
                event.order,
                event.line,
                event.time_ms,
                seconds_between(self.start, event),
                epoch_of(event),
                accuracy,
            )
            for event in self.all("eval_accuracy")
            if (accuracy := number(event.value)) is not None
        ]

    @cached_property
    def curve(self) -> list[Evaluation]:
        """The first accuracy of each epoch that is a fraction, in file order. One that names no
        epoch is of that of the `eval_start` before it."""
        starts = self.all("eval_start")
        curve: dict[object, Evaluation] = {}
        for evaluation in self.evaluations:
            if not 0 <= evaluation.accuracy <= 1:
                continue
            epoch = evaluation.epoch
            # how many stand before it: the last of them is its own
            starts_before = bisect_right(
                starts, evaluation.order, key=lambda start: start.order
            )
            if epoch is None and starts_before:
                epoch = started_epoch(starts[starts_before - 1])
            # of no epoch: a point of its own
            key = ("line", evaluation.line) if epoch is None else epoch
            curve.setdefault(key, evaluation._replace(epoch=epoch))
        return list(curve.values())

    @cached_property
    def timed_evaluations(self) -> list[Evaluation]:
        """Evaluations between run_start and the last run_stop, by their place in the log."""
        begin, end = self._clock_orders
        return [e for e in self.evaluations if begin < e.order < end]

    @cached_property
    def evaluations_at_target(self) -> list[Evaluation]:
        """Evaluations on the clock that reach the target."""
        return [e for e in self.timed_evaluations if reaches_target(e.accuracy)]

    @cached_property
    def target(self) -> Evaluation | None:
        """The first of them, up to which the benchmark counts."""
        return next(iter(self.evaluations_at_target), None)

    @cached_property
    def end(self) -> Evaluation | None:
        """The first of them at the run's own target too, at which it should end."""
        own_target = self.own_target.accuracy
        at_target = (e for e in self.evaluations_at_target if e.accuracy >= own_target)
        return next(at_target, None)

    @cached_property
    def best(self) -> Evaluation | None:
        """The best evaluation that is a fraction; the first of equals."""
        fractions = [
            e for e in self.evaluations if e.accuracy < benchmark.HIGHEST_ACCURACY
        ]
        return max(fractions, key=lambda e: e.accuracy, default=None)

    @cached_property
    def miss(self) -> Evaluation | None:
        """The evaluation with which an open run ended that was trained to the end of its own
        schedule and stayed below its own target; None: it is no such run."""
        if self.needs_target or not self.evaluations:
            return None
        last = self.evaluations[-1]
        is_last = last.epoch == self.own_target.last_epoch
        best = max(evaluation.accuracy for evaluation in self.evaluations)
        return last if is_last and best < self.own_target.accuracy else None

    @cached_property
    def needs_target(self) -> bool:
        """Closed runs have to reach the target; open ones in 0.7.0 too."""
        return self.division != "open" or self.ruleset == "0.7.0"

    @cached_property
    def converged(self) -> bool:
        """The one meaning of converged: every run_stop a success, the target reached on the clock
        (open from 1.0.0 on: any target), and a clock that can be right."""
        reached = bool(self.evaluations_at_target) or not self.needs_target
        stops = self.all("run_stop")
        succeeded = all(stop.metadata.get("status") == "success" for stop in stops)
        return bool(stops) and succeeded and reached and (self.run_ms or 0) > 0

    @cached_property
    def coarse_ms(self) -> int:
        """What the stamps of evaluations are multiples of, where that is more than a millisecond,
        up to a second; else 0."""
        stamps = [e.time_ms for e in self.timed_evaluations]
        if not stamps or any(not stamp.is_integer() for stamp in map(float, stamps)):
            return 0
        # stamps of whole seconds have 1000, of tenths 100, of milliseconds 1
        step_ms = math.gcd(SAME_MS, *map(int, stamps))
        return step_ms if step_ms > 1 else 0

    @cached_property
    def trained(self) -> dict[int, Trained]:
        """What was trained before each `eval_accuracy`, by its place in the log. An epoch is
        trained once it has started and then stopped; in a log without `epoch_start`, once a block
        that claims it has begun."""
        keys = ["block_start"]
        by_epoch = bool(self.all("epoch_start"))
        if by_epoch:
            keys = ["epoch_start", "epoch_stop"]
        events = self.of_keys(*keys, "eval_accuracy")
        started = set()
        done: set[int] = set()
        last_in_row = 0
        trained = {}
        for event in sorted(events, key=lambda event: event.order):
            if event.key == "eval_accuracy":
                # the last epoch before a gap: one that was skipped ends the row
                while last_in_row + 1 in done:
                    last_in_row += 1
                reach = len(done)
                if by_epoch:
                    reach = last_in_row + (0 in done)
                trained[event.order] = Trained(len(done), reach)
            elif event.key == "block_start":
                done |= epochs_of(event)
            elif event.key == "epoch_start":
                started |= epochs_of(event)
            else:  # epochs from 0 start one lower than they stop in some logs (v2.0 MosaicML)
                stopped = epochs_of(event)
                from_zero = {epoch - 1 for epoch in stopped if 0 in started}
                done |= (stopped & started) or (from_zero & started)
        return trained

    def epochs_to(self, evaluation: Evaluation) -> float | None:
        """Epochs that were trained for an evaluation: what its record claims, but no more than the
        log has before it; None where neither says a number of epochs that can be."""
        limits: list[float] = []
        if evaluation.epoch is not None and _is_possible(evaluation.epoch):
            limits.append(evaluation.epoch)
        epochs_before = self.trained[evaluation.order].epochs
        if epochs_before or self.all("epoch_start"):
            limits.append(epochs_before)
        if not limits:
            return None
        return round(min(limits), 3)

    @cached_property
    def convergence_epoch(self) -> float | None:
        """Epochs to convergence for the RCP test: those trained for the first evaluation at or
        above the target, whatever is trained after it (of an open run that reaches none, for the
        last evaluation). None: the run did not converge."""
        if not self.last_counted or not self.converged:
            return None
        return self.epochs_to(self.last_counted)

    @cached_property
    def last_counted(self) -> Evaluation | None:
        """The first evaluation at the target; of a run that reaches none, its last."""
        return self.target or next(reversed(self.timed_evaluations), None)

    @cached_property
    def duplicate_writers(self) -> int:
        """How many ranks wrote the log from run_start on: copies of a record within a second."""
        begin, end = self._clock_orders
        # before run_start ranks begin apart, so their copies lie further apart
        return copies(
            [event for event in self.events if begin <= event.order <= end],
            within_ms=SAME_MS,
        )


def copies(events: Iterable[Event], within_ms: float = math.inf) -> int:
    """The most copies of a record, up to a time after the first: a program logs each once, so that
    so many have written. They have one key and metadata, and may differ in their value."""
    first_ms: dict[tuple[str, str], float] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for event in events:
        metadata = sorted(event.metadata.items())
        # as text: a value may be a list, which no dict takes as a key
        record = event.key, str([(name, shown(value)) for name, value in metadata])
        since_ms = event.time_ms - first_ms.setdefault(record, event.time_ms)
        counts[record] += abs(since_ms) <= within_ms
    return max(counts.values(), default=0)


def seconds_between(start: Event | None, stop: Event | None) -> float | None:
    """The time between two records; None where one is missing or has no stamp."""
    if not start or not stop or min(start.time_ms, stop.time_ms) <= 0:
        return None
    return (stop.time_ms - start.time_ms) / 1000


def spread_ms(events: Iterable[Event]) -> float:
    """The time from the earliest stamp to the latest, without stamps of 0."""
    stamps = [event.time_ms for event in events if event.time_ms > 0]
    return max(stamps, default=0.0) - min(stamps, default=0.0)


def epoch_of(event: Event, name: str = "") -> float | None:
    """A number of its metadata, by default its epoch's; a block has that of its first."""
    usual = "first_epoch_num" if event.key.startswith("block") else "epoch_num"
    return number(event.metadata.get(name or usual))


def _is_possible(epoch: float) -> bool:
    return 0 <= epoch <= benchmark.MOST_LOGGED_EPOCHS


def epochs_of(event: Event) -> set[int]:
    """The epochs that a start of an epoch or a block claims, of those that a run can have."""
    first = epoch_of(event)
    count = epoch_of(event, "epoch_count") if event.key == "block_start" else 1.0
    if first is None or count is None or not _is_possible(first):
        return set()
    return set(
        range(round(first), round(first + min(count, benchmark.MOST_LOGGED_EPOCHS)))
    )


def as_setting(event: Event) -> Setting:
    """A record as a value and where it stands."""
    return Setting(event.place, event.value, event.line)


def reaches_target(accuracy: float) -> bool:
    """Whether the number, as logged, lies in [0.759, 1.0)."""
    return benchmark.TARGET_ACCURACY <= accuracy < benchmark.HIGHEST_ACCURACY


def _second_run(log: Log) -> Event | None:
    """The record with which another run begins: its preamble, `init_start` or `run_start`, after
    the first one has begun (an `init_start`: after the first `init_stop`)."""
    stop_order = next((stop.order for stop in log.all("run_stop")), math.inf)
    preamble = sorted(
        (event for key in _PREAMBLE for event in log.all(key)),
        key=lambda event: event.order,
    )
    # a rank's own init_start may come long after the first; none comes behind init_stop
    for key, end_key in (("run_start", "run_start"), ("init_start", "init_stop")):
        first = log.first(end_key)
        if first is None:
            continue
        for later_start in log.all(key)[1:]:
            ended = first.order < stop_order < later_start.order
            is_apart = (
                later_start.order > first.order
                and abs(later_start.time_ms - first.time_ms) > SAME_MS
            )
            if ended or is_apart:
                begin = stop_order if ended else first.order
                # the first record of a preamble behind where the first run was last seen
                index = bisect_right(preamble, begin, key=lambda event: event.order)
                if index < len(preamble) and preamble[index].order < later_start.order:
                    return preamble[index]
                if ended:
                    return later_start
    return None
