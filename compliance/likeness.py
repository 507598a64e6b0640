"""Whether two logs are of one run: what copies share whatever was edited, and honest runs do not.

Measured on the 1,770 published logs (v0.6 to v4.0), on all 193,715 pairs of one round: 21 pairs
share every accuracy (20 are of systems that were submitted with and without their power). Of all
others no two share three accuracies, no two have more than 4 of 9 within ten images of one another,
and no two have more than 4 of 9 stamps that are equal after a shift.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

from ..config.benchmark import IMAGENET_EVAL_SAMPLES
from .check_log import Check
from .logged_run import LoggedRun

_LOWEST = 0.05
"""Runs that learn nothing share the accuracies of chance."""
_FEWEST = 3
_EXACT = 1e-9
_NEAR = 10 / IMAGENET_EVAL_SAMPLES
"""What rounding to four decimals or noise in the last digits leaves near."""
_FEWEST_NEAR = 5
_LEAST_NEAR = 3 / 4
_LEAST_STAMPS = 2 / 3
_FEWEST_SCALED = 6
_LEAST_SCALED = 0.9
_SAME_MS = 1.0
COARSE_MS = 10
"""If all stamps are multiples of so much or more, equal intervals prove nothing: published runs
with stamps in units of 50 ms have equal ones (v1.0 Shampoo). With 20 ms none had."""
_MOST_STAMPS = 60
_MOST_CLOCKED = 20
"""The clocks of so many runs are all compared; of more, those with two equal intervals."""


class Trace(NamedTuple):
    """What is compared of a run: 2 KB, where its log has megabytes."""

    path: Path
    accuracies: frozenset[float]
    stamps_ms: tuple[float, ...]
    """Stamps of the evaluations, in their order; none where they are coarse."""
    is_imagenet: bool
    """Whether they are fractions of its 50,000 images: of 400 many are equal by chance."""


class Alike(NamedTuple):
    """Two logs of one run, and what they share."""

    first: Path
    second: Path
    by_clock: bool
    what: str
    is_same: bool
    """Whether nothing of accuracies and stamps was edited."""
    severity: str = ""
    """The severity of the finding, where it is not the rule's."""


def traces_of(checks: Iterable[Check]) -> list[Trace]:
    """What is compared of the logs that can be read."""
    return [_trace(check.path, check.run) for check in checks if check.run]


def _trace(path: Path, run: LoggedRun) -> Trace:
    evaluations = run.timed_evaluations
    stamps_ms = (evaluation.time_ms for evaluation in evaluations)
    stamped_ms = dict.fromkeys(stamp for stamp in stamps_ms if stamp > 0)
    accuracies = (evaluation.accuracy for evaluation in evaluations)
    return Trace(
        path,
        accuracies=frozenset(share for share in accuracies if share >= _LOWEST),
        stamps_ms=tuple(stamped_ms)[:_MOST_STAMPS] if run.coarse_ms < COARSE_MS else (),
        is_imagenet=run.value("eval_samples") in (None, IMAGENET_EVAL_SAMPLES),
    )


def find_alike(traces: Sequence[Trace]) -> Iterator[Alike]:
    """All pairs of logs that are of one run, each once."""
    equal = _shared(traces, _EXACT)
    near = _shared(traces, _NEAR)
    clocked = _with_equal_intervals(traces)
    if len(traces) <= _MOST_CLOCKED:
        clocked |= {*combinations(range(len(traces)), 2)}
    for pair in sorted(clocked.union(near)):
        first, second = (traces[number] for number in pair)
        by_clock = pair in clocked and _of_one_clock(first.stamps_ms, second.stamps_ms)
        is_same = first[1:] == second[1:]
        if by_clock and is_same:
            what = "all their accuracies and stamps are the same"
        elif by_clock:
            what = "their evaluations are equally far apart"
        elif count := _copied(first, second, equal[pair], near[pair]):
            total = min(len(first.accuracies), len(second.accuracies))
            what = f"{count} of {total} accuracies are the same"
        else:
            continue
        yield Alike(first.path, second.path, by_clock, what, is_same)


def _copied(first: Trace, second: Trace, equal: int, near: int) -> int:
    """How many accuracies of one run the other has, of those `equal` or `near`; 0: chance."""
    fewer = min(len(first.accuracies), len(second.accuracies))
    if not first.is_imagenet and not second.is_imagenet:
        # five of six: counts of few images are equal by chance
        return equal if equal >= max(_FEWEST, fewer - fewer // 6) else 0
    if equal >= max(_FEWEST, fewer / 3):
        return equal
    return near if near >= max(_FEWEST_NEAR, fewer * _LEAST_NEAR) else 0


def _shared(traces: Sequence[Trace], within: float) -> Counter[tuple[int, int]]:
    """For each pair of runs, how many accuracies of the one lie within so much of one of the
    other's: of the run that has fewer such."""
    values = sorted(
        (accuracy, number)
        for number, trace in enumerate(traces)
        for accuracy in trace.accuracies
    )
    matches: dict[tuple[int, int], tuple[set[float], set[float]]] = {}
    begin = 0
    for index, (accuracy, number) in enumerate(values):
        # values[begin:index] are the accuracies that lie near enough, of any run
        while accuracy - values[begin][0] > within:
            begin += 1
        for lower, other_number in values[begin:index]:
            if other_number != number:
                pair = (min(number, other_number), max(number, other_number))
                mine, theirs = (
                    (accuracy, lower) if number < other_number else (lower, accuracy)
                )
                # sets: one accuracy that lies near three of the other run's counts once
                both = matches.setdefault(pair, (set(), set()))
                both[0].add(mine)
                both[1].add(theirs)
    return Counter({pair: min(map(len, both)) for pair, both in matches.items()})


def _with_equal_intervals(traces: Sequence[Trace]) -> set[tuple[int, int]]:
    """The pairs of runs with two equal intervals between evaluations."""
    runs_of = defaultdict(list)
    for number, trace in enumerate(traces):
        intervals = {round(stop - start) for start, stop in pairwise(trace.stamps_ms)}
        for interval in intervals:
            runs_of[interval].append(number)
    counts = Counter(
        pair for runs in runs_of.values() for pair in combinations(runs, 2)
    )
    return {pair for pair, count in counts.items() if count >= 2}


def _of_one_clock(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether most stamps of two runs are equal after a shift, or, of the evaluations that both
    have, after a shift and a scaling."""
    count = min(len(first), len(second))
    if count < _FEWEST:
        return False
    if _aligned(first, second) >= max(_FEWEST, count * _LEAST_STAMPS):
        return True
    if count < _FEWEST_SCALED:
        return False
    # of one clock beside the other: from the first to the last evaluation that both have
    scale = (second[count - 1] - second[0]) / ((first[count - 1] - first[0]) or 1)
    if not 0.5 < scale < 2:
        return False
    scaled = [stamp * scale for stamp in first[:count]]
    return _aligned(scaled, second[:count]) >= count * _LEAST_SCALED


def _aligned(first: Iterable[float], second: Iterable[float]) -> int:
    """How many stamps are equal after the best shift, to a millisecond."""
    # equal stamps after a shift are pairs with one difference: the most that lie together
    shifts = sorted(mine - theirs for mine in first for theirs in second)
    best_count = begin = 0
    for index, shift in enumerate(shifts):
        # the shifts from begin to index differ by a millisecond at most
        while shift - shifts[begin] > _SAME_MS:
            begin += 1
        best_count = max(best_count, index - begin + 1)
    return best_count
