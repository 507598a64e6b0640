"""A benchmark as a command: its progress, its clock, its last line."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ..config.progress import Advance
from ..launch.ending import Stopped, asked_by, measured, measuring_stopped
from .console import Tracking


class Measuring:
    """Progress of a benchmark; a signal that stops it ends it with a line on what it was at."""

    def __enter__(self) -> Measuring:
        self._begun_s = time.monotonic()
        self._doing = ""
        self._tracking = Tracking()
        self._track = self._tracking.__enter__()
        return self

    def __call__(self, name: str) -> Advance:
        """The progress callback of a named part."""
        advance, self._doing = self._track(name), name

        def noted(done: int, total: int, detail: str = "", begun: float = 0.0) -> None:
            self._doing = f"{name}, {done} of {total}" if done < total else ""
            advance(done, total, detail, begun)

        return noted

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._tracking.__exit__(kind, error, trace)
        self._seconds = time.monotonic() - self._begun_s
        if isinstance(error, KeyboardInterrupt):
            raise Stopped(measuring_stopped(asked_by(error), self._doing, sys.argv[1:])) from None

    def print_end(self, plot: Path | None, *, as_json: bool) -> None:
        """The last line: where the results are."""
        stream = sys.stderr if as_json else sys.stdout
        print(measured(self._seconds, plot, as_json=as_json).line, file=stream, flush=True)
