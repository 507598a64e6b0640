"""Rules on pace: no run trains faster than machines do, nor faster than it does itself."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ...config import benchmark
from ...config.finding import number, plain
from ...logging.events import Event
from ..logged_run import LoggedRun, epoch_of
from ..rule import ERROR, NOTE, POLICY, Violation, rule
from .training import EPOCH_KEYS, severity_of

_SLOW_SHARE = 0.25  # of the fastest published run: below it, stamps do not come in bursts


@rule(
    *("MLP411", "impossible-throughput", ERROR),
    "published results; peak of the largest published machine",
    keys=("train_samples",),
)
def possible_rate(run: LoggedRun) -> Iterator[Violation]:
    """The target is not reached faster than any machine trains: above 7e7 images/s (ten times the
    fastest published run) is an error, above twice that run policy. An epoch has ImageNet's images
    for the error, in the open division as many as logged (that ImageNet's would be an error is
    policy there), and as many as logged for the policy."""
    target = run.target
    if target is None or run.start is None or run.run_ms is None or run.run_ms <= 0:
        return
    epochs = target.epoch
    if epochs is None or not 1 <= epochs <= benchmark.MOST_LOGGED_EPOCHS:
        epochs = _highest_epoch(run)
    time_ms = min(run.run_ms, max(target.time_ms - run.start.time_ms, 0.0))
    if target.time_ms < run.start.time_ms:
        return  # target-off-the-clock says it
    images = _epoch_samples(run) * epochs
    most = benchmark.IMPOSSIBLE_IMAGES_PER_S * time_ms / 1000
    impossible = images > most
    beyond = benchmark.IMAGENET_TRAIN_SAMPLES * epochs > most
    if beyond:
        images = max(images, benchmark.IMAGENET_TRAIN_SAMPLES * epochs)
    fast = _said_samples(run) * epochs > 2 * benchmark.FASTEST_IMAGES_PER_S * time_ms / 1000
    if not (beyond or fast):
        return
    yield Violation(
        f"{plain(epochs)} epochs in {time_ms / 1000:.3f} s (line {target.line}): no machine "
        f"trains {f'{images / time_ms * 1000:.2g} images/s' if time_ms else 'in no time'}, the "
        f"fastest published run has {benchmark.FASTEST_IMAGES_PER_S:.2g}",
        target.line,
        f"up to {2 * benchmark.FASTEST_IMAGES_PER_S:.2g} images/s",
        f"{images / time_ms * 1000:.2g} images/s" if time_ms else "no time",
        "stamps in milliseconds; the model may not be trained before run_start",
        None if impossible else POLICY,
    )


def _epoch_samples(run: LoggedRun) -> float:
    """Images of an epoch: ImageNet's; in the open division as logged, where the log says it."""
    return _said_samples(run) if run.division == "open" else benchmark.IMAGENET_TRAIN_SAMPLES


def _said_samples(run: LoggedRun) -> float:
    """Images of an epoch as logged (train-samples is about it), ImageNet's where it is not."""
    logged = number(run.value("train_samples"))
    return logged if logged is not None and logged > 0 else benchmark.IMAGENET_TRAIN_SAMPLES


def _highest_epoch(run: LoggedRun) -> float:
    """The highest epoch, of those that can be, that any event on the clock has; at least 1."""
    named = (
        epoch_of(event, name)
        for key in EPOCH_KEYS
        for event in run.during(key)
        for name in ("epoch_num", "first_epoch_num")
    )
    return max(
        (e for e in named if e is not None and 1 <= e <= benchmark.MOST_LOGGED_EPOCHS), default=1.0
    )


@rule(
    *("MLP412", "impossible-epoch-time", POLICY, "published results; the log against itself"),
    keys=("train_samples",),
)
def epochs_take_time(run: LoggedRun) -> Iterator[Violation]:
    """No epoch and no interval between evaluations is shorter than any machine needs, or between
    evaluations than a tenth of what the run itself takes on its way to the target; where most are,
    their stamps were taken later, a note. (Stamps in whole seconds may be off by one.)"""
    passes = _intervals(run)
    run_ms, samples = run.run_ms, _epoch_samples(run)
    last = run.timed_evaluations[-1].epoch if run.timed_evaluations else None
    for intervals in passes:
        least_ms = 1000 * samples / benchmark.IMPOSSIBLE_IMAGES_PER_S
        odd = [o for o in intervals if o.time_ms + run.coarse_ms < least_ms * o.epochs]
        if not odd or run_ms is None or run_ms <= 0:
            continue
        fast = (last or 0.0) * samples > _SLOW_SHARE * benchmark.FASTEST_IMAGES_PER_S * (
            run_ms / 1000
        )
        one = odd[0]
        yield Violation(
            f"{one.what} took {plain(round(one.time_ms, 3))} ms (line {one.line}), no machine "
            f"trains {plain(one.epochs)} epoch{'' if one.epochs == 1 else 's'} in that time",
            one.line,
            f"above {least_ms * one.epochs:.0f} ms",
            f"{plain(round(one.time_ms, 3))} ms",
            "log each event when it happens",
            NOTE if fast else severity_of(len(odd), len(intervals)),
        )
        return
    yield from _too_fast_for_itself(run)


def _too_fast_for_itself(run: LoggedRun) -> Iterator[Violation]:
    own_ms = run.epoch_ms
    pairs = list(pairwise(run.timed_evaluations))
    odd = [(one, other) for one, other in pairs if run.too_soon(one, other)]
    if not odd or own_ms is None:
        return
    late = [pair for pair in odd if pair[1].order > run.target_order]
    one, other = (late or odd)[0]
    epochs = (other.epoch or 0.0) - (one.epoch or 0.0)
    took_ms = other.time_ms - one.time_ms
    yield Violation(
        f"from the evaluation of epoch {plain(one.epoch or 0.0)} to that of "
        f"{plain(other.epoch or 0.0)} it took {plain(round(took_ms, 3))} ms (line {other.line}); "
        f"up to the target this run takes {plain(round(own_ms * epochs))} ms for as many epochs",
        other.line,
        f"about {plain(round(own_ms * epochs))} ms",
        f"{plain(round(took_ms, 3))} ms",
        "log each event when it happens",
        POLICY if late else severity_of(len(odd), len(pairs)),
    )


class _Interval(NamedTuple):
    what: str
    line: int
    epochs: float
    time_ms: float


def _intervals(run: LoggedRun) -> Iterator[list[_Interval]]:
    """Epochs before the target, and the stretches between evaluations, each kind by itself."""
    begun: dict[float, Event] = {}
    found = []
    for epoch, event in run.numbered("epoch_start"):
        if epoch > 0 and event.time_ms > 0:
            begun.setdefault(epoch, event)
    for epoch, event in run.numbered("epoch_stop"):
        start = begun.pop(epoch, None)
        if start is None or event.time_ms <= 0:
            continue
        took_ms = event.time_ms - start.time_ms
        if took_ms >= 0 and start.order < event.order < run.target_order:
            found.append(_Interval(f"epoch {plain(epoch)}", event.line, 1.0, took_ms))
    yield found
    rising = [e for e in run.timed_evaluations if e.epoch is not None and e.time_ms > 0]
    yield [
        _Interval(
            f"from the evaluation of epoch {plain(one.epoch)} to that of {plain(other.epoch)} it",
            other.line,
            other.epoch - one.epoch,
            other.time_ms - one.time_ms,
        )
        for one, other in pairwise(rising)
        if one.epoch is not None
        and other.epoch is not None
        and 1 <= other.epoch - one.epoch <= benchmark.MOST_LOGGED_EPOCHS
        and other.time_ms >= one.time_ms
    ]
