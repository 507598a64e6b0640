"""The stamps of a log's records: which are times, which are odd, and where time goes back."""

from __future__ import annotations

import contextlib
from typing import Any

from .checked_keys import CheckedKeys
from .events import MLL, MLLOG, OddStamps, StepBack, cut, type_name
from .troubles import Troubles

LATEST_MS = 4_102_444_800_000
"""The end of the year 2099. What is later is no time, but microseconds or nanoseconds."""
_NO_STAMP = 1e21
_KEPT_STEPS = 50


class Clock:
    """The records of one dialect, as their stamps follow each other."""

    def __init__(self) -> None:
        self.steps_back: list[StepBack] = []
        self.step_back_count = 0
        self._previous_ms = self._latest_ms = 0.0

    def pass_by(self, line: int, key: str, time_ms: float) -> None:
        """Look for steps back. Each is measured from the latest stamp before it, so that many small
        ones are one large one. Stamps that are no time take no part."""
        if not 0 < time_ms < LATEST_MS:
            return
        if time_ms < self._previous_ms:
            self.step_back_count += 1
            step = StepBack(line, cut(key), self._latest_ms - time_ms)
            if len(self.steps_back) < _KEPT_STEPS:
                self.steps_back.append(step)
            elif step.by_ms > self.steps_back[-1].by_ms:
                self.steps_back[-1] = step
        elif time_ms > self._latest_ms:
            self._latest_ms = time_ms
        self._previous_ms = time_ms


class Stamps:
    """Of one log, in the order of its records."""

    def __init__(self, troubles: Troubles, checked: CheckedKeys) -> None:
        self.odd: dict[tuple[str, bool], OddStamps] = {}
        self.clocks = {MLLOG: Clock(), MLL: Clock()}
        self._troubles = troubles
        self._checked = checked

    def read(
        self, line: int, key: str, content: dict[str, Any], seconds: str | None
    ) -> float | None:
        """Milliseconds; None, and a problem, where there is no usable stamp.

        Args:
            line: of the record.
            key: of the record.
            content: its JSON, which has `time_ms` where `seconds` is None.
            seconds: its stamp in v0.6.
        """
        stamp: Any = seconds
        if seconds is None:
            if "time_ms" not in content:
                found = 'found "time_s"' if "time_s" in content else "found none"
                message = f'record ({cut(key)}) has no "time_ms", {found}'
                self._troubles.problem(line, "missing", key, message, True)
                return None
            stamp = content["time_ms"]
        text = stamp if isinstance(stamp, str) else None
        if text is not None:  # in v0.6 it is one; elsewhere the official parser reads it too
            with contextlib.suppress(ValueError):
                stamp = float(text) if seconds is None else round(float(text) * 1000, 3)
        if isinstance(stamp, bool) or not isinstance(stamp, int | float):
            message = f"time_ms of {cut(key)} is {type_name(stamp)}, expected a number"
            self._troubles.problem(line, "type", key, message, True)
            return None
        if not -_NO_STAMP < stamp < _NO_STAMP:
            self._no_time(line, key, stamp)
            return None
        if text is not None and seconds is None:
            self._note("text", line, key, repr(text[:40]))
        if stamp < 0:
            self._note("negative", line, key, f"{stamp:g}")
        elif stamp >= LATEST_MS:
            self._note("late", line, key, f"{stamp:.0f}")
            return float(stamp)
        return stamp

    def _no_time(self, line: int, key: str, stamp: float) -> None:
        huge = isinstance(stamp, int) or stamp not in (float("inf"), float("-inf"))
        found = "a huge number" if huge and stamp == stamp else type_name(stamp)
        message = f"time_ms of {cut(key)} is no time: {found}"
        if key in self._checked or isinstance(
            stamp, int
        ):  # such an integer ends the official parser
            self._troubles.problem(line, "type", key, message, True)
        else:
            self._troubles.note(line, "type", key, message)

    def _note(self, kind: str, line: int, key: str, stamp: str) -> None:
        sort = kind, key in self._checked
        first = self.odd.get(sort) or OddStamps(*sort, 0, line, cut(key), stamp)
        self.odd[sort] = first._replace(records=first.records + 1)
