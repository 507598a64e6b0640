"""When each step was done, without waiting for it: bounds the queue and keeps the times."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

RUN_AHEAD_STEPS = 2
"""Steps enqueued beyond the one that computes. Without a bound the queue grows between log points
and holds a batch of images for every step in it (38 MB for 64 images of 224 px)."""


class RunAheadLimiter:
    """Called after each enqueued step; keeps the host `RUN_AHEAD_STEPS` ahead of the device.

    The wait for the loss of two steps ago is the only one in the loop, and its end tells when that
    step's forward was done on the device, as long as the host is ahead. It goes on over the end of
    an epoch, so the time between two epochs is measured like that between two steps.
    """

    def __init__(self) -> None:
        self._running: deque[tuple[int, Any, Any]] = deque()
        self._done: list[tuple[int, float]] = []
        self.first_enqueued_s: float | None = None
        """When the first step since `drain_step_times` was enqueued (perf_counter)."""

    def __call__(self, step: int, losses: Any, batch: Any) -> None:
        """Note an enqueued step; its batch is kept until it has been used."""
        if self.first_enqueued_s is None:
            self.first_enqueued_s = time.perf_counter()
        self._running.append((step, losses, batch))
        if len(self._running) > RUN_AHEAD_STEPS + 1:
            ahead, loss, _ = self._running[1]
            loss.wait_to_read()
            self._done.append((ahead, time.perf_counter()))
            self._running.popleft()  # the step before that one is done with its batch

    def drain_step_times(self) -> list[tuple[int, float]]:
        """(step, time at which its forward was done) since the last call; ends the interval.

        For a point where everything enqueued has been waited for.
        """
        done, self._done = self._done, []
        self._running.clear()
        self.first_enqueued_s = None
        return done


class EpochBoundaryTimes(NamedTuple):
    """Time from step to step, in seconds, of a block of epochs."""

    step_s: float
    """Median inside epochs."""
    epoch_boundary_s: tuple[float, ...]
    """From the last step of an epoch to the first of the next, for each boundary in the block."""


def boundaries(
    done: Sequence[tuple[int, float]], last_steps: Sequence[int]
) -> EpochBoundaryTimes | None:
    """Sort the intervals between consecutive steps into plain ones and epoch boundaries.

    Args:
        done: from `RunAheadLimiter.drain_step_times`.
        last_steps: the last step of each epoch.

    Returns:
        None where no plain interval was seen.
    """
    lasts = set(last_steps)
    plain: list[float] = []
    between: list[float] = []
    for (step, start_s), (following, stop_s) in pairwise(done):
        if following == step + 1:
            (between if step in lasts else plain).append(stop_s - start_s)
    return EpochBoundaryTimes(statistics.median(plain), tuple(between)) if plain else None
