"""Reference convergence points (RCP): how many epochs a batch should take, and the test on it.

Source: mlcommons/logging 4.1.68, mlperf_logging/rcp_checker: its records, its pruning and its
t-test, without SciPy. Closed division, rulesets 1.0.0 to 4.0.0.
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import pstdev
from typing import NamedTuple

import mlperf_logging

from ..config import benchmark

FIRST_RULESET = "1.0.0"
SCALED_FROM = "2.1.0"
"""Since this round the published scores are multiplied by the factor."""

_TOLERANCE = 1e-4  # of the tool's bisection
_SUBMITTED = benchmark.RUNS - 2
# the runs that the tool counts for an interpolated point
_INTERPOLATED = benchmark.RUNS * 2

# Quantiles t(0.95; degrees of freedom) of Student's distribution, for n1 + 3 - 2 with n1 the
# reference runs - 2, or 10 for an interpolated point.
_T95 = {
    9: 1.8331129,
    11: 1.7958848,
    14: 1.7613101,
    15: 1.7530504,
    16: 1.7458837,
    27: 1.7032884,
}


class Point(NamedTuple):
    """A record: epochs that its runs took."""

    batch: int
    epochs: tuple[int, ...]

    @property
    def mean(self) -> float:
        """The mean of the epochs without the fastest and the slowest run."""
        return olympic_mean(self.epochs)

    @property
    def stdev(self) -> float:
        """Population standard deviation of all runs."""
        return pstdev(self.epochs)


class Reference(NamedTuple):
    """What a batch is held to. `position`: exact, interpolated, below (the smallest point) or
    above."""

    position: str
    batches: tuple[int, ...]
    mean: float
    minimum: float


class Verdict(NamedTuple):
    """The outcome of the RCP test; `factor` multiplies the score where the test passes."""

    passed: bool
    reason: str
    mean: float | None = None
    reference: Reference | None = None
    factor: float = 1.0

    @property
    def word(self) -> str:
        """The outcome as the tool says it."""
        return "PASS" if self.passed else "FAIL"


@cache
def points(ruleset: str) -> tuple[Point, ...]:
    """All records of a ruleset by rising batch, from the tool's own file; none before 1.0.0."""
    if not benchmark.at_least(ruleset, FIRST_RULESET):
        return ()
    file = Path(
        mlperf_logging.__path__[0], f"rcp_checker/training_{ruleset}/rcps_resnet.json"
    )
    records = json.loads(file.read_bytes()).values()
    return tuple(
        sorted(Point(r["BS"], tuple(r["Epochs to converge"])) for r in records)
    )


@cache
def kept_points(ruleset: str) -> tuple[Point, ...]:
    """The records that are matched and interpolated. Out go those with a smaller batch than the
    fastest, then, walking upwards once, each that is slower than the straight line between its
    neighbours."""
    everything = points(ruleset)
    if not everything:
        return ()
    fastest = min(everything, key=lambda point: point.mean)
    convex = [point for point in everything if point.batch >= fastest.batch]
    # the ends stay, as they have no two neighbours
    index = 1
    while index < len(convex) - 1:
        point = convex[index]
        low = convex[index - 1]
        high = convex[index + 1]
        # the tool's own walk: a point that is slower than its neighbours' line goes, and the next
        # one is judged by those that are left
        straight = _between(point.batch, low, high, low.mean, high.mean)
        if point.mean > straight:
            del convex[index]
        else:
            index += 1
    return tuple(convex)


def reference(batch: float, ruleset: str) -> Reference | None:
    """What the runs of a batch are held to; None before 1.0.0. Above the largest point there is
    nothing to be held to: mean and minimum are NaN."""
    matched = kept_points(ruleset)
    if not matched:
        return None
    for point in matched:
        if point.batch == batch:
            return _exact("exact", point)
    if batch < matched[0].batch:
        return _exact("below", matched[0])
    if batch > matched[-1].batch:
        return Reference("above", (matched[-1].batch,), math.nan, math.nan)
    low, high = next(
        (low, high) for low, high in pairwise(matched) if low.batch < batch < high.batch
    )
    mean = _between(batch, low, high, low.mean, high.mean)
    stdev = _between(batch, low, high, low.stdev, high.stdev)
    minimum = _minimum(mean, stdev, _INTERPOLATED)
    return Reference("interpolated", (low.batch, high.batch), mean, minimum)


def judge(epochs: Sequence[float | None], batch: float, ruleset: str) -> Verdict:
    """The RCP test on the epochs that the runs of a submission took; None: did not converge."""
    held_to = reference(batch, ruleset)
    if not held_to:
        return Verdict(False, f"no reference convergence points before {FIRST_RULESET}")
    failed = sum(epoch is None for epoch in epochs)
    if failed > benchmark.RUNS_THAT_MAY_FAIL:
        return Verdict(
            False,
            f"insufficient convergence: {failed} of {len(epochs)} runs did not converge",
            reference=held_to,
        )
    if len(epochs) < 3:
        return Verdict(False, f"{benchmark.RUNS} runs expected", reference=held_to)
    # the one that may fail is the slowest, which the olympic mean leaves out
    mean = olympic_mean([math.inf if epoch is None else epoch for epoch in epochs])
    if held_to.position == "above":
        return Verdict(
            False,
            f"{batch:,g} is above the largest point {held_to.batches[0]:,}: needs its own RCP",
            mean,
            held_to,
        )
    factor = max(1.0, held_to.mean / mean) if mean > 0 else 1.0
    if mean >= held_to.minimum:
        return Verdict(True, _WHY[held_to.position], mean, held_to, factor)
    return Verdict(
        False,
        f"converges in {mean:g} epochs, less than the accepted minimum {held_to.minimum:.4f}",
        mean,
        held_to,
        factor,
    )


_WHY = {
    "exact": "reference point of this batch",
    "interpolated": "interpolated between reference points",
    "below": "below the smallest point, and not faster than it",
}


def olympic_mean(values: Sequence[float]) -> float:
    """Mean without the smallest and the largest of at least three values."""
    middle = sorted(values)[1:-1]
    return sum(middle) / len(middle)


def _exact(position: str, point: Point) -> Reference:
    minimum = _minimum(point.mean, point.stdev, len(point.epochs) - 2)
    return Reference(position, (point.batch,), point.mean, minimum)


def _between(
    batch: float, low: Point, high: Point, at_low: float, at_high: float
) -> float:
    slope = (at_high - at_low) / (high.batch - low.batch)
    return slope * (batch - low.batch) + at_low


def _minimum(mean: float, stdev: float, runs: int) -> float:
    """The smallest mean that a one-sided pooled t-test accepts, found as the tool finds it. The
    tool bisects to 1e-4; so does this, around the closed form, to end on the same number."""
    if stdev == 0:
        return mean
    # standard error of the difference of two means, the reference's deviation taken for both
    spread = stdev * math.sqrt(1 / runs + 1 / _SUBMITTED)
    limit = mean - _T95[runs + _SUBMITTED - 2] * spread
    low = 0.0
    high = mean
    middle = (low + high) / 2
    while high - low > _TOLERANCE:
        if middle > limit:
            high = middle
        else:
            low = middle
        middle = (low + high) / 2
    return middle
