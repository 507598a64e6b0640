"""Is one run submitted under several names: equal stamps or equal accuracies in two logs.

Two runs take each stretch of training in times of their own, and another seed gives another
accuracy at every evaluation. What two logs have in common is weighed by how improbable it is: each
equal interval by the spread of such intervals within the log, each equal accuracy by its digits and
the spread of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

from ..config import benchmark
from ..config.finding import ERROR, POLICY, number, plain
from .case import Case, Evaluation
from .events import Event
from .rule import Found

_CERTAIN_STAMPS, _CERTAIN_ACCURACIES = 7.0, 5.5
"""Decades. 350 published sets have 3,500 pairs of runs, a pair some 100 places where a stretch may
begin. No pair of those at hand has more than 0.6 in stamps and 2.2 in accuracies."""
_MOST_DECADES = 2.0
"""No single equal interval proves more."""
_LEAST_DECADES, _MEASURED_MS = 0.3, 100
"""Of an interval that was measured to the millisecond, although such intervals do not differ within
the log."""
_FINEST_MS = 1.0
"""Resolution of stamps that are not coarser. In units of a coarser one (whole seconds) honest
intervals are equal in every second case or throughout."""
_FEWEST_INTERVALS, _ON_THE_GRID = 6, 0.9
"""That tell the resolution of a kind of interval; single stamps may come from elsewhere."""
_EQUAL_MS = 0.05
_SEED_SPREADS = ((0.7, 0.0007), (0.6, 0.002), (0.0, 0.005))
"""From an accuracy on, the least standard deviation over seeds: of the published sets at hand 0.001
at the target, 0.01 to 0.03 below 0.6."""
_CHANCE_LEVEL = 0.005  # a diverged run stays at 0.001
_MOST_RUNS = 20
_MOST_EVENTS = 500  # of a key
_MOST_EVALUATIONS = 100
_EPOCHS = ("epoch_start", "epoch_stop", "block_stop", "eval_start", "eval_stop", "eval_accuracy")
_VARIES = 0.01  # share by which an interval that a log has once or twice differs at least

Named = tuple[str, Case]


class _Course(NamedTuple):
    """When each event of a run came, by key and epoch, in order; `decades`: what it tells that an
    interval from one key to another is equal in two runs."""

    times_ms: dict[tuple[str, float], float]
    decades: dict[tuple[str, str], float]


def same_stamps(cases: Sequence[Named]) -> Iterator[Found]:
    """Pairs of runs whose stamps are equal, also after a shift, throughout or over a part."""
    courses = [(name, _course(case)) for name, case in cases[:_MOST_RUNS]]
    groups: dict[str, list[tuple[str, int]]] = {}
    taken: set[str] = set()
    for (name, one), (other_name, other) in combinations(courses, 2):
        if other_name in taken:
            continue
        length = _same_stretch(one, other)
        if length:
            groups.setdefault(name, []).append((other_name, length))
            taken.add(other_name)
    for name, others in groups.items():
        names = ", ".join([name, *(other for other, _ in others)])
        length = min(length for _, length in others)
        yield Found(
            f"{names} are one run: {length} intervals between their stamps in a row are equal to "
            "the millisecond",
            None,
            "runs with times of their own",
            f"{length} equal intervals",
            "every run of a submission is trained anew",
            ERROR,
        )


def _course(case: Case) -> _Course:
    events: list[Event] = sorted(
        (e for key in _EPOCHS for e in case.during(key)[:_MOST_EVENTS]),
        key=lambda event: event.order,
    )
    times_ms: dict[tuple[str, float], float] = {}
    if case.start is not None and case.start.time_ms > 0:
        times_ms["run_start", 0.0] = case.start.time_ms
    for event in events:
        name = "first_epoch_num" if event.key.startswith("block") else "epoch_num"
        epoch = number(event.metadata.get(name))
        if epoch is not None and event.time_ms > 0:
            times_ms.setdefault((event.key, epoch), event.time_ms)
    if case.stop is not None and case.stop.time_ms > 0:
        times_ms["run_stop", 0.0] = case.stop.time_ms
    by_kind: dict[tuple[str, str], list[float]] = {}
    for (one, one_ms), (other, other_ms) in pairwise(times_ms.items()):
        by_kind.setdefault((one[0], other[0]), []).append(other_ms - one_ms)
    decades = {}
    everywhere_ms = _resolution_ms([ms for intervals in by_kind.values() for ms in intervals])
    for kind, intervals in by_kind.items():
        unit_ms = everywhere_ms
        if sum(map(bool, intervals)) >= _FEWEST_INTERVALS:
            unit_ms = max(unit_ms, _resolution_ms(intervals))
        spread_ms = _VARIES * max(0.0, *intervals)
        if len(intervals) > 2:
            spread_ms = median(abs(b - a) for a, b in pairwise(intervals))
        if unit_ms > _FINEST_MS:  # even steps, rounded down, differ by a unit in the same places
            spread_ms = max(0.0, spread_ms - unit_ms)
        told = math.log10(1 + spread_ms / unit_ms)
        if median(intervals) >= _MEASURED_MS and unit_ms == _FINEST_MS:
            told = max(told, _LEAST_DECADES)
        decades[kind] = min(_MOST_DECADES, told)
    return _Course(times_ms, decades)


def _resolution_ms(intervals_ms: Sequence[float]) -> float:
    """The coarsest unit of which nearly all intervals are multiples, at least a millisecond."""
    whole_us = [abs(round(1000 * ms)) for ms in intervals_ms]
    whole_us = [us for us in whole_us if us]
    for unit_us in sorted({math.gcd(a, b) for a, b in pairwise(whole_us)}, reverse=True):
        if unit_us <= 1000 * _FINEST_MS:
            break
        if sum(us % unit_us == 0 for us in whole_us) >= _ON_THE_GRID * len(whole_us):
            return unit_us / 1000
    return _FINEST_MS


def _same_stretch(one: _Course, other: _Course) -> int:
    """Intervals of the longest stretch that is no coincidence; 0: none."""
    best = length = 0
    weight = 0.0
    common = [key for key in one.times_ms if key in other.times_ms]
    for a, b in pairwise(common):
        by_one = one.times_ms[b] - one.times_ms[a]
        by_other = other.times_ms[b] - other.times_ms[a]
        if abs(by_one - by_other) < _EQUAL_MS:
            kind = (a[0], b[0])
            length += 1
            weight += min(one.decades.get(kind, 0.0), other.decades.get(kind, 0.0))
            if weight >= _CERTAIN_STAMPS:
                best = max(best, length)
        else:
            length, weight = 0, 0.0
    return best


def same_accuracies(cases: Sequence[Named]) -> Iterator[Found]:
    """Pairs of runs whose accuracies are equal at the same epochs, throughout or in many places."""
    curves = [(name, case, _curve(case)) for name, case in cases[:_MOST_RUNS]]
    groups: dict[str, list[tuple[str, int, bool]]] = {}
    taken: set[str] = set()
    for (name, case, one), (other_name, other_case, other) in combinations(curves, 2):
        common = sorted(one.keys() & other.keys())[:_MOST_EVALUATIONS]
        if other_name in taken or len(common) < 3:
            continue
        image = 1 / min(_images(case), _images(other_case))
        decades = [_decades(one[epoch], other[epoch], image) for epoch in common]
        equal = sum(one[epoch] == other[epoch] for epoch in common)
        in_part = sum(
            _decades(one[epoch], one[epoch], image)
            for epoch in common
            if one[epoch] == other[epoch]
        )
        ways = math.log10(math.comb(len(common), equal))
        certain = in_part - ways if equal >= 3 else 0.0
        if max(certain, _surprise(decades)) < _CERTAIN_ACCURACIES:
            continue
        replay = case.value("seed") is not None and case.value("seed") == other_case.value("seed")
        whole = equal == len(common) and not replay
        groups.setdefault(name, []).append((other_name, equal, whole))
        taken.add(other_name)
    for name, others in groups.items():
        names = ", ".join([name, *(other for other, _, _ in others)])
        count = min(equal for _, equal, _ in others)
        whole = any(whole for _, _, whole in others)
        text = f"{names} have the same accuracies at {count} evaluations"
        if whole:
            text += ": one run under several names"
        elif count < 3:
            text = f"{names} have accuracies nearer to each other than seeds give"
        yield Found(
            text,
            None,
            "runs with seeds, and so accuracies, of their own",
            f"{count} equal accuracies",
            "every run of a submission is trained anew, with a seed of its own",
            ERROR if whole else POLICY,
        )


def _curve(case: Case) -> dict[float, float]:
    """Accuracy by epoch of one run, without what a diverged run repeats."""
    found: dict[float, float] = {}
    before: Evaluation | None = None
    for evaluation in case.on_the_clock:
        stuck = before is not None and before.accuracy == evaluation.accuracy
        if evaluation.epoch is not None and evaluation.accuracy > _CHANCE_LEVEL and not stuck:
            found.setdefault(evaluation.epoch, evaluation.accuracy)
        before = evaluation
    return found


def _images(case: Case) -> float:
    logged = number(case.value("eval_samples"))
    most = benchmark.IMAGENET_EVAL_SAMPLES
    return most if logged is None else min(most, max(1.0, logged))


def _decades(one: float, other: float, image: float) -> float:
    """How improbable it is that two seeds give accuracies so near to each other: the difference, at
    least half a unit of their digits or half an image, against the spread of seeds."""
    places = min(5, len(plain(one).partition(".")[2]), len(plain(other).partition(".")[2]))
    nearest = 0.5 * max(10.0**-places, image)
    spread = next(spread for least, spread in _SEED_SPREADS if min(one, other) >= least)
    chance = max(nearest, abs(one - other)) / (math.sqrt(math.pi) * spread)
    return max(0.0, -math.log10(min(1.0, chance)))


def _surprise(decades: Sequence[float]) -> float:
    """Decades of the whole: each by chance is exponential, so their sum is Erlang's."""
    total = math.log(10) * sum(decades)
    terms = [total**k / math.factorial(k) for k in range(len(decades))]
    return (total - math.log(sum(terms))) / math.log(10)


def all_chips(system: dict[str, object]) -> int | None:
    """Accelerators (of nodes without, nodes) of a system description; None: no counts."""
    counts = [str(system.get(key)) for key in ("number_of_nodes", "accelerators_per_node")]
    if not all(count.isascii() and count.isdigit() and len(count) < 10 for count in counts):
        return None
    return int(counts[0]) * max(1, int(counts[1]))
