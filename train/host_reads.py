"""The places where the host waits for the device: numbers of a step and of an evaluation that it
reads, and the bound of the queue.

They stand here together because nothing else in a run may wait for the device. Where the fake GPU's
computing is switched off, a test replaces the functions (tests/gpu). Loads no framework.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

RUN_AHEAD_STEPS = 2
"""Steps enqueued beyond the one that computes. Without a bound the queue grows between log points
and holds a batch of images for every step in it (38 MB for 64 images of 224 px)."""
ALL_FINITE = (1 << 31) - 1
NO_SHARE = 0
"""A rank without losses of its own."""
_MOST_STEPS = 1000


def losses(sums: Any) -> list[float]:
    """The loss summed over all ranks since the last log point, and the ranks' stop flags."""
    return sums.asnumpy().tolist()


def counts(counts: Any) -> list[int]:
    """Images classified correctly, those with their class among the five highest, images seen: of
    an evaluation, over all ranks."""
    return counts.asnumpy().tolist()


def squares(sums: Any) -> NDArray[np.float64]:
    """Sums of squares of tensors: of a step, this rank's."""
    array: NDArray[np.float64] = sums.asnumpy().astype(float)
    return array


def finite(flag: Any) -> bool:
    """Were all gradients of a step finite? `flag` is 0 or 1, on the device or (resumed) not."""
    return bool(flag)


class LossTrail:
    """The running sums of this rank's losses, step by step, since the last log point whose loss was
    finite. They are read only after one that was not: a healthy step keeps a reference alone."""

    def __init__(self) -> None:
        self._sums: deque[tuple[int, Any]] = deque(maxlen=_MOST_STEPS)

    def __call__(self, step: int, loss_sum: Any) -> None:
        self._sums.append((step, loss_sum))

    def clear(self) -> None:
        """All losses so far were finite."""
        self._sums.clear()

    def first_not_finite(self) -> int:
        """The first step at which this rank's own losses were not finite, or ALL_FINITE, or
        NO_SHARE. Negative: since that step or later, as a plan sums in one array."""
        for step, loss_sum in self._sums:
            if not math.isfinite(loss_sum.asscalar()):
                steps = sum(array is loss_sum for _, array in self._sums)
                return step if steps == 1 else -step
        return ALL_FINITE if self._sums else NO_SHARE


class RunAheadLimiter:
    """Called after each enqueued step; keeps the host `RUN_AHEAD_STEPS` ahead of the device.

    The wait for the loss of two steps ago is the only one in the loop. It goes on over the end of
    an epoch. A step of an evaluation has its hits in place of losses.
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
