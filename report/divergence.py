"""Where two sets of runs part: by more than their spread, and, of one config, in the first bit.

Two accuracies differ when |a - b| > 3 s sqrt(1/n + 1/m): a and b are the means of the n and m runs
at the same epoch, s the run-to-run standard deviation there, pooled over the sides with several
runs. s is never taken below the sampling error of the evaluation set, sqrt(p (1 - p) / images);
where each side has one run, that error is all there is, and `basis` says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ..config import benchmark
from ..config.finding import number
from ..config.image_set import SYNTHETIC
from ..config.leaves import flatten
from ..config.load import Loaded
from ..config.schema import PLACES
from .run_folder import Subject
from .run_summary import RunSummary, show

_SIGMAS = 3.0


class Parting(NamedTuple):
    """The first evaluation of the left side at which the two differ."""

    epoch: float
    left: float
    right: float
    limit: float


class FirstBit(NamedTuple):
    """The first value in which two runs of one config differ; `where` None: in none."""

    compared: int
    where: str | None = None
    left: float | None = None
    right: float | None = None

    @property
    def text(self) -> str:
        if self.where is None:
            return f"the same in every bit of {self.compared} losses and accuracies"
        return f"first bitwise difference: {show(self.where)}, {self.left!r} against {self.right!r}"


class Divergence(NamedTuple):
    """`compared`: evaluations at which both have an accuracy; `basis`: what the limit rests on."""

    compared: int
    basis: str
    parting: Parting | None
    first_bit: FirstBit | None
    """None for runs of different configs or of several logs."""

    @property
    def curve_text(self) -> str:
        if not self.compared:
            return "no evaluation at a common epoch"
        how = f"evaluations compared: {self.compared}, {self.basis}"
        if self.parting is None:
            return f"the curves agree within 3 standard deviations ({how})"
        epoch, left, right, limit = self.parting
        return (
            f"the curves part at epoch {epoch:g}: {left:.5f} against {right:.5f}, "
            f"{abs(left - right):.5f} apart, limit {limit:.5f} ({how})"
        )


def diverge(left: Subject, right: Subject) -> Divergence:
    """Compare two subjects at the evaluations of the left one."""
    curve, other = _curve(left.runs), _curve(right.runs)
    images = number(left.runs[0].parameters.get("eval_samples")) if left.runs else None
    images = max(images or benchmark.IMAGENET_EVAL_SAMPLES, 1)
    found = [(epoch, curve[epoch], other[epoch]) for epoch in curve if epoch in other]
    parting = None
    for epoch, ours, theirs in found:
        limit = _limit(ours, theirs, images)
        if abs(fmean(ours) - fmean(theirs)) > limit:
            parting = Parting(epoch, fmean(ours), fmean(theirs), limit)
            break
    several = any(len(ours) + len(theirs) > 2 for _, ours, theirs in found)
    return Divergence(
        compared=len(found),
        basis="run-to-run spread" if several else "sampling error alone: one run each",
        parting=parting,
        first_bit=first_bit(left, right),
    )


def first_bit(left: Subject, right: Subject) -> FirstBit | None:
    """Return the first loss or accuracy in which two runs of one config and seed differ in any
    bit; None for runs that are not of one config."""
    if len(left.logs) != 1 or len(right.logs) != 1 or not _same_config(left, right):
        return None
    ours, theirs = _values(left), _values(right)
    shared = [where for where in ours if where in theirs]
    for where in shared:
        if ours[where] != theirs[where]:
            return FirstBit(len(shared), where, ours[where], theirs[where])
    return FirstBit(len(shared))


def _same_config(left: Subject, right: Subject) -> bool:
    configs = [s.folder.config for s in (left, right) if s.folder is not None]
    if len(configs) == 2 and configs[0] is not None and configs[1] is not None:
        return without_places(configs[0]) == without_places(configs[1])
    one, other = left.runs[0].parameters, right.runs[0].parameters
    return bool(one) and one == other


def without_places(config: Loaded) -> dict[str, Any]:
    """Return the leaves of a config by dotted path, without those that change no result: where
    files lie, and what to draw where there are none."""
    places = (*PLACES, SYNTHETIC)
    return {key: value for key, value in flatten(config.to_dict()) if not key.startswith(places)}


def _values(subject: Subject) -> dict[str, float | None]:
    """All losses and accuracies by where they are: from the metrics, else from the log."""
    found: dict[str, float | None] = {}
    for record in subject.folder.metrics if subject.folder is not None else ():
        if record.get("kind") == "train":
            found[f"loss at step {show(record.get('step'))}"] = number(record.get("loss"))
        elif record.get("kind") == "eval":
            found[f"accuracy of epoch {show(record.get('epoch'))}"] = number(record.get("accuracy"))
    if found:
        return found
    return {f"accuracy of epoch {show(e.epoch)}": e.accuracy for e in subject.runs[0].evaluations}


def _curve(runs: Sequence[RunSummary]) -> dict[float, list[float]]:
    """Accuracies of all runs by epoch, epochs rising."""
    found: dict[float, list[float]] = {}
    for run in runs:
        for one in run.evaluations:
            if one.epoch is not None:
                found.setdefault(round(one.epoch, 3), []).append(one.accuracy)
    return dict(sorted(found.items()))


def _limit(ours: Sequence[float], theirs: Sequence[float], images: float) -> float:
    """How far apart two means may be: the docstring of this module."""
    squares = sum((x - fmean(side)) ** 2 for side in (ours, theirs) for x in side)
    degrees = len(ours) + len(theirs) - 2
    pooled = squares / degrees if degrees else 0.0
    p = (fmean(ours) + fmean(theirs)) / 2
    variance = max(pooled, p * (1 - p) / images)
    return _SIGMAS * math.sqrt(variance * (1 / len(ours) + 1 / len(theirs)))
