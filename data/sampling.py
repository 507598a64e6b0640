"""Which image each rank sees at each step, and through which window. Pure functions of the seed.

The images of a run form one endless sample stream: a fresh permutation of the whole set for every
epoch, one after the other. Step s takes the next `global_batch_size` positions of the stream and
rank r its r-th share of them. So every epoch shows every image exactly once over all ranks,
whatever the number of ranks and the batch; the stream does not depend on either, and the position
in it is all there is to resume. With `data.shards: node` each node has a stream of its own, over
its part of the set, and takes its share of every batch from it; the number of nodes has to stay.
Crop windows, flips and the operations of `data.augmentation` are keyed by (seed, position): the
same image gets the same window on any machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.manifest import WHOLE, Part
from ..config.plan import Plan

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


def epoch_order(
    samples: int,
    seed: int,
    epoch: int,
    part: Part = WHOLE,
) -> Indices:
    """The order of all images in one epoch (0-based), or of those of a part, from the shuffle
    stream's seed."""
    first, last = part.images(samples)
    key = (epoch,) if part == WHOLE else (epoch, *part)
    return first + _generator(seed, *key).permutation(last - first)


class TrainOrder:
    """Positions in the sample stream to image numbers.

    The permutation of the next epoch is drawn in a thread while this one is used: at 1.28 million
    images it takes as long as a step of a large machine, and would stand between two epochs.

    Args:
        plan: samples and batches. `last_batch` "mix" lets the last batch of an epoch run over into
            the next; "pad" fills it from the front of its own epoch, which then ends with a step.
        seed: of the shuffle stream.
        stored_from: from this epoch on (counted from 1) images come in stored order.
    """

    def __init__(
        self,
        plan: Plan,
        seed: int,
        stored_from: float = math.inf,
    ) -> None:
        self._plan = plan
        self._seed = seed
        self._stored_from = stored_from
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="epoch-order")
        self._orders: dict[tuple[int, Part], Future[Indices]] = {}

    def active_steps(self, rank: int, first: int = 1) -> Iterator[int]:
        """Steps from `first` on in which `rank` has a share of the batch; ends with the last."""
        last = self._plan.segments[-1]
        # else a search beyond the last segment would not end
        endless = rank < last.active_ranks
        for step in (
            itertools.count(first) if endless else range(first, last.first_step + 1)
        ):
            if rank < self._plan.segment_of_step(step).active_ranks:
                yield step

    def batch(self, step: int, rank: int) -> BatchIndices:
        """The share of `rank` in the batch of `step`, counted from 1."""
        segment = self._plan.segment_of_step(step)
        first = (
            segment.first_sample
            + (step - 1 - segment.first_step) * segment.global_batch_size
        )
        first += rank * segment.per_rank
        positions = np.arange(
            first,
            first + segment.per_rank,
            dtype=np.int64,
        )
        per_epoch = self._plan.samples_per_epoch(segment)
        start = 0 if self._plan.last_batch == "mix" else segment.first_sample
        epochs, within = np.divmod(positions - start, per_epoch)
        part = self._plan.part_of(rank)
        lowest, beyond = part.images(self._plan.train_samples)
        if self._plan.last_batch == "pad":
            epochs += segment.first_epoch - 1
            # of the ranks that share the part
            batch = segment.global_batch_size // part.parts
            steps, places = np.divmod(within, segment.global_batch_size)
            # the padded positions
            within = (steps * batch + places % batch) % (beyond - lowest)
        images = lowest + within
        for epoch in np.unique(epochs[epochs + 1 < self._stored_from]):
            chosen = epochs == epoch
            images[chosen] = self._order(int(epoch), part)[within[chosen]]
        return BatchIndices(images, positions, epochs + 1)

    def _order(self, epoch: int, part: Part) -> Indices:
        for wanted in (epoch, epoch + 1):
            if (wanted, part) not in self._orders:
                self._orders[wanted, part] = self._thread.submit(
                    epoch_order, self._plan.train_samples, self._seed, wanted, part
                )
        self._orders.pop((epoch - 2, part), None)
        return self._orders[epoch, part].result()


def eval_batches(samples: int, ranks: int, batch_per_rank: int) -> int:
    """Batches that every rank runs in one evaluation: the same number on all of them."""
    largest_shard = -(-samples // ranks)
    return -(-largest_shard // batch_per_rank)


def eval_batch(
    samples: int, batch: int, *, rank: int, ranks: int, batch_per_rank: int
) -> tuple[Indices, NDArray[np.bool_]]:
    """(image numbers, which of them count) of evaluation batch `batch`, counted from 0.

    The shards of the ranks cover each image once. The last batches are filled with image 0, which
    then does not count.
    """
    first = samples * rank // ranks
    last = samples * (rank + 1) // ranks
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
    low = np.log(aspect[0])
    high = np.log(aspect[1])
    ratio = np.exp(low + (high - low) * u[..., 1])
    width = np.sqrt(target * ratio)
    height = np.sqrt(target / ratio)
    fits = (width <= widths[:, None]) & (height <= heights[:, None])
    first = fits.argmax(axis=1)
    rows = np.arange(batch)
    shape = np.stack(
        [height[rows, first] / heights, width[rows, first] / widths], axis=1
    )
    none = ~fits.any(axis=1)
    ratio_of_all = np.clip(widths / heights, aspect[0], aspect[1])
    highest = np.minimum(heights, widths / ratio_of_all)
    whole = np.stack([highest / heights, highest * ratio_of_all / widths], axis=1)
    shape[none] = whole.astype(np.float32)[none]
    # A little over a pixel at least, in images of a few pixels: an empty window does not decode.
    shape = np.clip(shape, np.minimum(1, 1.01 / np.stack([heights, widths], axis=1)), 1)
    anchor = (1 - shape) * u[rows, first, 2:]
    anchor[none] = (1 - shape[none]) / 2
    return anchor.astype(np.float32), shape.astype(np.float32)


def centre_windows(
    heights: Floats, widths: Floats, fraction: float
) -> tuple[Floats, Floats]:
    """Square centre windows of `fraction` of the shorter side: the un-augmented training image."""
    side = np.minimum(heights, widths) * fraction
    shape = np.stack([side / heights, side / widths], axis=1)
    return ((1 - shape) / 2).astype(np.float32), shape.astype(np.float32)


def flips(positions: Indices, seed: int, *, enabled: bool = True) -> NDArray[np.int32]:
    """0 or 1 for each image: mirror it?"""
    if not enabled:
        return np.zeros(len(positions), np.int32)
    return (uniforms(positions, seed, 1)[:, 0] < 0.5).astype(np.int32)


def operations(
    positions: Indices,
    seed: int,
    ranges: Mapping[str, tuple[float, float]],
    off: NDArray[np.bool_],
    crop_px: int,
) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """The operations of `data.augmentation` on a batch, drawn as nnabla's F.image_augmentation
    draws them, without its radial distortion (src/nbla/function/generic/image_augmentation.cpp).

    Args:
        ranges: of the operations that are on.
        off: (batch,), the images that stay as they are.
        crop_px: side of the output.

    Returns:
        (batch, 2, 3), matrices from output pixels (x, y, 1) to shares of the window (x, y);
        (batch, 3, 3), factor, summand and noise (0 to 255) of each channel;
        (batch, 1), where the image's noise starts in `noise_tile`.
    """
    u = uniforms(positions, seed, 14)

    def draw(
        name: str, neutral: int, first: int, count: int = 1
    ) -> NDArray[np.float64]:
        low, high = ranges.get(name, (neutral, neutral))
        part = u[:, first : first + count]
        drawn = low * (high / low) ** part if neutral else low + (high - low) * part
        return np.where(off[:, None], neutral, drawn)

    padding = draw("padding", 0, 0)
    angle = np.deg2rad(draw("rotation_deg", 0, 1))
    stretch = np.sqrt(draw("aspect", 1, 2))
    view = np.hstack([1 / stretch, stretch]) / draw("scale", 1, 3)
    turn = np.hstack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)])
    linear = turn.reshape(-1, 2, 2) * view[:, None]
    centre = u[:, 4:6] * (1 + 2 * padding - view) + view / 2 - padding
    matrices = np.dstack([linear / crop_px, centre - linear.sum(axis=2) / 2])
    gain = draw("contrast", 1, 6, 3)
    noise = 255 * draw("noise", 0, 12)
    summand = (255 * draw("brightness", 0, 9, 3) - 127.5) * gain + 127.5
    colours = np.stack([gain, summand, np.repeat(noise, 3, axis=1)], axis=1)
    starts = (u[:, 13:] * (3 * crop_px**2 + 1)).astype(np.int32)
    return matrices.astype(np.float32), colours.astype(np.float32), starts


def noise_tile(seed: int, crop_px: int) -> Floats:
    """Standard normal noise, flat and twice as long as an image. Each image takes a part of it: the
    same on any rank, without the state of a generator that a resumed run would have to restore."""
    return _generator(seed).standard_normal(6 * crop_px**2).astype(np.float32)


def uniforms(positions: Indices, seed: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) for each position, a function of (seed, position, column) alone.

    SplitMix64's finaliser over a counter: one vectorised pass for the whole batch, where a
    generator object for each image would cost 20 us apiece (Steele et al., OOPSLA 2014).
    """
    with np.errstate(over="ignore"):
        columns = np.arange(count, dtype=np.uint64)
        counter: NDArray[Any] = (
            positions.astype(np.uint64)[:, None] * np.uint64(count) + columns
        )
        z = np.uint64(seed) + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
