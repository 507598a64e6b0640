"""Rules on what two runs of a set have in common: they are one, or share what no two runs do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Protocol

from ..config.finding import ERROR, POLICY, plain
from .logged_run import LoggedRun
from .rule import FOLDER, RULES_TEXT, Violation, rule

_MOST_RUNS = 20
_FEWEST = 3
"""Equal stamps, accuracies or runs that are no chance."""
_COARSE_MS = 10
"""Stamps that are all multiples of so much or more tell no two runs apart: in units of 50 ms
evaluations of honest runs at hand are equally far apart (v1.0 Shampoo), in 20 ms those of none."""
_ANEW = "every run of a submission is trained anew, with a seed of its own"


class HasRuns(Protocol):
    """What these rules ask a submission: its runs with the names of their files."""

    @property
    def runs(self) -> list[tuple[str, LoggedRun]]: ...


def _together(
    submission: HasRuns, same: Callable[[LoggedRun, LoggedRun], bool], what: str, expected: str
) -> Iterator[Violation]:
    """A violation for each group of runs of which something is the same."""
    groups: list[list[str]] = []
    for (name, one), (other, two) in combinations(submission.runs[:_MOST_RUNS], 2):
        if same(one, two):
            group = next((group for group in groups if name in group or other in group), [])
            if not group:
                groups.append(group)
            group += [each for each in (name, other) if each not in group]
    for group in groups:
        text = f"{', '.join(group)} {what}"
        yield Violation(message=text, expected=expected, actual=what, advice=_ANEW)


@rule("MLP902", "copied-run", ERROR, f"{RULES_TEXT} lines 509, 954: five runs", judges=FOLDER)
def same_stamps(submission: HasRuns) -> Iterator[Violation]:
    """No two logs have the same stamps, nor stamps that are the same after a shift: three or more
    evaluations, not all stamped in a unit of 10 ms or more."""

    def same(one: LoggedRun, other: LoggedRun) -> bool:
        mine, others = _intervals_ms(one), _intervals_ms(other)
        return len(mine) >= _FEWEST and mine == others

    what = "are one run: their evaluations are the same milliseconds apart"
    yield from _together(submission, same, what, "runs with times of their own")


def _intervals_ms(run: LoggedRun) -> list[int]:
    """When each evaluation came after the first; nothing where stamps are coarse."""
    stamps = [one.time_ms for one in run.timed_evaluations if one.time_ms > 0]
    return [] if run.coarse_ms >= _COARSE_MS else [round(stamp - stamps[0]) for stamp in stamps]


@rule(
    *("MLP903", "copied-accuracies", ERROR, f"{RULES_TEXT} lines 166-183, 509, 954"),
    judges=FOLDER,
)
def same_accuracies(submission: HasRuns) -> Iterator[Violation]:
    """No two logs have the same accuracies at all evaluations that both have, three or more."""

    def same(one: LoggedRun, other: LoggedRun) -> bool:
        mine, others = ([e.accuracy for e in run.timed_evaluations] for run in (one, other))
        length = min(len(mine), len(others))
        return len(set(mine[:length])) >= _FEWEST and mine[:length] == others[:length]

    what = "are one run under several names: all their accuracies are the same"
    yield from _together(submission, same, what, "runs with accuracies of their own")


@rule("MLP911", "shared-moments", POLICY, f"{RULES_TEXT} lines 220, 509, 954", judges=FOLDER)
def own_moments(submission: HasRuns) -> Iterator[Violation]:
    """No two runs take equally long to the millisecond; runs after one another do not share the
    stamp of one cache_clear; three or more runs do not all end with one accuracy."""

    def as_long(one: LoggedRun, other: LoggedRun) -> bool:
        coarse = max(one.coarse_ms, other.coarse_ms) >= _COARSE_MS
        lengths = [round(run.run_ms or 0) for run in (one, other)]
        return lengths[0] > 0 and lengths[0] == lengths[1] and not coarse

    def one_clearing(one: LoggedRun, other: LoggedRun) -> bool:
        clears = ({e.time_ms for e in run.all("cache_clear") if e.time_ms} for run in (one, other))
        return bool(set.intersection(*clears)) and not _overlap(one, other)

    what = "take equally long, to the millisecond"
    yield from _together(submission, as_long, what, "runs with times of their own")
    what = "have the stamp of one cache_clear, and do not overlap"
    yield from _together(submission, one_clearing, what, "caches cleared before every run")
    ends = [run.target.accuracy for _, run in submission.runs if run.target is not None]
    if len(ends) >= _FEWEST and len(set(ends)) == 1:
        yield Violation(
            message=f"all {len(ends)} runs end with accuracy {plain(ends[0])}",
            expected="accuracies of their own",
            actual=plain(ends[0]),
            advice=_ANEW,
        )


def _overlap(one: LoggedRun, other: LoggedRun) -> bool:
    """Do two runs train at one time? Not known where one has no clock: then yes."""
    if one.start is None or one.stop is None or other.start is None or other.stop is None:
        return True
    begin_ms = max(one.start.time_ms, other.start.time_ms)
    return begin_ms < min(one.stop.time_ms, other.stop.time_ms)
