"""A benchmark as a command: its progress, its clock, its last line."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from ..config.finding import clock_time
from ..config.progress import Advance
from ..launch.ending import Ending, Stopped, asked_by, stopped
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
            again, doing = shlex.join(["rn50", *sys.argv[1:]]), self._doing or "starting"
            raise Stopped(stopped("measuring", asked_by(error), again, doing=doing)) from None

    def print_end(self, plot: Path | None, *, as_json: bool) -> None:
        """The last line: where the results are."""
        stream = sys.stderr if as_json else sys.stdout
        kept = "the JSON above" if as_json else "above (--json keeps all of them)"
        drawn = f"; plot: {plot}" if plot is not None else ""
        ending = Ending(f"measured in {clock_time(self._seconds)}; results: {kept}{drawn}")
        print(ending.line, file=stream, flush=True)
