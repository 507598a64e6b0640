"""`log.profile: norms`: at log points the norms of each tensor's weights and gradients.

Their ratio by layer is what LARS starts from (You et al., Table 3), and the first thing to look at
when a large batch diverges.
"""

from __future__ import annotations

import math

from ...config.plan import Plan
from ..schedule import Settings
from .optimizer import Measured, Updater

MOST_POINTS = 500
"""How many log points of a run have norms, in even distance: 26 kB each for ResNet-50, in a file of
which 64 MiB are read."""
_DIGITS = 6


class NormRecorder:
    """Updates by `step` in place of the updater's, and measures the steps of some log points."""

    def __init__(self, updater: Updater, plan: Plan) -> None:
        points = plan.last_step // plan.log_every_steps
        stride = max(1, math.ceil(points / MOST_POINTS))
        self._every_steps = stride * plan.log_every_steps
        self._updater = updater
        self._measured: Measured | None = None

    def step(self, step: int, settings: Settings) -> None:
        """Enqueue the update; waits for nothing."""
        if step % self._every_steps:
            self._updater.step(step, settings)
        else:
            self._measured = self._updater.measured_step(step, settings)

    def take(self) -> dict[str, dict[str, float]]:
        """The norms of the step before this log point, by quantity and tensor; empty where it was
        not measured. Waits for it."""
        if self._measured is None:
            return {}
        norms = self._updater.norms(self._measured)
        self._measured = None
        return {
            quantity: {
                name: float(f"{value:.{_DIGITS}g}") for name, value in row.items()
            }
            for quantity, row in norms.items()
            if row
        }
