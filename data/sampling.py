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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.manifest import WHOLE, Part
from ..config.plan import Plan

Indices = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bounds = tuple[float, float]
_ATTEMPTS = 10
_ELONGATED = 4
"""An image more than so many times as long as wide is cut to its middle. With images of noise the
middle alone gave up to 3 % of the values another level, by one, beyond this ratio; within it all
bits are as with the whole image."""


class Augmentation(NamedTuple):
    """An operation of `data.augmentation`: its columns of the uniforms, the value that leaves an
    image as it is, and the scale on which values are drawn."""

    columns: slice
    neutral: float
    scale: Literal["linear", "log"] = "linear"


# The columns of an image's uniforms, by what is drawn from them. Other columns are other images:
# their order is a part of the seed.
_AUGMENTATIONS = {
    "padding": Augmentation(slice(0, 1), 0),
    "rotation_deg": Augmentation(slice(1, 2), 0),
    "aspect": Augmentation(slice(2, 3), 1, "log"),
    "scale": Augmentation(slice(3, 4), 1, "log"),
    "contrast": Augmentation(slice(6, 9), 1, "log"),
    "brightness": Augmentation(slice(9, 12), 0),
    "noise": Augmentation(slice(12, 13), 0),
}
_CENTRE = slice(4, 6)
_NOISE_START = slice(13, 14)
_AUGMENTATION_COLUMNS = 14
# The columns of one attempt at a crop window.
_AREA = 0
_LOG_RATIO = 1
_ANCHOR = slice(2, 4)
_ATTEMPT_COLUMNS = 4


class BatchIndices(NamedTuple):
    """One rank's batch: numbers of images, positions in the sample stream, epochs (from 1)."""

    images: Indices
    positions: Indices
    epochs: Indices


def generator(*key: int) -> np.random.Generator:
    """A stream of random numbers of its own for each key, which begins with a seed."""
    seeds = np.random.SeedSequence(key)
    return np.random.Generator(np.random.Philox(seeds))


def epoch_order(samples: int, seed: int, epoch: int, part: Part = WHOLE) -> Indices:
    """The order of all images in one epoch (0-based), or of those of a part, from the shuffle
    stream's seed.

    Args:
        samples: of the whole set.
        seed: of the shuffle stream.
        epoch: from 0.
        part: of the set.
    """
    first, last = part.images(samples)
    of_part = () if part == WHOLE else part
    stream = generator(seed, epoch, *of_part)
    return first + stream.permutation(last - first)


class TrainOrder:
    """Positions in the sample stream to image numbers.

    The permutation of the next epoch is drawn in a thread while this one is used: at 1.28 million
    images it takes as long as a step of a large machine, and would stand between two epochs.

    Args:
        plan: samples and batches. `last_batch` "mix" lets the last batch of an epoch run over into
            the next; "pad" fills it from the front of its own epoch, which then ends with a step.
        seed: the shuffle stream's.
        stored_from: from this epoch on (counted from 1) images come in stored order.
    """

    def __init__(self, plan: Plan, seed: int, stored_from: float = math.inf) -> None:
        self._plan = plan
        self._seed = seed
        self._stored_from = stored_from
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="epoch-order")
        self._orders = dict[tuple[int, Part], Future[Indices]]()

    def active_steps(self, rank: int, first: int = 1) -> Iterator[int]:
        """Steps from `first` on in which `rank` has a share of the batch; ends with the last."""
        last = self._plan.segments[-1]
        steps: Iterable[int] = itertools.count(first)
        # a search beyond the last segment would not end
        if rank >= last.active_ranks:
            steps = range(first, last.first_step + 1)
        for step in steps:
            if rank < self._plan.segment_of_step(step).active_ranks:
                yield step

    def batch(self, step: int, rank: int) -> BatchIndices:
        """The share of `rank` in the batch of `step`, counted from 1."""
        plan = self._plan
        segment = plan.segment_of_step(step)
        first = plan.images_after(step - 1) + rank * segment.per_rank
        positions = np.arange(first, first + segment.per_rank)
        # the whole set, or with `data.shards` that of the rank's node
        part = plan.part_of(rank)
        lowest, beyond = part.images(plan.train_samples)
        if plan.last_batch == "mix":
            epochs, within = np.divmod(positions, plan.train_samples)
        else:
            global_batch = segment.global_batch_size
            epochs, in_epoch = np.divmod(
                positions - segment.first_sample, plan.samples_per_epoch(segment)
            )
            epochs += segment.first_epoch - 1
            steps, in_batch = np.divmod(in_epoch, global_batch)
            # The ranks that share the part have this share of a batch.
            shared_batch = global_batch // part.parts
            unpadded = steps * shared_batch + in_batch % shared_batch
            within = unpadded % (beyond - lowest)
        images = lowest + within
        shuffled = epochs + 1 < self._stored_from
        for epoch in np.unique(epochs[shuffled]):
            chosen = epochs == epoch
            order = self._order(int(epoch), part)
            images[chosen] = order[within[chosen]]
        return BatchIndices(images, positions, epochs + 1)

    def _order(self, epoch: int, part: Part) -> Indices:
        for needed in (epoch, epoch + 1):
            if (needed, part) not in self._orders:
                self._orders[needed, part] = self._thread.submit(
                    epoch_order, self._plan.train_samples, self._seed, needed, part
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

    Args:
        samples: of the evaluation set.
        batch: from 0.
        rank: whose shard it is.
        ranks: which share the set.
        batch_per_rank: images of a batch.
    """
    first, last = Part(rank, ranks).images(samples)
    images = first + batch * batch_per_rank + np.arange(batch_per_rank)
    counts = images < last
    return np.where(counts, images, 0), counts


def crop_windows(
    sides: Floats, positions: Indices, seed: int, *, area: Bounds, aspect: Bounds
) -> tuple[Floats, Floats]:
    """Random-area crop windows as fractions: (anchors, shapes), each (batch, 2) in (y, x).

    Up to 10 attempts at a window of random area and aspect ratio (log-uniform) that fits into the
    image, else the largest centred window within the aspect range: the Inception crop of the
    MLPerf reference, with torchvision's and DALI's number of attempts.

    Args:
        sides: (batch, 2), heights and widths of the images in pixels.
        positions: in the sample stream.
        seed: of the stream `augment`.
        area: smallest and largest share of the image.
        aspect: smallest and largest ratio of width to height.
    """
    # all attempts at once, whichever fits: 40 columns of each image
    u = uniforms(positions, seed, _ATTEMPTS * _ATTEMPT_COLUMNS)
    u = u.reshape(-1, _ATTEMPTS, _ATTEMPT_COLUMNS)
    pixels = sides.prod(axis=1, keepdims=True)
    pixels = pixels * _between(area, u[..., _AREA])
    narrow, wide = np.log(aspect)
    log_ratios = _between((narrow, wide), u[..., _LOG_RATIO])
    ratios = np.exp(log_ratios)
    squares = [pixels / ratios, pixels * ratios]
    attempts = np.sqrt(np.stack(squares, axis=2))
    fits = (attempts <= sides[:, None]).all(axis=2)
    first = fits.argmax(axis=1)
    rows = np.arange(len(positions))
    shapes = attempts[rows, first] / sides
    centred = ~fits.any(axis=1)
    shapes[centred] = _largest_windows(sides, aspect)[centred]
    # A little over a pixel at least, in images of a few pixels: an empty window does not decode.
    smallest = np.minimum(1, 1.01 / sides)
    shapes = np.clip(shapes, smallest, 1)
    u[centred] = 0.5  # where no attempt fits the window lies in the middle
    anchors = (1 - shapes) * u[rows, first, _ANCHOR]
    return (anchors.astype(np.float32), shapes.astype(np.float32))


def _largest_windows(sides: Floats, aspect: Bounds) -> Floats:
    """The shapes, in (y, x), of the largest windows within the aspect range."""
    heights, widths = sides.T
    ratios = np.clip(widths / heights, *aspect)
    highest = np.minimum(heights, widths / ratios)
    return np.stack([highest, highest * ratios], axis=1) / sides


def _between(bounds: Bounds, shares: Doubles) -> Doubles:
    low, high = bounds
    return low + (high - low) * shares


def centre_windows(sides: Floats, fraction: float) -> tuple[Floats, Floats]:
    """Square centre windows of `fraction` of the shorter side: the un-augmented training image."""
    shorter = sides.min(axis=1, keepdims=True)
    shapes = shorter * fraction / sides
    return (1 - shapes) / 2, shapes


def eval_windows(sides: Floats, resize_px: int) -> tuple[Floats, Floats]:
    """The begin and the end, in (y, x) pixels, of the part of an image that evaluation resizes and
    then crops: all of it, or of an image more than _ELONGATED times as long as wide its middle,
    since 1 x 10,000 pixels would become 256 x 2,560,000 (2 GB). A pixel of the crop has the same
    place in both: so many pixels are left that their number is odd or even as that of all was."""
    scales = resize_px / sides.min(axis=1, keepdims=True)
    pixels = np.floor(sides * scales + 0.5)
    limit_px = _ELONGATED * resize_px + pixels % 2
    shapes = np.where(pixels > limit_px, limit_px / scales, sides)
    starts = (sides - shapes) / 2
    return starts, starts + shapes


def flips(positions: Indices, seed: int) -> NDArray[np.int32]:
    """0 or 1 for each image: mirror it?"""
    u = uniforms(positions, seed, 1)[:, 0]
    return (u < 0.5).astype(np.int32)


def operations(
    positions: Indices,
    seed: int,
    ranges: Mapping[str, Bounds],
    off: NDArray[np.bool_],
    crop_px: int,
) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """The operations of `data.augmentation` on a batch, drawn as nnabla's F.image_augmentation
    draws them, without its radial distortion (src/nbla/function/generic/image_augmentation.cpp).

    Args:
        positions: in the sample stream.
        seed: of the stream `operations`.
        ranges: of the operations that are on.
        off: (batch,), the images that stay as they are.
        crop_px: side of the output.

    Returns:
        (batch, 2, 3), matrices from output pixels (x, y, 1) to shares of the window (x, y);
        (batch, 3, 3), factor, summand and noise (0 to 255) of each channel;
        (batch, 1), where the image's noise starts in `noise_tile`.
    """
    u = uniforms(positions, seed, _AUGMENTATION_COLUMNS)

    def draw(name: str) -> Doubles:
        """The values of an operation for each image."""
        columns, neutral, scale = _AUGMENTATIONS[name]
        low, high = ranges.get(name, (neutral, neutral))
        if scale == "log":
            values = low * (high / low) ** u[:, columns]
        else:
            values = _between((low, high), u[:, columns])
        return np.where(off[:, None], neutral, values)

    padding = draw("padding")
    angle = np.deg2rad(draw("rotation_deg"))
    stretch = np.sqrt(draw("aspect"))
    scale = draw("scale")
    view = np.hstack([1 / stretch, stretch]) / scale
    cos = np.cos(angle)
    sin = np.sin(angle)
    turn = np.hstack([cos, -sin, sin, cos])
    turn = turn.reshape(-1, 2, 2)
    linear = turn * view[:, None]
    room = 1 + 2 * padding - view
    centre = u[:, _CENTRE] * room
    centre = centre + view / 2 - padding
    # the output's first pixel: half of its diagonal before the centre, turned and stretched
    corner = centre - linear.sum(axis=2) / 2
    matrices = np.dstack([linear / crop_px, corner])
    gain = draw("contrast")
    brightness = 255 * draw("brightness")
    # contrast is about the middle of the levels
    summand = (brightness - 127.5) * gain + 127.5
    noise = draw("noise")
    noise = 255 * noise.repeat(3, axis=1)
    colours = np.stack([gain, summand, noise], axis=1)
    start_count = 3 * crop_px**2 + 1  # in a tile twice as long as an image
    starts = u[:, _NOISE_START] * start_count
    return (
        matrices.astype(np.float32),
        colours.astype(np.float32),
        starts.astype(np.int32),
    )


def noise_tile(seed: int, crop_px: int) -> Floats:
    """Standard normal noise, flat and twice as long as an image. Each image takes a part of it: the
    same on any rank, without the state of a generator that a resumed run would have to restore."""
    values = 2 * 3 * crop_px**2
    tile = generator(seed).standard_normal(values)
    return tile.astype(np.float32)


def uniforms(positions: Indices, seed: int, count: int) -> Doubles:
    """`count` numbers in [0, 1) for each position, a function of (seed, position, column) alone.

    SplitMix64's finaliser over a counter: one vectorised pass for the whole batch, where a
    generator object for each image would cost 20 us apiece (Steele et al., OOPSLA 2014).
    """
    columns = np.arange(1, count + 1, dtype=np.uint64)
    rows = positions.astype(np.uint64)[:, None]
    z: NDArray[Any] = rows * count + columns
    z = z * 0x9E3779B97F4A7C15 + seed
    z ^= z >> 30
    z *= 0xBF58476D1CE4E5B9
    z ^= z >> 27
    z *= 0x94D049BB133111EB
    z ^= z >> 31
    return (z >> 11) * 2.0**-53  # the 53 bits of a double's fraction
