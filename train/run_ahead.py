"""How far the host runs ahead of the device, and the time from step to step."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

RUN_AHEAD_STEPS = 2
"""Steps enqueued beyond the one that computes. Without a bound the queue grows between log points
and holds a batch of images for every step in it (38 MB for 64 images of 224 px)."""


class RunAheadLimiter:
    """Called after each enqueued step; keeps the host `RUN_AHEAD_STEPS` ahead of the device.

    The wait for the loss of two steps ago is the only one in the loop. It goes on over the end of
    an epoch.
    """

    def __init__(self) -> None:
        self._running: deque[tuple[Any, Any]] = deque()

    def __call__(self, losses: Any, batch: Any) -> None:
        """Note an enqueued step; its batch is kept until it has been used."""
        self._running.append((losses, batch))
        if len(self._running) > RUN_AHEAD_STEPS + 1:
            self._running[1][0].wait_to_read()
            self._running.popleft()  # the step before that one is done with its batch

    def clear(self) -> None:
        """Everything enqueued has been waited for."""
        self._running.clear()


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
        done: from `StepTimes.end_block`.
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
