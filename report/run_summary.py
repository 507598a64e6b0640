"""RunSummary of one run from the records of its log: curve, clocks, hyper-parameters.

Whatever a log holds, these functions return what can be made of it and never raise on content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from ..config import benchmark
from ..config.finding import number, printable
from ..config.reading import JsonObject
from ..logging.events import Event

MISSING = "-"
_MAX_SHOWN = 200
_SUBMISSION = ("submission_benchmark", "submission_org", "submission_platform")
_PARAMETER = re.compile(
    r"(?:lars_|sgd_|akiba_)?opt_(?P<rule>\w+)|lars_(?P<lars>\w+)|num_(?P<set>train|eval)_examples"
    r"|(?P<own>seed|global_batch_size(?:_change)?|gradient_accumulation_steps"
    r"|model_bn_span|train_samples|eval_samples|\w*label_smoothing)"
)


_RENAMED = {"opt_name": "optimizer"}


class Evaluation(NamedTuple):
    """One evaluation; `time_s` counts from run_start. `counts`: before run_stop."""

    epoch: float | None
    time_s: float | None
    accuracy: float
    counts: bool = True


class Interval(NamedTuple):
    """A start and its stop in seconds from run_start, over `epochs` epochs."""

    start_s: float
    stop_s: float
    epochs: float = 1.0

    @property
    def duration_s(self) -> float:
        return self.stop_s - self.start_s


class RunSummary(NamedTuple):
    """What a log says of its run; None where it does not say."""

    submission: dict[str, str]
    parameters: JsonObject
    status: str | None
    init_s: float | None
    """init_start to init_stop."""
    run_s: float | None
    """run_start to run_stop: the time to train."""
    target: float
    evaluations: tuple[Evaluation, ...]
    epochs: tuple[Interval, ...]
    """Training, by epochs where they are logged, else by blocks."""
    evals: tuple[Interval, ...]
    blocks: tuple[Interval, ...] = ()

    @property
    def reached(self) -> Evaluation | None:
        """The first evaluation at or above the target while the clock ran."""
        return next(
            (e for e in self.evaluations if e.counts and e.accuracy >= self.target),
            None,
        )

    @property
    def time_to_train_s(self) -> float | None:
        """The run's clock, of a run that reached its target alone."""
        return self.reached and self.run_s

    @property
    def best(self) -> Evaluation | None:
        return max(self.evaluations, key=lambda one: one.accuracy, default=None)

    @property
    def epoch_s(self) -> float | None:
        """Median time of an epoch, evaluations excluded where the log separates them."""
        return median_of(one.duration_s / one.epochs for one in self.epochs)

    @property
    def eval_s(self) -> float | None:
        """Median time of an evaluation."""
        return median_of(one.duration_s for one in self.evals)

    @property
    def train_samples(self) -> float | None:
        """Training images; those of the benchmark where the log has no count (v0.6 needs none)."""
        is_benchmark = self.submission.get("benchmark") == benchmark.BENCHMARK
        usual = benchmark.IMAGENET_TRAIN_SAMPLES if is_benchmark else None
        return number(self.parameters.get("train_samples", usual))

    @property
    def images_per_s(self) -> float | None:
        """Training images over the time of the epochs."""
        samples = self.train_samples
        seconds = sum(one.duration_s for one in self.epochs)
        epochs = sum(one.epochs for one in self.epochs)
        return samples * epochs / seconds if samples and seconds > 1e-6 else None


def summarise(events: Sequence[Event], target: float | None = None) -> RunSummary:
    """What one log says; `target` where it is known not to be the benchmark's."""
    clock_ms = _first_time(events, "run_start")
    stop = next((event for event in events if event.key == "run_stop"), None)
    status = stop and stop.metadata.get("status")
    timed = [event for event in events if event.time_ms > 0]
    epochs = _intervals(
        timed,
        "epoch_start",
        ("epoch_stop",),
        clock_ms,
    )
    blocks = _intervals(
        timed,
        "block_start",
        ("block_stop",),
        clock_ms,
    )
    return RunSummary(
        submission={
            event.key.removeprefix("submission_"): show(event.value)
            for event in reversed(events)  # the first of each counts
            if event.key in _SUBMISSION and event.value is not None
        },
        parameters=_parameters(events),
        status=None if status is None else show(status),
        init_s=_seconds(
            _first_time(events, "init_start"), _first_time(events, "init_stop")
        ),
        run_s=_seconds(clock_ms, _first_time(events, "run_stop")),
        target=benchmark.TARGET_ACCURACY if target is None else target,
        evaluations=_evaluations(events, clock_ms),
        epochs=epochs or blocks,
        evals=_intervals(timed, "eval_start", ("eval_stop", "eval_accuracy"), clock_ms),
        blocks=blocks,
    )


def show(value: Any, at_most: int = _MAX_SHOWN) -> str:
    """A value as text for people: one line, nothing that a terminal obeys, of bounded length."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # epochs and batch sizes come as 38.0
    try:
        text = value
        if not isinstance(value, str):
            text = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        text = f"({type(value).__name__} that cannot be shown)"
    shown = printable(text[: at_most + 1])
    if len(shown) > at_most:
        shown = f"{shown[: at_most - 1]}…"
    return shown


def amount(value: float | None, unit: str = "") -> str:
    """A number for people: about five digits, thousands marked, its unit."""
    if value is None:
        return MISSING
    text = f"{value:,.{decimals(value)}f}" if unit else f"{value:.6g}"
    return f"{text} {unit}".rstrip()


def decimals(value: float) -> int:
    """Digits after the point of an amount with a unit."""
    size = abs(value)
    return sum(size < limit for limit in (10, 100, 10_000))


def _parameters(events: Sequence[Event]) -> JsonObject:
    """Hyper-parameters under names without the optimizer's prefix; a list where values differ."""
    found: dict[str, list[Any]] = {}
    for event in events:
        if match := _PARAMETER.fullmatch(event.key):
            name = (
                match["rule"]
                or match["lars"]
                or match["own"]
                or f"{match['set']}_samples"
            )
            values = found.setdefault(_RENAMED.get(event.key, name), [])
            if len(values) < 8 and event.value not in values:
                values.append(event.value)
    return {
        name: values[0] if len(values) == 1 else values
        for name, values in found.items()
    }


def _evaluations(
    events: Sequence[Event], clock_ms: float | None
) -> tuple[Evaluation, ...]:
    """Accuracies that are fractions, the first of each epoch, in file order."""
    found: dict[Any, Evaluation] = {}
    started = None
    stop = None
    for event in events:
        if event.key == "eval_start":
            started = _epoch(event)
        elif event.key == "run_stop":
            stop = stop or event
        if event.key != "eval_accuracy":
            continue
        accuracy = number(event.value)
        if accuracy is None or not 0 <= accuracy <= 1:
            continue
        logged = number(event.metadata.get("epoch_num"))
        epoch = started if logged is None else logged
        time_s = _seconds(clock_ms, event.time_ms) if event.time_ms > 0 else None
        key = event.line if epoch is None else ("epoch", epoch)
        found.setdefault(key, Evaluation(epoch, time_s, accuracy, counts=stop is None))
    return tuple(found.values())


def _intervals(
    events: Iterable[Event], start: str, stops: tuple[str, ...], clock_ms: float | None
) -> tuple[Interval, ...]:
    """Each start with the stop that follows it; copies by other ranks are left out."""
    found = []
    seen: set[float | None] = set()
    closed: set[float] = set()
    opened = None
    for event in events:
        if clock_ms is None:
            break
        if event.key == start:
            epoch = _epoch(event)
            if epoch is None or epoch not in seen:
                opened = event
                seen.add(epoch)
        elif (
            event.key in stops and opened is not None and event.time_ms > opened.time_ms
        ):
            epoch = _epoch(event)
            if epoch in closed:
                continue  # a slower rank's copy
            if epoch is not None:
                closed.add(epoch)
            count = number(opened.metadata.get("epoch_count")) or 1.0
            if count < 0:
                count = 1.0
            start_s = (opened.time_ms - clock_ms) / 1000
            found.append(Interval(start_s, (event.time_ms - clock_ms) / 1000, count))
            opened = None
    return tuple(found)


def _epoch(event: Event) -> float | None:
    """The epoch of a record, which some published logs give as its value."""
    metadata = event.metadata
    values = (metadata.get("epoch_num"), metadata.get("first_epoch_num"), event.value)
    return next(
        (epoch for value in values if (epoch := number(value)) is not None), None
    )


def _first_time(events: Sequence[Event], key: str) -> float | None:
    return next((e.time_ms for e in events if e.key == key and e.time_ms > 0), None)


def _seconds(start_ms: float | None, stop_ms: float | None) -> float | None:
    return None if start_ms is None or stop_ms is None else (stop_ms - start_ms) / 1000


def median_of(values: Iterable[float | None]) -> float | None:
    """Of the numbers that are known; None: none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
