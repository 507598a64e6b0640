"""Rank 0's lines for people: where the run is, how good, how fast, how long to go at most."""

from __future__ import annotations

import sys

from ..config.finding import clock_time
from ..config.plan import Plan

WARNING = "rn50: warning: "
"""Begins a warning, in stderr.log as well: there the launcher looks for it."""


def warn(text: str) -> None:
    """A warning of rank 0: at once to people, and to stderr.log, which the launcher quotes at the
    end."""
    for stream in (sys.stdout, sys.stderr):
        print(f"{WARNING}{text}", file=stream, flush=True)


class Progress:
    """Prints plain lines: they pass through mpirun, a batch log and a terminal alike."""

    def __init__(
        self,
        plan: Plan,
        target: float,
        *,
        shown: bool,
    ) -> None:
        self._plan = plan
        self._target = target
        self._shown = shown
        self._last_step = plan.last_step

    def say(self, text: str) -> None:
        if self._shown:
            print(text, flush=True)

    def trained(
        self,
        step: int,
        loss: float,
        lr: float,
        images_per_s: float,
        elapsed_s: float,
    ) -> None:
        """One line at a log point."""
        epoch = self._plan.epoch_at(step)
        images_after = self._plan.images_after
        left = images_after(self._last_step) - images_after(step)
        left_s = left / images_per_s
        width = len(str(self._last_step))
        self.say(
            f"  epoch {epoch:5.2f}  step {step:{width}}/{self._last_step}  loss {loss:.4f}  "
            f"lr {lr:.4g}  {images_per_s:.0f} images/s  {clock_time(elapsed_s)} elapsed  "
            f"at most {clock_time(left_s)} left"
        )

    def evaluated(
        self,
        epoch: int,
        correct: int,
        total: int,
        elapsed_s: float,
    ) -> None:
        """One line after an evaluation."""
        sign = ">=" if correct / total >= self._target else "<"
        self.say(
            f"* epoch {epoch}: accuracy {correct / total:.4f} ({correct}/{total}) "
            f"{sign} target {self._target}  "
            f"{clock_time(elapsed_s)} elapsed"
        )
