"""Rules on accuracies as numbers: can they be counts of correct images, is their course likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ...config import benchmark
from ...config.finding import plain, shown
from ..logged_run import Evaluation, LoggedRun, reaches_target
from ..rule import NOTE, POLICY, RULES_TEXT, Violation, rule

_SUMMED_IN_FLOAT32 = 1e-6
"""Means that were summed in float32: published ones lie up to 1.6e-7 beside a count (v1.1
Graphcore), 1/50,000 is 2e-5."""
_EXACT = 5e-9
"""Rounding of accuracies with eight decimals or more. That three of them seem to be counts over any
wrong number of images up to 50,000 has a chance of 6e-6."""
_ALONE = 8
"""Evaluations that are counts beside the one that is not. In a log of five decimals over a padded
set that happens by chance once in 50."""
_FEWEST_IMAGES = 1000
_DIVISORS = sorted(2**i * 5**k for i in range(5) for k in range(6) if 2**i * 5**k <= 3125)
"""Of 50,000, up to a sixteenth of it. That accuracies of four decimals, as most logs have them, are
all counts over so few images is no chance."""
_EARLY_EPOCH, _EARLY_ACCURACY = 4, 0.6
"""The best published accuracy at epoch 4 is below 0.6."""


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


def _near(value: float, images: int, slack: float) -> bool:
    """Is an accuracy a count of correct images over so many?"""
    return abs(value - round(value * images) / images) <= slack


def _fractions(run: LoggedRun) -> list[Evaluation]:
    """The first evaluation of each epoch, where the whole set of ImageNet is evaluated (else
    eval-samples says it)."""
    if run.value("eval_samples") not in (None, benchmark.IMAGENET_EVAL_SAMPLES):
        return []
    first: dict[object, Evaluation] = {}
    for one in run.timed_evaluations:
        if 0 < one.accuracy < benchmark.HIGHEST_ACCURACY:
            first.setdefault(one.order if one.epoch is None else one.epoch, one)
    return list(first.values())


@rule(
    *("MLP812", "accuracy-not-a-count", POLICY),
    f"{RULES_TEXT} lines 443, 939: every image is evaluated once",
    keys=("eval_samples",),
)
def accuracies_are_counts(run: LoggedRun) -> Iterator[Violation]:
    """Accuracies are counts over 50,000 images: one alone that is not, or counts over fewer images
    throughout, are policy; others (means over padded batches, a padded set) are a note."""
    all_images = benchmark.IMAGENET_EVAL_SAMPLES
    found = _fractions(run)
    odd = [e for e in found if not _near(e.accuracy, all_images, _SUMMED_IN_FLOAT32)]
    if not odd or len(found) < 3:
        return
    numbers = [e.accuracy for e in found]
    one = numbers[-1]  # a plain expression: 49,000 calls would take twice as long
    wide = range(_FEWEST_IMAGES, all_images)
    fewer = (n for n in wide if abs((one * n + 0.5) % 1.0 - 0.5) <= _EXACT * n)
    images = next((n for n in fewer if all(_near(a, n, _EXACT) for a in numbers)), None)
    text = f"{len(odd)} of {len(found)} accuracies are no counts over {all_images:,} images"
    if images is not None:
        text = f"all {len(found)} accuracies are counts over {images:,} images, not {all_images:,}"
    yield Violation(
        message=f"eval_accuracy (line {odd[0].line}) is {plain(odd[0].accuracy)}: {text}",
        line=odd[0].line,
        expected=f"a multiple of 1/{all_images:,}",
        actual=plain(odd[0].accuracy) if images is None else f"multiples of 1/{images:,}",
        advice="the accuracy is the number of correct images over all images",
        severity=None if images or (len(odd) == 1 and len(found) > _ALONE) else NOTE,
    )


def _of_few_images(found: Sequence[Evaluation]) -> tuple[Evaluation, str] | None:
    images = next((n for n in _DIVISORS if all(_near(e.accuracy, n, _EXACT) for e in found)), None)
    if images is None or len(found) < 3:
        return None
    return found[-1], f"all {len(found)} accuracies are counts over {images:,} images"


def _equal_in_a_row(found: Sequence[Evaluation]) -> tuple[Evaluation, str] | None:
    for one, other, third in zip(found, found[1:], found[2:], strict=False):
        if one.accuracy == other.accuracy == third.accuracy:
            return one, f"{plain(one.accuracy)} is the accuracy of three evaluations in a row"
    return None


def _high_early(found: Sequence[Evaluation]) -> tuple[Evaluation, str] | None:
    for one in found:
        if one.epoch is not None and one.epoch <= _EARLY_EPOCH and one.accuracy > _EARLY_ACCURACY:
            return one, f"{plain(one.accuracy)} at epoch {plain(one.epoch)}"
    return None


_UNLIKELY: dict[str, Callable[[Sequence[Evaluation]], tuple[Evaluation, str] | None]] = {
    "counts over 50,000 images": _of_few_images,
    "accuracies that differ": _equal_in_a_row,
    f"at most {_EARLY_ACCURACY} up to epoch {_EARLY_EPOCH}": _high_early,
}
"""What published logs have, and what finds the first evaluation that has something else."""


@rule("MLP813", "unlikely-accuracy", NOTE, "published logs", keys=("eval_samples",))
def likely_accuracies(run: LoggedRun) -> Iterator[Violation]:
    """Accuracies are not all counts over a small part of the 50,000 images, three in a row are not
    equal, and none up to epoch 4 is above 0.6."""
    evaluations = _fractions(run)
    for expected, find in _UNLIKELY.items():
        if (found := find(evaluations)) is not None:
            one, text = found
            message = f"{text} (line {one.line})"
            yield Violation(message=message, line=one.line, expected=expected, actual=text)
