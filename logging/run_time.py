"""What the clock of a run was spent on, from the records of its log: epochs, saves, evaluations
and, of a resumed run, interruptions; what is left are gaps. Every rate and every time of training
follows from here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from ..host.finding import first_number, number
from .events import Event

SAVE_START = "checkpoint_start"
SAVE_STOP = "checkpoint_stop"
"""Our keys for a checkpoint: training is done up to it, and may go on."""
RESUMED = "run_resumed"
"""Our key for the place where a run was resumed from a checkpoint."""
TIME_KEYS = frozenset({SAVE_START, SAVE_STOP, RESUMED})
"""What the times of a run need beside the keys of every log."""


class Interval(NamedTuple):
    """A start and its stop in seconds from run_start, over `epochs` epochs."""

    start_s: float
    stop_s: float
    epochs: float = 1.0

    @property
    def duration_s(self) -> float:
        """The time from the start to the stop."""
        return self.stop_s - self.start_s


class Shares(NamedTuple):
    """Seconds of a run's clock; they add up to it. What lies in two of them, such as a save within
    an epoch, belongs to the later one here."""

    epochs_s: float
    evaluations_s: float
    saves_s: float
    interruptions_s: float
    gaps_s: float


class RunTime(NamedTuple):
    """The intervals of a run, from its first run_start."""

    epochs: tuple[Interval, ...] = ()
    """Training, by epochs where they are logged, else by blocks."""
    blocks: tuple[Interval, ...] = ()
    evaluations: tuple[Interval, ...] = ()
    saves: tuple[Interval, ...] = ()
    interruptions: tuple[Interval, ...] = ()
    """From the checkpoint that a run was resumed from to its resumption: nothing that was trained
    then has been kept."""
    unfinished: tuple[Interval, ...] = ()
    """The epoch within which the log ends: it has no end."""

    @property
    def training_s(self) -> float:
        """All the time that training took: epochs, and the saves between them."""
        done_s = max((part.stop_s for part in self.epochs), default=0.0)
        interrupted_s = covered_s(self.interruptions, stop_s=done_s)
        parts = (*self.epochs, *self.saves, *self.interruptions)
        return covered_s(parts, stop_s=done_s) - interrupted_s

    @property
    def epoch_s(self) -> float | None:
        """Median time of an epoch, without interruptions."""
        epochs_s = [self.without(part, self.interruptions) for part in self.epochs]
        return median(epochs_s) if epochs_s else None

    def images_per_s(self, samples: float | None) -> float | None:
        """The rate of training. `samples`: images of an epoch."""
        epochs = sum(part.epochs for part in self.epochs)
        # stamps are milliseconds: less is no time but rounding
        if not samples or not epochs or self.training_s < 1e-6:
            return None
        return samples * epochs / self.training_s

    def shares(self, run_s: float) -> Shares:
        """The parts of a clock of `run_s`."""
        epochs = (*self.epochs, *self.unfinished)
        parts = (self.interruptions, self.saves, self.evaluations, epochs)
        counted: list[Interval] = []
        covered = [0.0]
        for intervals in parts:
            counted += intervals
            covered.append(covered_s(counted, 0.0, run_s))
        shares_s = [next_sum_s - sum_s for sum_s, next_sum_s in pairwise(covered)]
        return Shares(*reversed(shares_s), run_s - covered[-1])  # type: ignore[call-arg]

    @staticmethod
    def without(part: Interval, excluded: Iterable[Interval]) -> float:
        """Seconds an epoch of an interval, without what lies in it of some others."""
        cut_s = covered_s(excluded, part.start_s, part.stop_s)
        return (part.duration_s - cut_s) / part.epochs


def covered_s(
    intervals: Iterable[Interval], start_s: float = -math.inf, stop_s: float = math.inf
) -> float:
    """The time from a start to a stop that lies in at least one of some intervals."""
    covered = 0.0
    # by their starts, so that what one has covered is not counted again for the next
    for part in sorted(intervals):
        start_s = max(part.start_s, start_s)
        end_s = min(part.stop_s, stop_s)
        if end_s > start_s:
            covered += end_s - start_s
            start_s = end_s
    return covered


def run_time(events: Sequence[Event]) -> RunTime:
    """The times of the first run of a log, whatever its records hold."""
    start = next((event for event in events if event.key == "run_start"), None)
    if not start or start.time_ms <= 0:
        return RunTime()
    clock_ms = start.time_ms
    timed = [event for event in events if event.time_ms > 0]
    epochs = _intervals(timed, clock_ms, "epoch_start", "epoch_stop")
    blocks = _intervals(timed, clock_ms, "block_start", "block_stop")
    saves, interruptions = _saves(timed, clock_ms)
    begun_s = [_since(clock_ms, e) for e in timed if e.key == "epoch_start"]
    done_s = max((part.stop_s for part in epochs), default=0.0)
    return RunTime(
        unfinished=tuple(Interval(s, math.inf) for s in begun_s[-1:] if s >= done_s),
        epochs=epochs or blocks,
        blocks=blocks,
        evaluations=_intervals(
            timed, clock_ms, "eval_start", "eval_stop", "eval_accuracy"
        ),
        saves=saves,
        interruptions=interruptions,
    )


def _intervals(
    events: Iterable[Event], clock_ms: float, start: str, *stops: str
) -> tuple[Interval, ...]:
    """Each start with the stop that follows it; copies by other ranks are left out."""
    intervals = []
    seen: set[float | None] = set()
    closed: set[float | None] = set()
    opened = None
    for event in events:
        epoch = epoch_of(event)
        if event.key == start and (epoch is None or epoch not in seen):
            opened = event
            seen.add(epoch)
        if event.key not in stops or not opened or event.time_ms <= opened.time_ms:
            continue
        if epoch in closed:
            continue  # a slower rank's copy
        if epoch is not None:
            closed.add(epoch)
        # a block names its epochs; an epoch or an evaluation is one
        epochs = number(opened.metadata.get("epoch_count")) or 0.0
        if epochs <= 0:
            epochs = 1.0
        intervals.append(_interval(opened, event, clock_ms, epochs))
        opened = None
    return tuple(intervals)


def _saves(
    events: Iterable[Event], clock_ms: float
) -> tuple[tuple[Interval, ...], tuple[Interval, ...]]:
    """Saves and interruptions: the log of a resumed run has been cut within the save of the
    checkpoint that it was resumed from."""
    saves: list[Interval] = []
    interruptions: list[Interval] = []
    opened = None
    for event in events:
        if event.key == SAVE_START:
            opened = event
        elif opened and event.key in (SAVE_STOP, RESUMED):
            parts = saves if event.key == SAVE_STOP else interruptions
            parts.append(_interval(opened, event, clock_ms))
            opened = None
    return tuple(saves), tuple(interruptions)


def _interval(
    start: Event, stop: Event, clock_ms: float, epochs: float = 1.0
) -> Interval:
    return Interval(_since(clock_ms, start), _since(clock_ms, stop), epochs)


def _since(clock_ms: float, event: Event) -> float:
    return (event.time_ms - clock_ms) / 1000


def epoch_of(event: Event) -> float | None:
    """The epoch of a record, which some published logs give as its value."""
    metadata = event.metadata
    return first_number(
        metadata.get("epoch_num"), metadata.get("first_epoch_num"), event.value
    )
