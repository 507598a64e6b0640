"""Rules on accuracies as numbers: can they be counts of correct images, does their course hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ...config import benchmark
from ...config.finding import number, plain, shown
from ..logged_run import Evaluation, LoggedRun, reaches_target
from ..rule import NOTE, POLICY, RULES_TEXT, Violation, rule

_MEAN_OF_FLOATS = 1e-6
"""Rounding of means that were summed in float32: published ones lie up to 1.6e-7 beside a count
(v1.1 Graphcore), 1/50,000 is 2e-5."""
_ROUNDED_PLACES = 6
"""Accuracies with more decimals were not rounded to decimals."""
_EXACT = 1e-9
_BY_CHANCE = 0.05
"""Of a log whose accuracies are of no such form, that so many fit all the same."""
_CERTAIN = 1e-3
"""Expected number of other counts of images that fit by chance, where one is named."""
_FEWEST_IMAGES = 1000
_MOST_IMAGES, _MOST_EVALUATIONS = 100_000, 500
_LEAP = 0.25
"""Above every published rise to the target between two evaluations (0.10; v0.7 SIAT)."""
_FEWEST_EPOCHS = 10
"""Half of the fewest published (20; v0.7 SIAT)."""


@rule("MLP811", "accuracy-out-of-range", POLICY, "an accuracy is a fraction of images")
def accuracy_range(run: LoggedRun) -> Iterator[Violation]:
    """No accuracy of a run that reached the target is negative or above 1; NaN is a note."""
    if not any(reaches_target(e.accuracy) for e in run.evaluations):
        return  # target-not-reached says it
    logged = [event for event in run.all("eval_accuracy") if type(event.value) in (int, float)]
    odd = [event for event in logged if not 0 <= event.value <= benchmark.HIGHEST_ACCURACY]
    odd.sort(key=lambda event: math.isnan(event.value))  # a number that is none comes last
    for event in odd[:1]:
        text, advice, severity = shown(event.value), "log a fraction", POLICY
        if math.isnan(event.value):
            text, advice, severity = "NaN", "NaN means that training diverged", NOTE
        what = f"is {text}, no fraction of images"
        yield Violation.at(event, what, "a fraction from 0 to 1", text, advice, severity)


def _places(value: float) -> int:
    """Decimal places as logged."""
    digits, _, exponent = repr(value).partition("e")
    return len(digits.partition(".")[2].rstrip("0")) - int(exponent or 0)


class _Grid:
    """Whether accuracies are counts over a number of images, given the digits they are logged with:
    rounded to the most places that the log has, or floats."""

    def __init__(self, accuracies: Sequence[float]) -> None:
        self.accuracies = accuracies
        self.places = max(0, *(_places(value) for value in accuracies))
        self.rounded = self.places <= _ROUNDED_PLACES
        self.slack = max(_MEAN_OF_FLOATS, 0.5 * 10.0**-self.places)

    def fits(self, value: float, images: int) -> bool:
        """Is it a count over so many images?"""
        return _near(value, images, _EXACT if self._needs_no_rounding(images) else self.slack)

    def chance(self, images: int) -> float:
        """That an accuracy with as many digits fits although it is no count over so many images."""
        if self._needs_no_rounding(images):
            return min(1.0, images / 10.0**self.places)
        return min(1.0, 2 * self.slack * images)

    def _needs_no_rounding(self, images: int) -> bool:
        return self.rounded and 10**self.places % images == 0

    def images(self, most: int, least: int) -> int | None:
        """The number of images, up to `most`, of which all accuracies are counts; None: there is
        none, or it is not to be told from chance. A multiple from `least` on takes the place of a
        smaller number where the counts may be even (of three, of four ...) by chance."""
        longest = max(self.accuracies, key=_places)
        for slack in (0.5 * 10.0**-self.places,) if self.rounded else (_EXACT, _MEAN_OF_FLOATS):
            chance = min(1.0, 2 * slack * most)
            if most * chance ** len(self.accuracies) > _CERTAIN:
                continue
            wide = 1.01 * slack  # a plain expression: 70,000 calls would take 30 ms
            near = [
                n
                for n in range(_FEWEST_IMAGES, most + 1)
                if (longest * n + wide * n) % 1.0 <= 2 * wide * n
            ]
            for n in near:
                if all(_near(a, n, slack) for a in self.accuracies):
                    times = max(1, -(-least // n))
                    by_chance = float(times) ** -len(self.accuracies) > _CERTAIN
                    return n * times if by_chance and n * times <= most else n
        return None


def _near(value: float, images: int, slack: float) -> bool:
    return abs(value - round(value * images) / images) <= slack * 1.001


@rule(
    *("MLP812", "accuracy-not-a-count", POLICY),
    f"{RULES_TEXT} lines 443, 939: every image is evaluated once",
    keys=("eval_samples",),
)
def accuracies_are_counts(run: LoggedRun) -> Iterator[Violation]:
    """Accuracies are counts over eval_samples (or 50,000) images: single ones that are not, or
    counts over fewer images throughout, are policy; a log of another form (a mean over padded
    batches, a larger padded set) is a note."""
    fractions = [e for e in run.timed_evaluations if 0 < e.accuracy < benchmark.HIGHEST_ACCURACY]
    fractions = fractions[-_MOST_EVALUATIONS:]
    if len(fractions) < 3:
        return
    grid = _Grid([e.accuracy for e in fractions])
    logged = number(run.value("eval_samples"))
    sizes = [benchmark.IMAGENET_EVAL_SAMPLES]
    if logged is not None and logged.is_integer() and 1 < logged <= 10**7:
        sizes.append(int(logged))
    best = min(sizes, key=lambda size: sum(not grid.fits(e.accuracy, size) for e in fractions))
    odd = [e for e in fractions if not grid.fits(e.accuracy, best)]
    if not odd:
        return
    fit = len(fractions) - len(odd)
    if 2 * len(odd) < len(fractions) and _tail(grid.chance(best), len(fractions), fit) < _BY_CHANCE:
        one = next((e for e in odd if reaches_target(e.accuracy)), odd[0])
        yield _no_count(one, best, f"{fit} other{'s' if fit > 1 else ''} are", POLICY)
        return
    fewer = grid.images(min(best + best // 3, _MOST_IMAGES), best)
    if fewer is not None:
        text = f"all {len(fractions)} accuracies are counts over {fewer:,} images, not {best:,}"
        actual = f"multiples of 1/{fewer:,}"
        severity = POLICY if fewer < best else NOTE
        yield Violation(
            text, odd[0].line, f"multiples of 1/{best:,}", actual, "evaluate every image", severity
        )
        return
    yield _no_count(odd[0], best, f"nor are {len(odd) - 1} others", NOTE)


def _no_count(one: Evaluation, images: int, rest: str, severity: str) -> Violation:
    text = (
        f"eval_accuracy (line {one.line}) {plain(one.accuracy)} is no count over {images:,} images"
        + (f", {rest}" if rest else "")
    )
    advice = "the accuracy is the number of correct images over all images"
    return Violation(
        text, one.line, f"a multiple of 1/{images:,}", plain(one.accuracy), advice, severity
    )


def _tail(chance: float, of: int, fit: int) -> float:
    """Probability that `fit` or more of `of` fit by chance."""
    terms = range(fit, of + 1)
    return sum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in terms)


@rule("MLP813", "accuracy-leap", POLICY, "published accuracy curves", keys=("train_samples",))
def credible_rise(run: LoggedRun) -> Iterator[Violation]:
    """The target is not reached from far below in one step of evaluations, nor before epoch 10."""
    target = run.target
    if not run.needs_target or target is None:
        return
    if run.value("train_samples") not in (None, benchmark.IMAGENET_TRAIN_SAMPLES):
        return  # another task; train-samples says it
    if target.epoch is not None and 0 <= target.epoch < _FEWEST_EPOCHS:
        text = (
            f"{plain(target.accuracy)} at epoch {plain(target.epoch)} (line {target.line}): the "
            "fewest published epochs to the target are 20"
        )
        expected = f"epoch {_FEWEST_EPOCHS} or later"
        advice = "a model that was trained before run_start is no run"
        yield Violation(text, target.line, expected, plain(target.epoch), advice)
        return
    before = [
        e for e in run.timed_evaluations if e.order < target.order and e.epoch != target.epoch
    ]
    if not before:
        return
    rise = target.accuracy - before[-1].accuracy
    if rise > _LEAP:
        text = (
            f"accuracy leaps from {plain(before[-1].accuracy)} (line {before[-1].line}) to "
            f"{plain(target.accuracy)} (line {target.line})"
        )
        expected = f"a rise by at most {_LEAP} between two evaluations"
        advice = "no published run rises by more than 0.10 to the target"
        yield Violation(text, target.line, expected, f"{rise:.3f}", advice)
