"""The numbers of a step and of an evaluation that the host reads off the device; each read waits.

They stand here together because nothing else in a run may wait for the device, and because a test
bed whose kernels compute nothing (tests/gpu) has to answer for the device here, and only here.
"""

from __future__ import annotations

from typing import Any


class HostReads:
    """Reads as they are; loads no framework."""

    def losses(self, sums: Any) -> list[float]:
        """The loss summed over all ranks since the last log point, and the ranks' stop flags."""
        return sums.asnumpy().tolist()

    def counts(self, counts: Any) -> tuple[int, int, int]:
        """(images classified correctly, those with their class among the five highest, images seen)
        of an evaluation, over all ranks."""
        correct, correct_top5, total = (int(count) for count in counts.asnumpy())
        return correct, correct_top5, total

    def finite(self, flag: Any) -> bool:
        """Were all gradients of a step finite? `flag` is 0 or 1, on the device or (resumed) not."""
        return bool(flag)
