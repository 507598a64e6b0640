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
from typing import NamedTuple, Protocol

from ..config import benchmark
from ..config.finding import ERROR, POLICY, number, plain
from ..logging.events import Event
from .logged_run import SAME_MS, Evaluation, LoggedRun, median
from .rule import FOLDER, RULES_TEXT, Violation, rule

_CERTAIN_STAMPS, _CERTAIN_ACCURACIES = 7.0, 5.5
"""Decades. 350 published sets have 3,500 pairs of runs, a pair some 100 places where a stretch may
begin. No pair of those at hand has more than 0.6 in stamps and 2.2 in accuracies."""
_CERTAIN_SET, _CAREFULLY = 4.0, 0.5
"""Of a chain of runs, against half the least spread of seeds, as many terms make much of a small
error in it. The published sets at hand have 0.0."""
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
_NEARLY_WHOLE = 0.8  # share of equal accuracies that makes one run of two
_CHANCE_LEVEL = 0.005  # a diverged run stays at 0.001
_MOST_RUNS = 20
_MOST_EVENTS = 500  # of a key
_MOST_EVALUATIONS = 100
_EPOCHS = ("epoch_start", "epoch_stop", "block_stop", "eval_start", "eval_stop", "eval_accuracy")
_VARIES = 0.01  # share by which an interval that a log has once or twice differs at least


class HasRuns(Protocol):
    """What these rules ask a submission: its runs with the names of their files."""

    @property
    def runs(self) -> list[tuple[str, LoggedRun]]: ...


class _Course(NamedTuple):
    """When each event of a run came, in order: by key and epoch, and by key and place among those
    of the key (epochs may be renumbered, or no numbers); `decades`: what it tells that an interval
    from one key to another is equal in two runs."""

    by_epoch: dict[tuple[str, float], float]
    by_place: dict[tuple[str, float], float]
    decades: dict[tuple[str, str], float]


class _Curve(NamedTuple):
    """Accuracies of a run by epoch and by place; `image`: one image's share."""

    by_epoch: dict[float, float]
    by_place: dict[float, float]
    image: float


@rule("MLP902", "copied-run", ERROR, f"{RULES_TEXT} lines 509, 954: five runs", judges=FOLDER)
def same_stamps(submission: HasRuns) -> Iterator[Violation]:
    """No two logs have equal stamps, or stamps that are equal after a shift: not throughout, nor
    over a stretch that is no coincidence."""
    courses = [(name, _course(run)) for name, run in submission.runs[:_MOST_RUNS]]
    groups: dict[str, list[tuple[str, int]]] = {}
    taken: set[str] = set()
    for (name, one), (other_name, other) in combinations(courses, 2):
        if other_name in taken:
            continue
        decades = {
            kind: min(ten, other.decades.get(kind, 0.0)) for kind, ten in one.decades.items()
        }
        length = max(
            _same_stretch(one.by_epoch, other.by_epoch, decades),
            _same_stretch(one.by_place, other.by_place, decades),
        )
        if length:
            groups.setdefault(name, []).append((other_name, length))
            taken.add(other_name)
    for name, others in groups.items():
        names = ", ".join([name, *(other for other, _ in others)])
        length = min(length for _, length in others)
        text = (
            f"{names} are one run: {length} intervals between their stamps in a row are equal to "
            "the millisecond"
        )
        advice = "every run of a submission is trained anew"
        yield Violation(
            text, None, "runs with times of their own", f"{length} equal intervals", advice, ERROR
        )


def _course(run: LoggedRun) -> _Course:
    events: list[Event] = sorted(
        (e for key in _EPOCHS for e in run.during(key)[:_MOST_EVENTS]),
        key=lambda event: event.order,
    )
    if run.start is not None:
        events.insert(0, run.start)
    if run.stop is not None:
        events.append(run.stop)
    by_epoch: dict[tuple[str, float], float] = {}
    by_place: dict[tuple[str, float], float] = {}
    places: dict[str, int] = {}
    before: dict[str, tuple[object, float]] = {}
    for event in events:
        if event.time_ms <= 0:
            continue
        name = "first_epoch_num" if event.key.startswith("block") else "epoch_num"
        logged = event.metadata.get(name)
        epoch = 0.0 if event.key.startswith("run") else number(logged)
        if epoch is not None:
            by_epoch.setdefault((event.key, epoch), event.time_ms)
        same, at_ms = before.get(event.key, (None, -math.inf))
        if not (same == logged and event.time_ms - at_ms < SAME_MS):  # another rank's copy
            places[event.key] = places.get(event.key, 0) + 1
            by_place[event.key, places[event.key]] = event.time_ms
            before[event.key] = logged, event.time_ms
    by_kind: dict[tuple[str, str], list[float]] = {}
    course = by_epoch if len(by_epoch) >= len(by_place) else by_place
    for (one, one_ms), (other, other_ms) in pairwise(course.items()):
        by_kind.setdefault((one[0], other[0]), []).append(other_ms - one_ms)
    decades = {}
    everywhere_ms = _resolution_ms([ms for intervals in by_kind.values() for ms in intervals])
    for kind, intervals in by_kind.items():
        unit_ms = everywhere_ms
        if sum(map(bool, intervals)) >= _FEWEST_INTERVALS and len(set(intervals)) > 1:
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
    return _Course(by_epoch, by_place, decades)


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


def _same_stretch(
    one: dict[tuple[str, float], float],
    other: dict[tuple[str, float], float],
    decades: dict[tuple[str, str], float],
) -> int:
    """Intervals of the longest stretch that is no coincidence; 0: none."""
    best = length = 0
    weight = 0.0
    common = [key for key in one if key in other]
    for a, b in pairwise(common):
        if abs((one[b] - one[a]) - (other[b] - other[a])) < _EQUAL_MS:
            length += 1
            weight += decades.get((a[0], b[0]), 0.0)
            if weight >= _CERTAIN_STAMPS:
                best = max(best, length)
        else:
            length, weight = 0, 0.0
    return best


@rule(
    *("MLP903", "copied-accuracies", ERROR, f"{RULES_TEXT} lines 166-183, 509, 954"),
    judges=FOLDER,
    keys=("eval_samples",),
)
def same_accuracies(submission: HasRuns) -> Iterator[Violation]:
    """No two logs have the same accuracies at the same epochs or places, weighed by their digits:
    throughout, or in four places of five, an error; in many, or all nearer than seeds give in two
    runs or along the whole set, policy."""
    curves = [(name, _curve(run)) for name, run in submission.runs[:_MOST_RUNS]]
    groups: dict[str, list[tuple[str, int, bool]]] = {}
    taken: set[str] = set()
    for (name, one), (other_name, other) in combinations(curves, 2):
        if other_name in taken:
            continue
        for mine, theirs in ((one.by_epoch, other.by_epoch), (one.by_place, other.by_place)):
            common = _common(mine, theirs)
            image = max(one.image, other.image)
            same = [at for at in common if mine[at] == theirs[at]]
            in_part = sum(_decades(mine[at], mine[at], image) for at in same)
            ways = math.log10(math.comb(len(common), len(same)))
            certain = in_part - ways if len(same) >= 3 else 0.0
            near = [_decades(mine[at], theirs[at], image) for at in common]
            if max(certain, _surprise(near)) >= _CERTAIN_ACCURACIES:
                nearly = len(same) >= max(3, _NEARLY_WHOLE * len(common))
                groups.setdefault(name, []).append((other_name, len(same), nearly))
                taken.add(other_name)
                break
    for name, others in groups.items():
        names = ", ".join([name, *(other for other, _, _ in others)])
        count = min(equal for _, equal, _ in others)
        whole = any(whole for _, _, whole in others)
        text = f"{names} have the same accuracies at {count} evaluations"
        if whole:
            text += ": one run under several names"
        elif count < 3:
            text = f"{names} have accuracies nearer to each other than seeds give"
        yield _same_curve(text, count, ERROR if whole else POLICY)
    alike = [] if groups else _near_set(curves)
    if alike:
        text = f"{', '.join(alike)} have accuracies nearer to each other than seeds give"
        yield _same_curve(text, 0, POLICY)


def _same_curve(text: str, equal: int, severity: str) -> Violation:
    expected = "runs with seeds, and so accuracies, of their own"
    advice = "every run of a submission is trained anew, with a seed of its own"
    return Violation(text, None, expected, f"{equal} equal accuracies", advice, severity)


def _near_set(curves: Sequence[tuple[str, _Curve]]) -> list[str]:
    """Names of the runs, all or all but one, whose accuracies are nearer to each other than seeds
    give: each to the next, which are differences of their own."""
    whole = list(curves)
    if len(whole) < 3:
        return []
    without = [whole[:at] + whole[at + 1 :] for at in range(len(whole))] if len(whole) > 3 else []
    for runs in (whole, *without):
        for by_place in (False, True):
            decades: list[float] = []
            for (_, one), (_, other) in pairwise(runs):
                mine = one.by_place if by_place else one.by_epoch
                others = other.by_place if by_place else other.by_epoch
                common = _common(mine, others)
                decades += [
                    _decades(mine[at], others[at], max(one.image, other.image), _CAREFULLY)
                    for at in common
                ]
            if _surprise(decades) >= _CERTAIN_SET:
                return [name for name, _ in runs]
    return []


def _common(one: dict[float, float], other: dict[float, float]) -> list[float]:
    """Where both have an accuracy; nothing where these are too few to tell."""
    common = sorted(one.keys() & other.keys())[:_MOST_EVALUATIONS]
    return common if len(common) >= 3 else []


def _curve(run: LoggedRun) -> _Curve:
    """The accuracies of one run, without what a diverged run repeats."""
    by_epoch: dict[float, float] = {}
    by_place: dict[float, float] = {}
    before: Evaluation | None = None
    for evaluation in run.timed_evaluations:
        stuck = before is not None and before.accuracy == evaluation.accuracy
        if evaluation.accuracy > _CHANCE_LEVEL and not stuck:
            by_place[len(by_place)] = evaluation.accuracy
            if evaluation.epoch is not None:
                by_epoch.setdefault(evaluation.epoch, evaluation.accuracy)
        before = evaluation
    return _Curve(by_epoch, by_place, 1 / _images(run))


def _images(run: LoggedRun) -> float:
    logged = number(run.value("eval_samples"))
    most = benchmark.IMAGENET_EVAL_SAMPLES
    return most if logged is None else min(most, max(1.0, logged))


def _decades(one: float, other: float, image: float, share: float = 1.0) -> float:
    """How improbable it is that two seeds give accuracies so near to each other: the difference, at
    least half a unit of their digits or half an image, against a share of the spread of seeds."""
    places = min(5, len(plain(one).partition(".")[2]), len(plain(other).partition(".")[2]))
    nearest = 0.5 * max(10.0**-places, image)
    spread = next(spread for least, spread in _SEED_SPREADS if min(one, other) >= least)
    chance = max(nearest, abs(one - other)) / (math.sqrt(math.pi) * spread * share)
    return max(0.0, -math.log10(min(1.0, chance)))


def _surprise(decades: Sequence[float]) -> float:
    """Decades of the whole: each by chance is exponential, so their sum is Erlang's."""
    total = math.log(10) * sum(decades)
    if total <= 0:
        return 0.0
    terms = [k * math.log(total) - math.lgamma(k + 1) for k in range(len(decades))]
    most = max(terms)
    return (total - most - math.log(sum(math.exp(term - most) for term in terms))) / math.log(10)
