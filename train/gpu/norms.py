"""Which batch norm a GPU runs, by its compute capability and batch, and how our own kernels divide
their work."""

from __future__ import annotations

import math
import sys
from enum import Enum
from typing import NamedTuple

from .module import THREADS


class Norms(Enum):
    """What computes the statistics of a training step's batch norms, and what applies them."""

    CUDNN = "cuDNN's batch norm: reads once, needs all multiprocessors at a time"
    OWN = "our kernels: statistics, then scale, shift, sum and ReLU"
    EPILOGUE = "cuDNN's convolutions sum their results; our kernels apply"
    MAIN_LOOP = "the same; the next convolution applies the norm that it reads"


class Row(NamedTuple):
    """The norms of a step of so many images at most."""

    images: int
    norms: Norms


ANY = sys.maxsize
_MIB = 1 << 20


class Gpu(NamedTuple):
    """A GPU of a compute capability: the largest that is common."""

    multiprocessors: int
    cache_bytes: int
    rows: tuple[Row, ...] = (Row(ANY, Norms.CUDNN),)
    """The norms that a card of this capability ran fastest; cuDNN's where none was measured."""


# By their multiprocessors V100, T4, A100, A40, L40 and H100.
TABLE = {
    (7, 0): Gpu(80, 6 * _MIB),
    (7, 5): Gpu(40, 4 * _MIB),
    (8, 0): Gpu(108, 40 * _MIB),
    (8, 6): Gpu(84, 6 * _MIB),
    (8, 9): Gpu(142, 48 * _MIB),
    (9, 0): Gpu(132, 50 * _MIB),
}

VECTOR_BYTES = 16
LANES = 8
"""Columns of 16 bytes that a block has side by side: a line of the cache."""
SUM_ROWS = 4
APPLY_ROWS = 2
"""Rows that a thread has in flight (device.cu)."""
BLOCKS = 4
"""Blocks of one multiprocessor."""
FEW_ROWS = 2048
"""The most rows of which one block does all of a column, so that the norm is one launch."""


def gpu_of(capability: tuple[int, int]) -> Gpu:
    """The row of a capability, or of the last before it."""
    return TABLE[max(row for row in TABLE if row <= capability)]


def choose(capability: tuple[int, int], images: int) -> Norms:
    """The norms of a training step of so many images."""
    rows = gpu_of(capability).rows
    return next(row.norms for row in rows if images <= row.images)


class Launch(NamedTuple):
    """The launch of one of our kernels: its blocks, and how they divide maps."""

    blocks: int
    rows: int
    channels: int
    lanes: int
    slices: int

    @property
    def maps(self) -> tuple[int, int, int, int]:
        """The kernel's arguments that say how it divides maps."""
        return self[1:]

    @property
    def partials_bytes(self) -> int:
        """The memory for two sums a channel and slice."""
        return 8 * self.channels * self.slices


class Division:
    """How the kernels divide maps of rows (pixels of all images) and channels.

    Args:
        gpu: which runs the kernels.
        rows: of the maps.
        channels: of a row.
        item_bytes: of a value.
    """

    def __init__(self, gpu: Gpu, rows: int, channels: int, item_bytes: int) -> None:
        self._gpu = gpu
        self._rows = rows
        self._channels = channels
        # rows of another number of channels do not begin at a multiple of 16 bytes
        wide = VECTOR_BYTES // item_bytes
        self.column_channels = 1 if channels % wide else wide
        """The channels of a thread."""
        self._columns = channels // self.column_channels
        self._size_bytes = rows * channels * item_bytes

    def is_one_launch(self, tensors: int) -> bool:
        """Whether so many tensors of these maps stay in the cache, and a block takes few turns."""
        fits = tensors * self._size_bytes <= self._gpu.cache_bytes
        return fits and self._rows <= FEW_ROWS

    def whole(self) -> Launch:
        """The launch of a kernel that gives each block a column with all rows."""
        return self._launch(1, 1)

    def sums(self) -> Launch:
        """The launch of a kernel that sums. The last block of a column adds up its slices, so that
        these are no more than it reads in the time of the others."""
        # with s slices a block takes chunks / s turns, and the last one more turns the larger s is
        chunks = self._chunks(SUM_ROWS)
        return self._launch(LANES, min(8 * math.isqrt(chunks), self._most(chunks)))

    def apply(self) -> Launch:
        """The launch of a kernel that works element by element."""
        return self._launch(LANES, self._most(self._chunks(APPLY_ROWS)))

    def _chunks(self, in_flight: int) -> int:
        """How many times a block has to take up rows, if one block did them all."""
        lanes = min(LANES, self._columns)
        return -(-self._rows // (THREADS // lanes * in_flight))

    def _most(self, chunks: int) -> int:
        """Slices that occupy all multiprocessors."""
        groups = -(-self._columns // LANES)
        return max(1, min(chunks, BLOCKS * self._gpu.multiprocessors // groups))

    def _launch(self, lanes: int, slices: int) -> Launch:
        groups = -(-self._columns // lanes)
        return Launch(groups * slices, self._rows, self._channels, lanes, slices)
