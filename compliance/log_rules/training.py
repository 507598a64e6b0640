"""Rules on the course of training: do epochs, blocks, evaluations and their stamps fit together.

Published implementations number and group epochs in many ways (blocks named by their last epoch,
one block for all, evaluations logged after training). So a log is held against itself: what is odd
throughout is its implementation's habit, a note; what is odd in the minority of places contradicts
the rest of the log, a policy finding; what leaves no valid result is an error.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...config import benchmark
from ...config.finding import plain, shown
from ...logging.events import Event
from ..logged_run import SAME_MS, LoggedRun, epoch_of
from ..rule import ERROR, NOTE, POLICY, RULES_TEXT, Violation, rule

EPOCH_KEYS = (
    *("eval_accuracy", "eval_start", "eval_stop"),
    *("block_start", "block_stop", "epoch_start", "epoch_stop"),
)
EPOCH_NAMES = ("epoch_num", "first_epoch_num", "epoch_count")
_WHOLE_SLACK = 0.05  # v0.7 Google logs step counts as epochs
_FIRST_BLOCK_SLACK = 4  # a first block that is cut short by the offset, counted in full


def severity_of(odd: int, of: int) -> str:
    """A contradiction where fewer than half are odd; else the log's habit."""
    return POLICY if 2 * odd < of else NOTE


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
    severity = POLICY if absurd else severity_of(len(parts), len(found))
    yield Violation(
        text, event.line, expected, plain(value), "log the number of the epoch", severity
    )


@rule(
    *("MLP404", "epochs-out-of-order", POLICY),
    f"{RULES_TEXT} lines 208, 939: one pass of epochs, each evaluated once",
)
def epoch_order(run: LoggedRun) -> Iterator[Violation]:
    """Epochs are started and evaluated in rising order, and none is evaluated again with another
    accuracy. (Copies within a second are the ranks'; the same epoch again otherwise is a note, as
    are blocks that all start again.)"""
    notes, blocks_again = [], []
    for key in ("eval_accuracy", "eval_start", "epoch_start", "block_start"):
        latest: tuple[float, Event] | None = None
        seen: dict[float, Event] = {}
        others: dict[float, Event] = {}
        for epoch, event in run.numbered(key):
            before = seen.get(epoch)
            falls = latest is not None and epoch < latest[0]
            if before is not None:
                if abs(event.time_ms - before.time_ms) <= SAME_MS:
                    if event.value != before.value:
                        others.setdefault(epoch, event)
                    continue
                other = before if event.value != before.value else others.get(epoch)
                if key == "eval_accuracy" and other is not None:
                    one_number = len({epoch_of(e) for e in run.during(key)}) == 1
                    yield _again(event, other, epoch, NOTE if one_number else None)
                    return
                if event.time_ms <= before.time_ms:
                    pass
                elif key != "block_start":
                    notes.append((event, before, epoch))
                elif falls:
                    blocks_again.append((event, before, epoch))
            elif latest is not None and falls:
                if event.time_ms >= latest[1].time_ms:
                    back, high = plain(epoch), plain(latest[0])
                    yield Violation.at(
                        event,
                        f"goes back to epoch {back} after epoch {high} (line {latest[1].line})",
                        "epochs in rising order",
                        f"{back} after {high}",
                        "one run trains and evaluates its epochs in order",
                    )
                    return
                continue  # lines out of order, stamps in order: time-goes-back says it
            seen.setdefault(epoch, event)
            latest = (epoch, event) if latest is None or epoch > latest[0] else latest
    # Graphcore's evaluation after training starts every block again: half of all.
    severity = severity_of(len(blocks_again), len(run.during("block_start")))
    if severity == NOTE:
        blocks_again = []
    for event, before, epoch in (blocks_again or notes)[:1]:
        what = f"has epoch {plain(epoch)} again (line {before.line})"
        bad = severity if blocks_again else NOTE
        yield Violation.at(event, what, "each epoch once", "again", severity=bad)


def _again(event: Event, before: Event, epoch: float, severity: str | None) -> Violation:
    text = (
        f"epoch {plain(epoch)} is evaluated again: {shown(before.value)} (line {before.line}), "
        f"then {shown(event.value)} (line {event.line})"
    )
    actual = f"{shown(before.value)} and {shown(event.value)}"
    advice = "the first evaluation of an epoch counts; the next one comes 4 epochs later"
    return Violation(text, event.line, "one evaluation of an epoch", actual, advice, severity)


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


def _untrained(run: LoggedRun) -> tuple[list[tuple[Event, float, float]], int]:
    """(evaluation, its epoch, highest epoch in training so far) of those ahead of training; of."""
    events = sorted(
        (e for key in ("block_start", "epoch_start", "eval_accuracy") for e in run.during(key)),
        key=lambda event: event.order,
    )
    reach: float | None = None
    ahead, of = [], 0
    for event in events:
        if event.key == "eval_accuracy":
            epoch = epoch_of(event)
            if epoch is None:
                continue
            of += 1
            if epoch > 0 and reach is None:
                ahead.append((event, epoch, 0.0))
            elif reach is not None and epoch > reach + 1:  # + 1: epochs counted from 0
                ahead.append((event, epoch, reach))
        else:
            begun = epoch_of(event) if event.key == "epoch_start" else _last_of_block(event)
            if begun is not None:
                reach = max(reach or 0.0, begun)
    begun = len(run.during("block_start")) + len(run.during("epoch_start"))
    # Where nothing that begins has an epoch, one block may stand for all, but not for none.
    return (ahead, of) if reach is not None or 0 < 2 * begun < of else ([], of)


def _last_of_block(event: Event) -> float | None:
    first, count = epoch_of(event, "first_epoch_num"), epoch_of(event, "epoch_count")
    return None if first is None or count is None else first + count - 1


@rule(
    *("MLP405", "evaluated-untrained-epoch", POLICY),
    f"{RULES_TEXT} line 939: an evaluation is of the epochs before it",
)
def evaluated_epochs_trained(run: LoggedRun) -> Iterator[Violation]:
    """An evaluation is of an epoch that blocks or epochs before it have trained. (Where that is so
    throughout and training is hardly logged, it is policy too.)"""
    ahead, of = _untrained(run)
    if not ahead:
        return
    begun = len(run.during("block_start")) + len(run.during("epoch_start"))
    event, epoch, reach = ahead[0]
    yield Violation.at(
        event,
        f"is of epoch {plain(epoch)}, but training has come to epoch {plain(reach)} before it",
        f"an epoch up to {plain(reach)}",
        plain(epoch),
        "log each evaluation after the epochs it evaluates",
        POLICY if 2 * begun < of else severity_of(len(ahead), of),
    )


class _Block(NamedTuple):
    event: Event
    first: float
    epochs: float

    @property
    def end(self) -> float:
        return self.first + self.epochs


def _blocks(run: LoggedRun) -> list[_Block]:
    """Blocks with their numbers; copies and repeated ones (of one first epoch) once."""
    found: dict[float, _Block] = {}
    for first, event in run.numbered("block_start"):
        count = epoch_of(event, "epoch_count")
        if count is not None:
            found.setdefault(first, _Block(event, first, count))
    return list(found.values())


@rule(
    *("MLP406", "inconsistent-blocks", POLICY),
    f"{RULES_TEXT} line 208: blocks of epochs; the log against itself",
)
def blocks_fit(run: LoggedRun) -> Iterator[Violation]:
    """Each block begins where the one before it ends, holds the epochs that are evaluated in it,
    and has epochs where the others log theirs."""
    blocks = _blocks(run)
    found = [*_gaps(run, blocks), *_evaluated_elsewhere(run, blocks), *_empty(run, blocks)]
    policy = [one for one in found if one.severity == POLICY]
    yield from (policy or found)[:1]


def _without_start(run: LoggedRun, blocks: Sequence[_Block]) -> set[float]:
    """First epochs of blocks whose start alone is missing: unpaired-events says it."""
    stops = {first for first, _ in run.numbered("block_stop")}
    return stops - {block.first for block in blocks}


def _gaps(run: LoggedRun, blocks: Sequence[_Block]) -> Iterator[Violation]:
    lost = _without_start(run, blocks)
    pairs = [
        (one, other)
        for one, other in pairwise(blocks)
        if other.first > one.first and one.end not in lost
    ]
    odd = [
        (one, other)
        for number_, (one, other) in enumerate(pairs)
        if abs(one.end - other.first) > _WHOLE_SLACK
        and not (number_ == 0 and 0 < one.end - other.first < _FIRST_BLOCK_SLACK)
    ]
    if odd:
        one, other = odd[0]
        yield Violation.at(
            one.event,
            f"has {plain(one.epochs)} epochs from {plain(one.first)}, the next block "
            f"(line {other.event.line}) begins at epoch {plain(other.first)}",
            f"a block that begins at epoch {plain(one.end)}",
            plain(other.first),
            "log the epochs that a block trains",
            severity_of(len(odd), len(pairs)),
        )


def _evaluated_elsewhere(run: LoggedRun, blocks: Sequence[_Block]) -> Iterator[Violation]:
    if not blocks:
        return
    at, of = -1, 0
    lost = sorted(_without_start(run, blocks))
    odd: list[tuple[Event, float, _Block]] = []
    for epoch, event in run.numbered("eval_accuracy"):
        while at + 1 < len(blocks) and blocks[at + 1].event.order < event.order:
            at += 1
        if at < 0:
            continue
        block = blocks[at]
        of += 1
        if bisect_left(lost, block.end) < bisect_right(lost, epoch):
            continue
        if epoch > 0 and not block.first - 1 <= epoch <= block.end:
            odd.append((event, epoch, block))
    if odd:
        event, epoch, block = odd[0]
        yield Violation.at(
            event,
            f"is of epoch {plain(epoch)}, in a block of {plain(block.epochs)} epochs from "
            f"{plain(block.first)} (line {block.event.line})",
            f"an epoch from {plain(block.first)} to {plain(block.end - 1)}",
            plain(epoch),
            "log the epochs that a block trains",
            severity_of(len(odd), of),
        )


def _empty(run: LoggedRun, blocks: Sequence[_Block]) -> Iterator[Violation]:
    logged = (*run.numbered("epoch_start"), *run.numbered("epoch_stop"))
    epochs = sorted({epoch for epoch, _ in logged})
    if not epochs:
        return
    odd = [b for b in blocks if bisect_left(epochs, b.first - 1) >= bisect_left(epochs, b.end)]
    if odd:
        block = odd[0]
        text = (
            f"block_start (line {block.event.line}): none of its {plain(block.epochs)} epochs from "
            f"{plain(block.first)} is logged as trained"
        )
        expected = "epoch_start records of the block"
        severity = severity_of(len(odd), len(blocks))
        yield Violation(text, block.event.line, expected, "none", "", severity)


@rule("MLP407", "stop-before-start", POLICY, "an interval cannot end before it begins")
def starts_before_stops(run: LoggedRun) -> Iterator[Violation]:
    """No epoch, block or evaluation stops before it starts."""
    for kind in ("eval", "epoch", "block"):
        first: dict[float, Event] = {}
        for epoch, event in run.numbered(f"{kind}_start"):
            first.setdefault(epoch, event)
        odd = [
            (epoch, stop)
            for epoch, stop in run.numbered(f"{kind}_stop")
            if epoch in first and stop.order < first[epoch].order
        ]
        if odd:
            epoch, stop = odd[0]
            what = f"of epoch {plain(epoch)} stands before its {first[epoch].place}"
            severity = severity_of(len(odd), len(run.during(f"{kind}_stop")))
            first_of = f"{kind}_start first", f"{kind}_stop first"
            yield Violation.at(stop, what, *first_of, severity=severity)
