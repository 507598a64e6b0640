"""Images as files, folders of them, and what lies in a folder."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.conftest import write_file

Pixels = NDArray[np.uint8]


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def rough(seed: int, height: int, width: int) -> Pixels:
    """Noise: no pixel is like its neighbours."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (height, width, 3), np.uint8)


def noise(seed: int, kind: str = "JPEG") -> bytes:
    return encode(Image.fromarray(rough(seed, 16, 20)), kind)


def image_folder(folder: Path, counts: dict[str, int]) -> Path:
    """Images in ImageNet's layout; `counts` maps "train/class" to a number of images."""
    for name, count in counts.items():
        for number in range(count):
            write_file(folder / name / f"{number}.JPEG", noise(number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder and below it."""
    files = filter(Path.is_file, folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}
