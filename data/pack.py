"""An image folder in ImageNet's layout to RecordIO: original bytes, no re-encoding."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from ..config.errors import UserError
from . import recordio
from .atomic import new_folder
from .dataset import FORMAT, SPLITS, SUFFIXES, TABLE, Manifest, Split, digest_file

IMAGE_SUFFIXES = frozenset((".jpeg", ".jpg", ".png"))
_FORMATS = ("JPEG", "PNG")  # ImageNet holds a PNG under a .JPEG name
_MAX_PX = 65_535  # the sample table has 16 bits for a side, as JPEG itself


def pack_images(
    images: Path,
    out: Path,
    *,
    shuffle_seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Pack `images`/{train,val}/<class>/* into `out`, which appears only when complete.

    Records are shuffled by `shuffle_seed`, so that readers which shuffle within a buffer mix
    classes as well. Classes are numbered by their sorted folder names.

    Raises:
        UserError: no images, a class without images, a file that is no image, no space.
    """
    classes, listing = _list_images(images)
    total = sum(len(files) for files in listing.values())
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    with new_folder(out) as folder:
        splits = {}
        for split in SPLITS:
            order = np.random.Generator(np.random.Philox(shuffle_seed)).permutation(
                len(listing[split])
            )
            _write_split(folder, split, [listing[split][i] for i in order], step)
            labels = np.load(folder / f"{split}.npy")["label"]
            splits[split] = Split(
                samples=len(labels),
                class_counts=np.bincount(labels, minlength=len(classes)).tolist(),
                files={suffix: digest_file(folder / f"{split}.{suffix}") for suffix in SUFFIXES},
            )
        manifest = Manifest(
            format=FORMAT, classes=classes, shuffle_seed=shuffle_seed, splits=splits
        )
        (folder / "manifest.json").write_text(manifest.to_json())
    return manifest


def image_size(image: bytes) -> tuple[int, int]:
    """(height, width) in pixels from the header, as stored. Raises ValueError if not an image."""
    if not image:
        raise ValueError("found an empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # size limits meant for untrusted web uploads
            width, height = Image.open(io.BytesIO(image), formats=_FORMATS).size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ValueError(f"found {image[:8]!r} at its start") from None
    if max(height, width) > _MAX_PX:
        raise ValueError(f"found {width} x {height} pixels, more than {_MAX_PX} along a side")
    return height, width


def decode_error(image: bytes) -> str | None:
    """Why an image does not decode, or None where it does."""
    try:
        with Image.open(io.BytesIO(image), formats=_FORMATS) as opened:
            opened.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return str(error)
    return None


def _list_images(images: Path) -> tuple[list[str], dict[str, list[tuple[int, Path]]]]:
    """Class names, and (label, file) of each split."""
    names: dict[str, list[str]] = {}
    for split in SPLITS:
        folder = images / split
        if not folder.is_dir():
            raise UserError(
                f"{folder}: a folder expected (layout: train/<class>/*.JPEG, val/<class>/*.JPEG), "
                "found none"
            )
        names[split] = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    classes = names["train"]
    if not classes:
        raise UserError(f"{images / 'train'}: a folder for each class expected, found none")
    if unknown := set(names["val"]) - set(classes):
        raise UserError(
            f"{images / 'val' / min(unknown)}: a class that train/ has too expected, "
            f"found {len(unknown)} that it has not"
        )
    listing = {}
    for split in SPLITS:
        files = [
            (label, path)
            for label, name in enumerate(classes)
            if (images / split / name).is_dir()
            for path in sorted((images / split / name).iterdir())
            if path.suffix.lower() in IMAGE_SUFFIXES
        ]
        if not files:
            raise UserError(f"{images / split}: images (.JPEG, .jpg, .png) expected, found none")
        listing[split] = files
    present = {label for label, _ in listing["train"]}
    if empty := [name for label, name in enumerate(classes) if label not in present]:
        raise UserError(f"{images / 'train' / empty[0]}: images expected, found an empty folder")
    return classes, listing


def _write_split(
    folder: Path, split: str, files: list[tuple[int, Path]], step: Callable[[], None]
) -> None:
    table = np.zeros(len(files), TABLE)
    offset = 0
    with (folder / f"{split}.rec").open("wb") as rec, (folder / f"{split}.idx").open("w") as idx:
        for number, (label, path) in enumerate(files):
            try:
                image = path.read_bytes()
            except OSError as error:
                raise UserError(f"{path}: cannot read: {error.strerror}") from None
            try:
                height, width = image_size(image)
                record = recordio.encode(label, number, image)
            except ValueError as error:
                raise UserError(f"{path}: a JPEG or PNG image expected, {error}") from None
            length = 0 if recordio.is_split(record) else len(image)
            table[number] = (offset, length, label, height, width)
            rec.write(record)
            idx.write(f"{number}\t{offset}\n")
            offset += len(record)
            step()
    np.save(folder / f"{split}.npy", table)
