"""Rules on the course of training: is what a log claims to have trained in it, and in order.

Published implementations number epochs in several ways and group them in many (blocks named by
their last epoch, one block for all, evaluations logged after training). Where a log has no
`epoch_start`, only its blocks say what was trained, and what is odd throughout is a habit: a note.
"""

import math
from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import plain, shown
from ...logging.events import Event
from ..logged_run import SAME_MS, LoggedRun, epoch_of, epochs_of
from ..rule import ERROR, NOTE, POLICY, RULES_TEXT, Violation, rule

EPOCH_KEYS = (
    *("eval_accuracy", "eval_start", "eval_stop"),
    *("block_start", "block_stop", "epoch_start", "epoch_stop"),
)
EPOCH_NAMES = ("epoch_num", "first_epoch_num", "epoch_count")
_WHOLE_SLACK = 0.05  # v0.7 Google logs step counts as epochs


@rule("MLP403", "impossible-epoch", POLICY, f"{RULES_TEXT} line 208: epochs are counted from 1")
def epoch_values(run: LoggedRun) -> Iterator[Violation]:
    """Epoch numbers and counts are possible: not negative, not above 1,000, and whole if most of
    the log's are."""
    found = [
        (event, name, value)
        for key in EPOCH_KEYS
        for event in run.all(key)
        for name in EPOCH_NAMES
        if (value := epoch_of(event, name)) is not None
    ]
    parts = [entry for entry in found if abs(entry[2] - round(entry[2])) > _WHOLE_SLACK]
    absurd = [e for e in found if not 0 <= e[2] <= benchmark.MOST_LOGGED_EPOCHS]
    wrong = absurd or parts
    if not wrong:
        return
    event, name, value = wrong[0]
    text = f"{event.key} (line {event.line}): {name} is {plain(value)}, " + (
        "no epoch of a run" if absurd else "a part of an epoch"
    )
    expected = f"a whole number up to {benchmark.MOST_LOGGED_EPOCHS:,}"
    severity = NOTE if not absurd and 2 * len(parts) >= len(found) else POLICY
    yield Violation(
        text, event.line, expected, plain(value), "log the number of the epoch", severity
    )


@rule(
    *("MLP404", "epochs-out-of-order", POLICY),
    f"{RULES_TEXT} lines 208, 939: one pass of epochs, each evaluated once",
)
def epoch_order(run: LoggedRun) -> Iterator[Violation]:
    """Epochs are started and evaluated in rising order, and none is evaluated again with another
    accuracy. (Copies within a second are the ranks'; records that are out of order by their place
    alone are time-goes-back.)"""
    for key in ("eval_accuracy", "epoch_start"):
        latest: tuple[float, Event] | None = None
        seen: set[float] = set()
        for epoch, event in run.numbered(key):
            new = epoch not in seen
            seen.add(epoch)
            if latest is None or epoch >= latest[0]:
                latest = epoch, event
            elif new and event.time_ms >= latest[1].time_ms:
                back, high = plain(epoch), plain(latest[0])
                yield Violation.at(
                    event,
                    what=f"goes back to epoch {back} after epoch {high} (line {latest[1].line})",
                    expected="epochs in rising order",
                    actual=f"{back} after {high}",
                    advice="one run trains and evaluates its epochs in order",
                )
                return
    yield from _evaluated_again(run)


def _evaluated_again(run: LoggedRun) -> Iterator[Violation]:
    """The first epoch with several accuracies more than a second apart. (A note in a log that gives
    all evaluations one number.)"""
    first: dict[float, Event] = {}
    other: dict[float, Event] = {}
    evaluations = run.numbered("eval_accuracy")
    for epoch, event in evaluations:
        before = first.setdefault(epoch, event)
        if event.value != before.value:
            other.setdefault(epoch, event)
        if epoch in other and abs(event.time_ms - before.time_ms) > SAME_MS:
            values = f"{shown(before.value)} and {shown(other[epoch].value)}"
            yield Violation(
                message=f"epoch {plain(epoch)} is evaluated again up to line {event.line}: "
                f"{values} (lines {before.line} and {other[epoch].line})",
                line=event.line,
                expected="one evaluation of an epoch",
                actual=values,
                advice="the first evaluation of an epoch counts; the next is 4 epochs later",
                severity=NOTE if len({epoch for epoch, _ in evaluations}) == 1 else None,
            )
            return


@rule(
    *("MLP402", "epoch-before-run-start", POLICY),
    f"{RULES_TEXT} lines 487-491: the clock runs while the model trains",
)
def no_training_before_the_clock(run: LoggedRun) -> Iterator[Violation]:
    """No epoch starts before run_start, by its place in the log or, by more than a second or 1 % of
    the run, by its stamp. (A block before run_start is an error, missing-epoch-metadata.)"""
    start = run.start
    if start is None:
        return
    for event in run.all("epoch_start"):
        by_ms = start.time_ms - event.time_ms
        stamped = by_ms > run.slack_ms and event.time_ms > 0
        if event.order < start.order or stamped:
            where = f"is stamped {by_ms / 1000:.3f} s before" if stamped else "stands before"
            yield Violation.at(
                event,
                f"{where} {start.place}",
                "run_start before the first epoch",
                "an epoch before run_start",
                "the clock starts before the first image is touched",
            )
            return


@rule(
    *("MLP401", "target-before-training", ERROR),
    f"{RULES_TEXT} lines 441, 491: a run trains to the target",
)
def target_after_training(run: LoggedRun) -> Iterator[Violation]:
    """The target is reached after training began: a block or an epoch starts before it."""
    target = run.target
    if not run.needs_target or target is None:
        return
    starts = [event for key in ("block_start", "epoch_start") for event in run.all(key)]
    if not starts:
        return
    first = min(starts, key=lambda event: event.order)
    if target.order < first.order:
        text = (
            f"the target is reached (line {target.line}) before any training: the first "
            f"{first.key} is line {first.line}"
        )
        expected = "training, then its evaluation"
        advice = "a model that was trained before run_start is no run"
        yield Violation(text, target.line, expected, "an evaluation at target first", advice)


@rule(
    *("MLP405", "untrained-epoch", POLICY),
    f"{RULES_TEXT} lines 208, 939: an evaluation is of the epochs before it",
)
def claims_were_trained(run: LoggedRun) -> Iterator[Violation]:
    """Every epoch from 1 to that of an evaluation has started and stopped before it, and the epochs
    that a block claims have started when the next block starts. (In a log without `epoch_start` as
    many epochs as an evaluation claims are in blocks begun before it; a note where no evaluation
    has them, and each has a block.)"""
    claims = [one for one in run.evaluations if one.epoch is not None]
    untrained = []
    for one in claims:
        epochs, whole = run.trained[one.order]
        reach = epochs if whole is None else whole
        if (one.epoch or 0.0) > reach + _WHOLE_SLACK:
            untrained.append((one, reach))
    by_blocks = not run.all("epoch_start") and len(run.all("block_start")) >= len(claims)
    for one, reach in untrained[:1]:
        yield Violation(
            message=f"eval_accuracy (line {one.line}) is of epoch {plain(one.epoch or 0.0)}, but "
            f"training has come to epoch {reach} before it",
            line=one.line,
            expected=f"an epoch up to {reach}",
            actual=plain(one.epoch or 0.0),
            advice="log each epoch when it starts and stops, and its evaluation after it",
            severity=NOTE if by_blocks and len(untrained) == len(claims) else None,
        )
    if not untrained:
        yield from _unbegun_blocks(run)


def _unbegun_blocks(run: LoggedRun) -> Iterator[Violation]:
    """The first block of a run to the target that claims an epoch which has not started when the
    next block starts. (Copies of a block, of ranks or for evaluation, are the same block.)"""
    starts = run.numbered("epoch_start")
    if not starts or not run.converged:
        return
    begun = {epoch: event.order for epoch, event in reversed(starts)}
    blocks = dict(reversed(run.numbered("block_start")))
    in_place = sorted(blocks.items(), key=lambda block: block[1].order)
    ends = [*(event.order for _, event in in_place[1:]), math.inf]
    for (first, event), end in zip(in_place, ends, strict=False):
        missing = sorted(e for e in epochs_of(event) if begun.get(e, math.inf) >= end)
        if missing:
            yield Violation.at(
                event,
                what=f"claims {len(epochs_of(event))} epochs from {plain(first)}, but epoch "
                f"{missing[0]} has not started when the next block or the run ends",
                expected=f"epoch_start of epoch {missing[0]}",
                actual="none in the block",
                advice="log the epochs that a block trains",
            )
            return
