"""How far the host runs ahead of the device."""

from __future__ import annotations

from collections import deque
from typing import Any

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
