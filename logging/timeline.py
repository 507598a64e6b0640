"""timeline.json: phases of a rank in Chrome's trace format (chrome://tracing, Perfetto)."""

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .clock import Clock, Moment


class Timeline:
    """Spans with wall-clock start, so that those of several processes line up. `clock`: of the run;
    None: one that starts now."""

    def __init__(self, rank: int, clock: Clock | None = None) -> None:
        self._rank = rank
        self._clock = clock or Clock()
        self.spans: list[dict[str, Any]] = []
        self._of_device: list[tuple[str, Sequence[Moment], Moment]] = []
        self._phase = "start"
        self.on_phase: Callable[[], None] = lambda: None
        """Called at each new phase."""

    @property
    def phase(self) -> str:
        """Name of the span entered last: what a rank was doing when it failed."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        """Enter a phase, and tell whoever asked for it."""
        self._phase = name
        self.on_phase()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record the time spent in the `with` body."""
        self.phase = name
        start = self._clock.unix_s
        try:
            yield
        finally:
            self.add(name, start, self._clock.unix_s)

    def add_device(self, name: str, starts: Sequence[Moment], done: Moment) -> None:
        """Record a span of the device, which may not have begun it yet: from the last of some
        moments."""
        self._of_device.append((name, starts, done))

    def add(self, name: str, start: float, stop: float, thread: str = "") -> None:
        """Record a span.

        Args:
            name: what was done.
            start: when it began, in Unix seconds.
            stop: when it ended.
            thread: who did it; empty: this thread.
        """
        self.spans.append(
            {
                "name": name,
                "ph": "X",  # a complete event, with a start and a duration
                "ts": round(start * 1e6),
                "dur": round((stop - start) * 1e6),
                "pid": self._rank,
                "tid": thread or threading.current_thread().name,
            }
        )

    def to_json(self) -> str:
        """Chrome trace JSON, times in microseconds."""
        for name, starts, done in self._of_device:
            if not math.isnan(done()):
                start_s = max(map(self._clock.unix_s_at, starts))
                self.add(name, start_s, self._clock.unix_s_at(done), "device")
        self._of_device.clear()
        trace = {"traceEvents": self.spans, "displayTimeUnit": "ms"}
        return json.dumps(trace, indent=0) + "\n"
