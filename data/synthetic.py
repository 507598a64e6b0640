"""The generated image set: texture classes, drawn from a seed, as real JPEG files.

The first ten classes differ by texture and structure alone: colours, contrast, size, phase, scale
and noise are drawn at random for every image. From the eleventh on two textures lie over each
other, and from the 101st on the lighter colour has a hue of ten. Layout as ImageNet's:
`train/<wnid>/<wnid>_<n>.JPEG` and `val/<wnid>/...`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from colorsys import hsv_to_rgb
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config.atomic import new_folder
from ..config.schema import Synthetic

Plane = NDArray[np.floating[Any]]  # float32, which NumPy 2's types forget
JPEG_QUALITY = 90


# A scalar that meets a plane is Python's own: NumPy 2 would turn the plane into float64 for one of
# NumPy's, NumPy 1 does not, and the images would differ.


def _waves(phase: Plane) -> Plane:
    """A stripe pattern, period 1, between 0 and 1 with soft edges."""
    return np.clip(0.5 + 2.0 * np.sin(2 * np.pi * phase), 0, 1)


def _gradient(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    angle = rng.uniform(0, 2 * np.pi)
    ramp = float(np.cos(angle)) * y + float(np.sin(angle)) * x
    return (ramp - ramp.min()) / np.ptp(ramp)


def _horizontal(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    return _waves(y + 0.05 * np.sin(x + rng.uniform(0, 6)))


def _vertical(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    return _waves(x + 0.05 * np.sin(y + rng.uniform(0, 6)))


def _diagonal(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    return _waves((y + float(rng.choice((-1.0, 1.0))) * x) * 0.7)


def _checker(y: Plane, x: Plane, _: np.random.Generator) -> Plane:
    return ((np.floor(y * 1.4) + np.floor(x * 1.4)) % 2).astype(np.float32)


def _dots(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    return ((y % 1 - 0.5) ** 2 + (x % 1 - 0.5) ** 2 < rng.uniform(0.06, 0.1)).astype(
        np.float32
    )


def _grid(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    width = rng.uniform(0.15, 0.25)
    return ((y % 1 < width) | (x % 1 < width)).astype(np.float32)


def _rings(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    centre_y = _middle(y, rng)
    centre_x = _middle(x, rng)
    return _waves(np.hypot(y - centre_y, x - centre_x))


def _middle(along: Plane, rng: np.random.Generator) -> float:
    low = float(along.min())
    high = float(along.max())
    margin = 0.35 * float(np.ptp(along))
    return rng.uniform(low + margin, high - margin)


def _blocks(y: Plane, x: Plane, rng: np.random.Generator) -> Plane:
    values = rng.random((64, 64), dtype=np.float32)
    return values[np.floor(y * 2).astype(int) % 64, np.floor(x * 2).astype(int) % 64]


def _zigzag(y: Plane, x: Plane, _: np.random.Generator) -> Plane:
    return _waves(y + 0.8 * np.abs(x % 1 - 0.5))


PATTERNS: tuple[Callable[[Plane, Plane, np.random.Generator], Plane], ...] = (
    _gradient,
    _horizontal,
    _vertical,
    _diagonal,
    _checker,
    _dots,
    _grid,
    _rings,
    _blocks,
    _zigzag,
)


def wnid(label: int) -> str:
    """Folder name of a class, in the shape of ImageNet's (n + 8 digits)."""
    return f"n{90_000_000 + label:08d}"


def draw_image(
    label: int, rng: np.random.Generator, *, min_px: int, max_px: int
) -> Image.Image:
    """One image of class `label`: the pattern in two random colours, random size, noise."""
    height, width = rng.integers(min_px, max_px + 1, 2)
    period_px = rng.uniform(8.0, 14.0)
    shift = rng.uniform(0, 10, 2)
    y, x = np.meshgrid(
        (np.arange(height) / period_px + shift[0]).astype(np.float32),
        (np.arange(width) / period_px + shift[1]).astype(np.float32),
        indexing="ij",
    )
    pattern = PATTERNS[label % 10](y, x, rng)[..., None]
    if label >= 10:
        pattern = (pattern + PATTERNS[label // 10 % 10](y, x, rng)[..., None]) / 2
    low, high = rng.uniform(0, 255, (2, 3))
    # a pattern that nobody can see teaches nothing
    while np.abs(high - low).max() < 90:
        high = rng.uniform(0, 255, 3)
    if label >= 100:
        low = low / 4
        high = 255 * np.array(hsv_to_rgb(label // 100 / 10, 1.0, 1.0))
    pixels = low + (high - low) * pattern + rng.normal(0, 12, (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def draw_split(settings: Synthetic, split: str) -> Iterator[tuple[str, bytes]]:
    """Yield (relative path, JPEG bytes) of one split, classes in turn.

    Every image has its own random stream, keyed by (seed, split, number).
    """
    count = settings.train_samples if split == "train" else settings.eval_samples
    for number in range(count):
        label = number % settings.classes
        key = (settings.seed, ("train", "val").index(split), number)
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
        image = draw_image(
            label,
            rng,
            min_px=settings.min_px,
            max_px=settings.max_px,
        )
        out = io.BytesIO()
        image.save(out, "JPEG", quality=JPEG_QUALITY)
        yield f"{split}/{wnid(label)}/{wnid(label)}_{number}.JPEG", out.getvalue()


def make_images(
    out: Path,
    settings: Synthetic,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write the set below `out` (must not exist yet); returns the number of images.

    The folder appears only when it is complete. Raises UserError: it cannot be made or written.
    """
    total = settings.train_samples + settings.eval_samples
    with new_folder(out) as folder:
        for split, label in product(("train", "val"), range(settings.classes)):
            (folder / split / wnid(label)).mkdir(parents=True)
        drawn = chain(draw_split(settings, "train"), draw_split(settings, "val"))
        for done, (name, jpeg) in enumerate(drawn, 1):
            (folder / name).write_bytes(jpeg)
            progress(done, total)
    return total
