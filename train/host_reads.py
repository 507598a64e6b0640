"""Where the host waits for the device: numbers of a step and of an evaluation that it reads, and
the bound of the queue.

They stand here together because nothing else in a run may wait for the device. Where the fake GPU's
computing is switched off, a test replaces the three functions (tests/gpu). Loads no framework.
"""

from __future__ import annotations

from collections import deque
from typing import Any

RUN_AHEAD_STEPS = 2
"""Steps enqueued beyond the one that computes. Without a bound the queue grows between log points
and holds a batch of images for every step in it (38 MB for 64 images of 224 px)."""


def losses(sums: Any) -> list[float]:
    """The loss summed over all ranks since the last log point, and the ranks' stop flags."""
    return sums.asnumpy().tolist()


def counts(counts: Any) -> list[int]:
    """Images classified correctly, those with their class among the five highest, images seen: of
    an evaluation, over all ranks."""
    return counts.asnumpy().tolist()


def finite(flag: Any) -> bool:
    """Were all gradients of a step finite? `flag` is 0 or 1, on the device or (resumed) not."""
    return bool(flag)


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
