"""Why stamps go back: one stray stamp, another unit, a clock that was set, writers not sorted."""

from __future__ import annotations

from itertools import pairwise

from ..config.finding import printable
from ..logging.events import Event
from .logged_run import SAME_MS, LoggedRun

_UNITS = ((1e-3, "seconds"), (1e3, "microseconds"), (1e6, "nanoseconds"))
_UNIT_SLACK = 0.01  # a run of half a year
_WRITERS_STEPS = 3


def clock_fault(run: LoggedRun) -> str:
    """What makes the stamps of a log go back, as far as its records tell; "" where they do not."""
    events = sorted(
        (e for key in run.logged_keys() for e in run.all(key) if e.time_ms > 0),
        key=lambda event: event.order,
    )
    back = [at for at, (a, b) in enumerate(pairwise(events), 1) if b.time_ms < a.time_ms]
    if not back:
        return ""
    stray = _stray(events, back[0])
    rest = [event for event in events if event is not stray]
    if stray is not None and all(a.time_ms <= b.time_ms for a, b in pairwise(rest)):
        return _about(stray, events)
    if len(back) == 1:
        before, after = events[back[0] - 1], events[back[0]]
        by_s = (before.time_ms - after.time_ms) / 1000
        if by_s * 1000 >= SAME_MS:
            return f"from line {after.line} on the clock is {by_s:.3f} s or more behind"
    if len(back) >= _WRITERS_STEPS and (
        run.duplicate_writers > 1 or len({e.namespace for e in events}) > 1
    ):
        return "records of several writers, not sorted by time"
    return ""


def _stray(events: list[Event], at: int) -> Event | None:
    """The one record that is out of time around a step back: without it its neighbours are in
    order."""
    for index in (at - 1, at):
        before = events[index - 1] if index else None
        after = events[index + 1] if index + 1 < len(events) else None
        if before is None or after is None or before.time_ms <= after.time_ms:
            return events[index]
    return None


def _about(stray: Event, events: list[Event]) -> str:
    at = events.index(stray)
    other = events[at - 1] if at else events[1]
    name = f"line {stray.line} ({printable(stray.key)[:60]})"
    for factor, unit in _UNITS:
        if abs(stray.time_ms / (other.time_ms * factor) - 1) < _UNIT_SLACK:
            return f"{name} alone is stamped in {unit}"
    by_s = (stray.time_ms - other.time_ms) / 1000
    side = "ahead of" if by_s > 0 else "behind"
    return f"{name} alone is stamped {abs(by_s):.3f} s {side} its neighbours"
