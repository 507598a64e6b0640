"""The time in which this process ran: suspensions are left out."""

from __future__ import annotations

import threading
import time

PAUSE_S = 2.0
"""Longer between two looks at a clock: this process was suspended, most likely with all others
(`scontrol suspend`, a virtual machine that stood still)."""


class RunningClock:
    """A clock for all threads. Once `watch` was called one of them has to look at it about every
    second: the first look of any thread after a suspension notices it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_s = time.monotonic()
        self._suspended_s = 0.0
        self._is_watched = False

    def watch(self) -> None:
        """From here on the calling thread looks at this clock about every second."""
        self.look_s()
        self._is_watched = True

    def look_s(self) -> float:
        """The time, in seconds from some moment."""
        with self._lock:
            now_s = time.monotonic()
            pause_s = now_s - self._looked_s
            if self._is_watched and pause_s > PAUSE_S:
                self._suspended_s += pause_s
            self._looked_s = now_s
            return now_s - self._suspended_s
