"""Which image each rank sees at each step, and through which window. Pure functions of the seed.

The images of a run form one endless sample stream: a fresh permutation of the whole set for every
epoch, one after the other. Step s takes the next `global_batch_size` positions of the stream and
rank r its r-th share of them. So every epoch shows every image exactly once over all ranks,
whatever the number of ranks and the batch; the stream does not depend on either, and the position
in it is all there is to resume. Crop windows and flips are keyed by (seed, position): the same
image gets the same window on any machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.plan import Plan
from .dataset import Table

Indices = NDArray[np.int64]
Floats = NDArray[np.float32]
_ATTEMPTS = 10


class BatchIndices(NamedTuple):
    """Of one rank's batch: numbers of images, positions in the sample stream, epochs (from 1)."""

    images: Indices
    positions: Indices
    epochs: Indices


def _generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, *key))))


def epoch_order(samples: int, seed: int, epoch: int) -> Indices:
    """The order of all images in one epoch (0-based), from the shuffle stream's seed."""
    return _generator(seed, epoch).permutation(samples)


class TrainOrder:
    """Positions in the sample stream to image numbers.

    The permutation of the next epoch is drawn in a thread while this one is used: at 1.28 million
    images it takes as long as a step of a large machine, and would stand between two epochs.

    Args:
        plan: samples and batches. `last_batch` "mix" lets the last batch of an epoch run over into
            the next; "pad" fills it from the front of its own epoch, which then ends with a step.
        seed: of the shuffle stream.
    """

    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self._seed = seed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="epoch-order")
        self._orders: dict[int, Future[Indices]] = {}

    def active_steps(self, rank: int, first: int = 1) -> Iterator[int]:
        """Steps from `first` on in which `rank` has a share of the batch; ends with the last."""
        last = self._plan.segments[-1]
        endless = rank < last.active_ranks  # else a search beyond the last segment would not end
        for step in itertools.count(first) if endless else range(first, last.first_step + 1):
            if rank < self._plan.segment_of_step(step).active_ranks:
                yield step

    def batch(self, step: int, rank: int) -> BatchIndices:
        """The share of `rank` in the batch of `step`, counted from 1."""
        segment = self._plan.segment_of_step(step)
        first = segment.first_sample + (step - 1 - segment.first_step) * segment.global_batch_size
        first += rank * segment.per_rank
        positions = np.arange(first, first + segment.per_rank, dtype=np.int64)
        per_epoch = self._plan.samples_per_epoch(segment)
        start = 0 if self._plan.last_batch == "mix" else segment.first_sample
        epochs, within = np.divmod(positions - start, per_epoch)
        if self._plan.last_batch == "pad":
            epochs += segment.first_epoch - 1
            within %= self._plan.train_samples  # the padded positions
        images = np.empty(segment.per_rank, np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            images[chosen] = self._order(int(epoch))[within[chosen]]
        return BatchIndices(images, positions, epochs + 1)

    def _order(self, epoch: int) -> Indices:
        for wanted in (epoch, epoch + 1):
            if wanted not in self._orders:
                self._orders[wanted] = self._thread.submit(
                    epoch_order, self._plan.train_samples, self._seed, wanted
                )
        self._orders.pop(epoch - 2, None)
        return self._orders[epoch].result()


def eval_shard(samples: int, rank: int, ranks: int) -> tuple[int, int]:
    """[first, last) of the images that `rank` evaluates; the shards cover each image once."""
    return samples * rank // ranks, samples * (rank + 1) // ranks


def eval_batches(samples: int, ranks: int, batch_per_rank: int) -> int:
    """Batches that every rank runs in one evaluation: the same number on all of them."""
    largest_shard = -(-samples // ranks)
    return -(-largest_shard // batch_per_rank)


def eval_batch(
    samples: int, batch: int, *, rank: int, ranks: int, batch_per_rank: int
) -> tuple[Indices, NDArray[np.bool_]]:
    """(image numbers, which of them count) of evaluation batch `batch`, counted from 0.

    The last batches are filled with image 0, which then does not count.
    """
    first, last = eval_shard(samples, rank, ranks)
    images = np.arange(batch_per_rank, dtype=np.int64) + first + batch * batch_per_rank
    counts = images < last
    return np.where(counts, images, 0), counts


def crop_windows(
    heights: Floats,
    widths: Floats,
    positions: Indices,
    seed: int,
    *,
    area: tuple[float, float],
    aspect: tuple[float, float],
) -> tuple[Floats, Floats]:
    """Random-area crop windows as fractions: (anchors, shapes), each (batch, 2) in (y, x).

    Up to 10 attempts at a window of random area and aspect ratio (log-uniform) that fits into the
    image, else the largest centred window within the aspect range: the Inception crop of the
    MLPerf reference, with torchvision's and DALI's number of attempts.
    """
    batch = len(positions)
    u = uniforms(positions, seed, 4 * _ATTEMPTS).reshape(batch, _ATTEMPTS, 4)
    pixels = (heights * widths)[:, None]
    target = pixels * (area[0] + (area[1] - area[0]) * u[..., 0])
    low, high = np.log(aspect[0]), np.log(aspect[1])
    ratio = np.exp(low + (high - low) * u[..., 1])
    width = np.sqrt(target * ratio)
    height = np.sqrt(target / ratio)
    fits = (width <= widths[:, None]) & (height <= heights[:, None])
    first = fits.argmax(axis=1)
    rows = np.arange(batch)
    shape = np.stack([height[rows, first] / heights, width[rows, first] / widths], axis=1)
    shape[~fits.any(axis=1)] = _centred_shape(heights, widths, aspect)[~fits.any(axis=1)]
    # A little over a pixel at least, in images of a few pixels: an empty window does not decode.
    shape = np.clip(shape, np.minimum(1, 1.01 / np.stack([heights, widths], axis=1)), 1)
    anchor = (1 - shape) * u[rows, first, 2:]
    anchor[~fits.any(axis=1)] = (1 - shape[~fits.any(axis=1)]) / 2
    return anchor.astype(np.float32), shape.astype(np.float32)


def centre_windows(heights: Floats, widths: Floats, fraction: float) -> tuple[Floats, Floats]:
    """Square centre windows of `fraction` of the shorter side: the un-augmented training image."""
    side = np.minimum(heights, widths) * fraction
    shape = np.stack([side / heights, side / widths], axis=1)
    return ((1 - shape) / 2).astype(np.float32), shape.astype(np.float32)


def flips(positions: Indices, seed: int, *, enabled: bool = True) -> NDArray[np.int32]:
    """0 or 1 for each image: mirror it?"""
    if not enabled:
        return np.zeros(len(positions), np.int32)
    return (uniforms(positions, seed, 1)[:, 0] < 0.5).astype(np.int32)


def uniforms(positions: Indices, seed: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for each position, a function of (seed, position, column) alone.

    SplitMix64's finaliser over a counter: one vectorised pass for the whole batch, where a
    generator object for each image would cost 20 us apiece (Steele et al., OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        columns = np.arange(count, dtype=np.uint64)
        counter: NDArray[Any] = positions.astype(np.uint64)[:, None] * np.uint64(count) + columns
        z = np.uint64(seed) + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sizes(table: Table, images: Indices) -> tuple[Floats, Floats]:
    """(heights, widths) of the chosen images as float32."""
    rows = table[images]
    return rows["height"].astype(np.float32), rows["width"].astype(np.float32)


def _centred_shape(heights: Floats, widths: Floats, aspect: tuple[float, float]) -> Floats:
    ratio = np.clip(widths / heights, aspect[0], aspect[1])
    height = np.minimum(heights, widths / ratio)
    return np.stack([height / heights, height * ratio / widths], axis=1).astype(np.float32)
