"""The generated image set: texture classes, drawn from a seed, as real JPEG files.

The first ten classes differ by texture and structure alone: colours, contrast, size, phase, scale
and noise are drawn at random for every image. From the eleventh on two textures lie over each
other, and from the 101st on the lighter colour has a hue of ten. Layout as ImageNet's:
`train/<wnid>/<wnid>_<n>.JPEG` and `val/<wnid>/...`.
"""

from __future__ import annotations

import io
import os
from colorsys import hsv_to_rgb
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..config.manifest import SPLITS
from ..config.schema import Synthetic
from ..host.atomic import follow_links, refuse_content
from ..host.progress import Progress, silent
from .sampling import generator
from .workspace import workspace

Plane = NDArray[np.floating[Any]]  # float32, which NumPy 2's types forget
Random = np.random.Generator
JPEG_QUALITY = 90
_END = b"\xff\xd9"


# A scalar that meets a plane is Python's own: NumPy 2 would turn the plane into float64 for one of
# NumPy's, NumPy 1 does not, and the images would differ.


class Canvas(NamedTuple):
    """The places of all pixels in periods, and the stream that a pattern draws from."""

    y: Plane
    x: Plane
    random: Random


def _waves(phase: Plane) -> Plane:
    """A stripe pattern, period 1, between 0 and 1 with soft edges."""
    wave = np.sin(2 * np.pi * phase)
    return np.clip(0.5 + 2.0 * wave, 0, 1)


def _gradient(canvas: Canvas) -> Plane:
    y, x, random = canvas
    angle = random.uniform(0, 2 * np.pi)
    cos = float(np.cos(angle))
    sin = float(np.sin(angle))
    ramp = cos * y + sin * x
    ramp -= ramp.min()
    return ramp / np.ptp(ramp)


def _horizontal(canvas: Canvas) -> Plane:
    y, x, random = canvas
    bend = np.sin(x + random.uniform(0, 6))
    return _waves(y + 0.05 * bend)


def _vertical(canvas: Canvas) -> Plane:
    y, x, random = canvas
    return _horizontal(Canvas(x, y, random))


def _diagonal(canvas: Canvas) -> Plane:
    y, x, random = canvas
    slope = float(random.choice((-1.0, 1.0)))
    return _waves((y + slope * x) * 0.7)


def _checker(canvas: Canvas) -> Plane:
    y, x, _ = canvas
    row = np.floor(y * 1.4)
    column = np.floor(x * 1.4)
    return (row + column) % 2


def _dots(canvas: Canvas) -> Plane:
    y, x, random = canvas
    from_y = y % 1 - 0.5
    from_x = x % 1 - 0.5
    inside = from_y**2 + from_x**2 < random.uniform(0.06, 0.1)
    return inside.astype(np.float32)


def _grid(canvas: Canvas) -> Plane:
    y, x, random = canvas
    width = random.uniform(0.15, 0.25)
    on_row = y % 1 < width
    on_column = x % 1 < width
    return (on_row | on_column).astype(np.float32)


def _rings(canvas: Canvas) -> Plane:
    y, x, random = canvas
    centre_y = _middle(y, random)
    centre_x = _middle(x, random)
    return _waves(np.hypot(y - centre_y, x - centre_x))


def _middle(along: Plane, random: Random) -> float:
    low = float(along.min())
    high = float(along.max())
    margin = 0.35 * float(np.ptp(along))
    return random.uniform(low + margin, high - margin)


def _blocks(canvas: Canvas) -> Plane:
    y, x, random = canvas
    values = random.random((64, 64), dtype=np.float32)
    row = np.floor(y * 2).astype(int)
    column = np.floor(x * 2).astype(int)
    return values[row % 64, column % 64]


def _zigzag(canvas: Canvas) -> Plane:
    y, x, _ = canvas
    slope = np.abs(x % 1 - 0.5)
    return _waves(y + 0.8 * slope)


PATTERNS = (
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


def draw_image(label: int, random: Random, settings: Synthetic) -> Image.Image:
    """One image of class `label`: the pattern in two random colours, random size, noise."""
    most_px = settings.max_px + 1
    height, width = random.integers(settings.min_px, most_px, 2)
    period_px = random.uniform(8.0, 14.0)
    shift_y, shift_x = random.uniform(0, 10, 2)
    rows = np.arange(height) / period_px + shift_y
    columns = np.arange(width) / period_px + shift_x
    y, x = np.meshgrid(
        rows.astype(np.float32), columns.astype(np.float32), indexing="ij"
    )
    canvas = Canvas(y, x, random)
    pattern = PATTERNS[label % 10](canvas)
    if label >= 10:
        draw_second = PATTERNS[label // 10 % 10]
        pattern = (pattern + draw_second(canvas)) / 2
    low, high = random.uniform(0, 255, (2, 3))
    # a pattern that nobody can see teaches nothing
    while np.abs(high - low).max() < 90:
        high = random.uniform(0, 255, 3)
    if label >= 100:
        low = low / 4
        hue = label // 100 / 10
        colour = hsv_to_rgb(hue, 1.0, 1.0)
        high = 255 * np.array(colour)
    noise = random.normal(0, 12, (height, width, 3))
    share = pattern[..., None]
    pixels = low + (high - low) * share + noise
    levels = np.clip(pixels, 0, 255)
    return Image.fromarray(levels.astype(np.uint8))


def draw_jpeg(settings: Synthetic, split: str, number: int) -> bytes:
    """An image of a split; it has a random stream of its own, keyed by (seed, split, number)."""
    key = SPLITS.index(split)
    random = generator(settings.seed, key, number)
    image = draw_image(number % settings.classes, random, settings)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def make_images(out: Path, settings: Synthetic, progress: Progress = silent) -> None:
    """Write the set below `out`, which must not exist yet.

    The folder appears only when it is complete; killed before that, the same call continues it.
    Raises UserError: it cannot be made or written, or another process draws it.
    """
    refuse_content(out)
    target = follow_links(out)
    counts = (settings.train_samples, settings.eval_samples)
    done = 0
    with workspace(target, settings.model_dump_json()) as folder:
        for split, label in product(SPLITS, range(settings.classes)):
            (folder / split / wnid(label)).mkdir(parents=True, exist_ok=True)
        for split, count in zip(SPLITS, counts, strict=True):
            for number in range(count):
                name = wnid(number % settings.classes)  # the classes in turn
                path = folder / split / name / f"{name}_{number}.JPEG"
                if not _is_whole(path):
                    path.write_bytes(draw_jpeg(settings, split, number))
                done += 1
                progress(done, sum(counts))
        (folder / "key").unlink()  # the workspace's: the set has images alone
        folder.replace(target)


def _is_whole(path: Path) -> bool:
    """Whether a JPEG is there to its end marker, which it has nowhere else."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_END)))
        return file.read() == _END
