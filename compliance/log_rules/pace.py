"""The rule on pace: no stretch of a run is trained faster than any machine trains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ...config import benchmark
from ...config.finding import number, plain
from ...logging.events import Event
from ..logged_run import LoggedRun
from ..rule import ERROR, POLICY, Violation, rule


class _Stretch(NamedTuple):
    """Epochs that were trained from one moment to another; `line`: of the later one."""

    name: str
    line: int
    epochs: float
    time_ms: float


@rule(
    *("MLP411", "impossible-rate", ERROR),
    "peak of the largest published machine (config/benchmark.py)",
    keys=("train_samples",),
)
def possible_rate(run: LoggedRun) -> Iterator[Violation]:
    """No stretch of a run is trained at more than 7e7 images/s, ten times the fastest published
    run: not from run_start to the target (else policy), to the first evaluation, between two
    evaluations, nor one epoch. (An epoch has ImageNet's images, in the open division as many as
    logged. Evaluations stamped in whole seconds may be off by one.)"""
    logged = number(run.value("train_samples")) if run.division == "open" else None
    samples = logged if logged is not None and logged > 0 else benchmark.IMAGENET_TRAIN_SAMPLES
    for one in _stretches(run):
        images = one.epochs * samples
        if images * 1000 <= benchmark.IMPOSSIBLE_IMAGES_PER_S * (one.time_ms + run.coarse_ms):
            continue
        rate = f"{images / one.time_ms * 1000:.2g} images/s" if one.time_ms else "in no time"
        yield Violation(
            message=f"{one.name}: {plain(one.epochs)} epoch{'' if one.epochs == 1 else 's'} in "
            f"{one.time_ms / 1000:.3f} s (line {one.line}), no machine trains {rate}",
            line=one.line,
            expected=f"up to {benchmark.IMPOSSIBLE_IMAGES_PER_S:.2g} images/s",
            actual=rate,
            advice="log each event when it happens, in milliseconds",
            severity=None if one.name == _TO_TARGET else POLICY,
        )
        return


_TO_TARGET = "from run_start to the target"


def _stretches(run: LoggedRun) -> Iterator[_Stretch]:
    """The way to the target, the ways from run_start and from one evaluation to the next, and the
    epochs, as far as stamps and numbers of epochs tell."""
    start, target = run.start, run.target
    if start is None or start.time_ms <= 0:
        return
    epochs = run.convergence_epoch
    if target is not None and epochs and target.time_ms >= start.time_ms:
        yield _Stretch(_TO_TARGET, target.line, epochs, target.time_ms - start.time_ms)
    points = [("run_start", 0.0, start.time_ms, start.line)]
    for one in run.timed_evaluations:
        if one.epoch is not None and one.time_ms > 0:
            name = f"the evaluation of epoch {plain(one.epoch)}"
            points.append((name, one.epoch, one.time_ms, one.line))
    for (before, from_epoch, from_ms, _), (name, epoch, ms, line) in pairwise(points):
        if ms >= from_ms and 1 <= epoch - from_epoch <= benchmark.MOST_LOGGED_EPOCHS:
            yield _Stretch(f"from {before} to {name}", line, epoch - from_epoch, ms - from_ms)
    begun: dict[float, Event] = {}
    for epoch, event in run.numbered("epoch_start"):
        begun.setdefault(epoch, event)
    for epoch, event in run.numbered("epoch_stop"):
        first = begun.pop(epoch, None)
        if first is not None and 0 < first.time_ms <= event.time_ms:
            took_ms = event.time_ms - first.time_ms
            yield _Stretch(f"epoch {plain(epoch)}", event.line, 1.0, took_ms)
