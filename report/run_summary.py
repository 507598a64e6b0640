"""RunSummary of one run from the records of its log: curve, clocks, hyper-parameters.

Whatever a log holds, these functions return what can be made of it and never raise on content.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ..compliance.logged_run import Evaluation, LoggedRun, seconds_between
from ..config import benchmark
from ..host.finding import number, printable
from ..host.reading import JsonObject
from ..logging.events import Event
from ..logging.run_time import RunTime, Shares, run_time

MISSING = "-"
_MAX_SHOWN = 200
_SUBMISSION = ("submission_benchmark", "submission_org", "submission_platform")
# The optimizer's prefix is left out: `lars_opt_momentum` and `sgd_opt_momentum` are one column.
_PARAMETER = re.compile(
    r"(?:(?:lars_|sgd_|akiba_)?opt|lars)_(?P<rule>\w+)|num_(?P<set>train|eval)_examples"
    r"|(?P<name>seed|global_batch_size(?:_change)?|gradient_accumulation_steps"
    r"|model_bn_span|train_samples|eval_samples|\w*label_smoothing)"
)
PARAMETER_KEYS = frozenset(
    {
        *(key.replace("sgd_", "akiba_") for key in benchmark.SGD_KEYS),
        "global_batch_size_change",
        "num_eval_examples",
        "num_train_examples",
        "opt_weight_decay",
    }
)
"""Hyper-parameters that logs have and no rule reads."""
_RENAMED = {"opt_name": "optimizer"}


class RunSummary(NamedTuple):
    """What a log says of its run; None where it does not say."""

    path: Path
    submission: dict[str, str]
    parameters: JsonObject
    status: str | None
    init_s: float | None
    """init_start to init_stop."""
    run_s: float | None
    """run_start to run_stop: the time to train."""
    target: float
    evaluations: tuple[Evaluation, ...]
    """The first of each epoch."""
    reached: Evaluation | None
    """The first evaluation at or above the target while the clock ran."""
    time: RunTime

    @property
    def time_to_train_s(self) -> float | None:
        """The run's clock, of a run that reached its target alone."""
        return self.reached and self.run_s

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the highest accuracy; None: there is none."""
        return max(self.evaluations, key=attrgetter("accuracy"), default=None)

    @property
    def best_accuracy(self) -> float | None:
        """The highest accuracy; None: there is none."""
        return self.best and self.best.accuracy

    @property
    def epochs_to_target(self) -> float | None:
        """The epochs after which the target was reached; None: it was not."""
        return self.reached and self.reached.epoch

    @property
    def epoch_s(self) -> float | None:
        """Median time of an epoch, evaluations excluded where the log separates them."""
        return self.time.epoch_s

    @property
    def eval_s(self) -> float | None:
        """Median time of an evaluation."""
        return median_of(part.duration_s for part in self.time.evaluations)

    @property
    def images_per_s(self) -> float | None:
        """The rate of training; on the benchmark's images where the log has no count of them (v0.6
        needs none)."""
        usual = None
        if self.submission.get("benchmark") == benchmark.BENCHMARK:
            usual = benchmark.IMAGENET_TRAIN_SAMPLES
        samples = number(self.parameters.get("train_samples", usual))
        return self.time.images_per_s(samples)

    @property
    def shares(self) -> Shares | None:
        """What the clock was spent on; None: it has no stop."""
        return None if self.run_s is None else self.time.shares(self.run_s)


def summarise(run: LoggedRun, target: float) -> RunSummary:
    """What one log says of its first run; `target`: the accuracy that it was to reach."""
    stop_order = run.stop.order if run.stop else math.inf
    at_target = (
        evaluation
        for evaluation in run.curve
        if evaluation.order < stop_order and evaluation.accuracy >= target
    )
    return RunSummary(
        path=run.log.path,
        submission={
            key.removeprefix("submission_"): show(run.value(key))
            for key in _SUBMISSION
            if run.value(key) is not None
        },
        parameters=_parameters(run.events),
        status=None if run.status is None else show(run.status),
        init_s=seconds_between(run.first("init_start"), run.first("init_stop")),
        run_s=seconds_between(run.start, run.stop),
        target=target,
        evaluations=tuple(run.curve),
        reached=next(at_target, None),
        time=run_time(run.events),
    )


def show(value: Any, at_most: int = _MAX_SHOWN) -> str:
    """A value as text for people: one line, nothing that a terminal obeys, of bounded length."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)  # epochs and batch sizes come as 38.0
    if not isinstance(value, str):
        try:
            value = json.dumps(value, default=str)
        except (ValueError, RecursionError):
            value = f"({type(value).__name__} that cannot be shown)"
    # cut before it is made printable: a value may have megabytes
    printed = printable(value[: at_most + 1])
    if len(printed) > at_most:
        printed = f"{printed[: at_most - 1]}…"
    return printed


def amount(value: float | None, unit: str = "") -> str:
    """A number for people: about five digits, thousands marked, its unit."""
    if value is None:
        return MISSING
    if not unit:
        return f"{value:.6g}"
    return f"{value:,.{decimals(value)}f} {unit}"


def decimals(value: float) -> int:
    """Digits after the point of an amount with a unit."""
    size = abs(value)
    # 3 below 10, 2 below 100, 1 below 10,000, else none
    return sum(size < limit for limit in (10, 100, 10_000))


def _parameters(events: Sequence[Event]) -> JsonObject:
    """Hyper-parameters under names without the optimizer's prefix; a list where values differ."""
    parameters: JsonObject = {}
    for event in events:
        match = _PARAMETER.fullmatch(event.key)
        if match is None:
            continue
        name = match["rule"] or match["name"] or f"{match['set']}_samples"
        values = parameters.setdefault(_RENAMED.get(event.key, name), [])
        # a foreign log may have thousands of one key
        if len(values) < 8 and event.value not in values:
            values.append(event.value)
    for name, values in parameters.items():
        if len(values) == 1:
            (parameters[name],) = values
    return parameters


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of the values that are numbers; None: none is."""
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None
