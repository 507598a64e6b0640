"""Rules on epochs and samples: how often and on how much the run trained and evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain
from ..limits import cadence_problem
from ..logged_run import LoggedRun
from ..rule import CLOSED_POLICY, FROM_070, NOTE, RULES_TEXT, Setting, Violation, rule
from .training import EPOCH_KEYS, EPOCH_NAMES


@rule(
    "MLP803", "evaluation-cadence", CLOSED_POLICY, f"{RULES_TEXT} lines 939, 443", rulesets=FROM_070
)
def cadence(run: LoggedRun) -> Iterator[Violation]:
    """Evaluations come every 4 epochs, the first after epoch 1 to 4."""
    epochs = [epoch for epoch, _ in run.numbered("eval_accuracy")]
    problem = cadence_problem(sorted(set(epochs)))
    if problem is not None:
        text = f"evaluated not every {benchmark.EVAL_PERIOD_EPOCHS} epochs: {problem}"
        expected = f"every {benchmark.EVAL_PERIOD_EPOCHS} epochs from epoch 1-4 on"
        advice = "keep the cadence to the end"
        line = run.during("eval_accuracy")[0].line
        yield Violation(text, line, expected, problem, advice)


def _first_epoch(run: LoggedRun) -> tuple[float, int] | None:
    """(smallest epoch number of blocks and epochs, its line); of evaluations if there are none."""
    for keys in (("block_start", "epoch_start"), ("eval_start", "eval_accuracy")):
        found = [
            (epoch, event.line)
            for key in keys
            for event in run.all(key)
            for name in ("first_epoch_num", "epoch_num")
            if (epoch := number(event.metadata.get(name))) is not None
        ]
        if found:
            return min(found)
    return None


@rule("MLP804", "epochs-from-zero", CLOSED_POLICY, f"{RULES_TEXT} line 208")
def epochs_from_one(run: LoggedRun) -> Iterator[Violation]:
    """Epochs are numbered from 1, not from 0."""
    first = _first_epoch(run)
    if first is not None and first[0] < 1:
        text = f"the first epoch has number {plain(first[0])} (line {first[1]})"
        yield Violation(text, first[1], "1", plain(first[0]), "number epochs from 1")


@rule("MLP805", "late-first-epoch", NOTE, f"{RULES_TEXT} line 208")
def epochs_not_later(run: LoggedRun) -> Iterator[Violation]:
    """The first epoch number in the log is not above 1."""
    first = _first_epoch(run)
    if first is not None and first[0] > 1:
        text = f"the first epoch number in the log is {plain(first[0])} (line {first[1]})"
        yield Violation(text, first[1], "1", plain(first[0]))


@rule("MLP806", "epoch-not-a-number", CLOSED_POLICY, f"{RULES_TEXT} line 208")
def epochs_are_numbers(run: LoggedRun) -> Iterator[Violation]:
    """Epochs and counts of epochs, where an event of training or evaluation has them, are numbers:
    rules that compare them skip others."""
    for event in (e for key in EPOCH_KEYS for e in run.all(key)):
        for name in EPOCH_NAMES:
            if name in event.metadata and number(event.metadata[name]) is None:
                setting = Setting(f"{event.place}: {name}", event.metadata[name], event.line)
                advice = "without it there is no epoch to converge"
                yield setting.violation("a number", advice=advice)
                return
