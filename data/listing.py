"""The images of a set as ImageNet ships them: folders, tars, tars within a tar, flat with labels.

    train/<class>/*.JPEG    train/<class>.tar    ILSVRC2012_img_train.tar (tars of classes in a tar)
    val/<class>/*.JPEG      val/ILSVRC2012_val_*.JPEG or ILSVRC2012_img_val.tar, with a label file

All give the same list in the same order, so the packed set does not depend on the layout.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..config.errors import UserError

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
LABEL_FILES = (
    *("val_labels.txt", "imagenet_2012_validation_synset_labels.txt"),
    *("LOC_val_solution.csv", "val.txt"),
)
_LAYOUT = "layout: train/<class>/*.JPEG, val/<class>/*.JPEG; docs/data.md names the others"


class Source(NamedTuple):
    """An image: a whole file, or `length` bytes from `offset` of a tar (length -1: whole)."""

    label: int
    name: str  # within the split, the same in every layout: "n01440764/n01440764_18.JPEG"
    path: str
    offset: int = 0
    length: int = -1

    def read(self) -> tuple[bytes, int]:
        """(bytes, time of the last change in ns). Raises OSError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            about = os.fstat(descriptor)
            wanted = about.st_size if self.length < 0 else self.length
            image = os.pread(descriptor, wanted, self.offset)
            while len(image) < wanted:  # a read returns 2 GiB at most, and less over a network
                more = os.pread(descriptor, wanted - len(image), self.offset + len(image))
                if not more:
                    raise OSError(0, f"{wanted} bytes expected, found {len(image)}")
                image += more
        finally:
            os.close(descriptor)
        return image, about.st_mtime_ns

    def __str__(self) -> str:
        return self.path if self.length < 0 else f"{self.path}: {self.name}"


def list_images(
    images: Path, val_labels: Path | None = None
) -> tuple[list[str], dict[str, list[Source]]]:
    """Class names in order, and the images of `train` and `val`, sorted by class and name.

    Args:
        images: folder with one of the layouts above.
        val_labels: for a flat val: lines of a class in the order of the file names, or of
            "file class" or "file,class" with a class or its number from 0. Default: the first of
            LABEL_FILES in `images` or its val folder.

    Raises:
        UserError: naming the folder, file or line.
    """
    found = dict(_train_images(images))
    classes = sorted(found)
    if not classes:
        raise UserError(f"{images / 'train'}: a folder for each class expected, found none")
    numbers = {name: label for label, name in enumerate(classes)}
    train = [Source(numbers[name], *place) for name in classes for place in found[name]]
    if not train:
        raise UserError(f"{images / 'train'}: images (.JPEG, .jpg, .png) expected, found none")
    if empty := [name for name in classes if not found[name]]:
        raise UserError(f"{images / 'train' / empty[0]}: images expected, found an empty folder")
    val = list(_val_images(images, numbers, val_labels))
    if not val:
        raise UserError(f"{images / 'val'}: images (.JPEG, .jpg, .png) expected, found none")
    return classes, {"train": train, "val": val}


_Place = tuple[str, str, int, int]  # the fields of a Source behind its label


def _train_images(images: Path) -> Iterator[tuple[str, list[_Place]]]:
    """(class, its images by name), also of classes without any."""
    folder, outer = images / "train", images / TRAIN_TAR
    if folder.is_dir():
        for entry in os.scandir(folder):
            if entry.is_dir():
                yield entry.name, _in_folder(entry.path, entry.name)
            elif entry.name.endswith(".tar"):
                name, size = entry.name[:-4], entry.stat().st_size
                yield name, _in_tar(entry.path, 0, size, name)
        return
    if not outer.is_file():
        raise UserError(f"{folder}: a folder expected ({_LAYOUT}), found none")
    for tar, offset, length in _members(str(outer), 0, outer.stat().st_size, "train"):
        if tar.endswith(".tar"):
            yield tar[:-4], _in_tar(str(outer), offset, length, tar[:-4])


def _val_images(images: Path, numbers: dict[str, int], val_labels: Path | None) -> Iterator[Source]:
    """The images of val by class and name."""
    folder, tar = images / "val", images / VAL_TAR
    if folder.is_dir():
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        if unknown := sorted(set(names) - set(numbers)):
            raise UserError(
                f"{folder / unknown[0]}: a class that train/ has too expected, "
                f"found {len(unknown)} that it has not"
            )
        for name in names:
            for place in _in_folder(str(folder / name), name):
                yield Source(numbers[name], *place)
        flat = [] if names else _in_folder(str(folder), "")
    elif tar.is_file():
        flat = _in_tar(str(tar), 0, tar.stat().st_size, "")
    else:
        raise UserError(f"{folder}: a folder expected ({_LAYOUT}), found none")
    if not flat:
        return
    labels = _read_labels(val_labels or _find_labels(images), [p[0] for p in flat], numbers)
    classes = sorted(numbers)
    for label, (name, path, start, size) in sorted(zip(labels, flat, strict=True)):
        yield Source(label, f"{classes[label]}/{name}", path, start, size)


def _in_folder(folder: str, name: str) -> list[_Place]:
    prefix = f"{name}/" if name else ""
    files = [entry.name for entry in os.scandir(folder)]
    return [
        (prefix + file, f"{folder}/{file}", 0, -1)
        for file in sorted(files)
        if file.lower().endswith(IMAGE_SUFFIXES)
    ]


def _in_tar(path: str, start: int, length: int, name: str) -> list[_Place]:
    prefix = f"{name}/" if name else ""
    return sorted(
        (prefix + member, path, offset, size)
        for member, offset, size in _members(path, start, length, name or "val")
        if member.lower().endswith(IMAGE_SUFFIXES)
    )


def _members(path: str, start: int, length: int, name: str) -> Iterator[tuple[str, int, int]]:
    """(base name, offset in `path`, bytes) of the files in a tar at `start` of `path`."""
    try:
        with Path(path).open("rb") as file:
            file.seek(start)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # a million would stay
                    offset = member.offset_data
                    if offset + member.size > start + length:
                        raise UserError(
                            f"{path}: {name}: {member.name} at byte {offset}: {member.size} bytes "
                            f"expected, found {start + length - offset} (truncated)"
                        )
                    if member.isfile():
                        yield member.name.rpartition("/")[2], offset, member.size
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"{path}: {name}: a tar at byte {start} expected: {error}") from None


def _find_labels(images: Path) -> Path:
    for folder in (images, images / "val"):
        for name in LABEL_FILES:
            if (folder / name).is_file():
                return folder / name
    raise UserError(
        f"{images / 'val'}: a folder for each class, or a label file (--val-labels, or one of "
        f"{', '.join(LABEL_FILES)}) expected, found images alone"
    )


def _read_labels(path: Path, files: list[str], numbers: dict[str, int]) -> list[int]:
    """The label of each of the sorted flat files."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: a label file expected: {error}") from None
    words = [(n, re.split(r"[\s,]+", line.strip())) for n, line in enumerate(lines, 1) if line]
    if words and words[0][1][0] == "ImageId":  # Kaggle's header
        words.pop(0)
    labels = {}
    for position, (line, parts) in enumerate(words):
        if len(parts) > 1:
            name, value = parts[:2]
        elif position < len(files) and parts[0] in numbers:
            name, value = files[position], parts[0]
        else:
            name, value = "", parts[0]
        label = numbers.get(value, int(value) if name and value.isdecimal() else -1)
        if not 0 <= label < len(numbers) or not name:
            raise UserError(
                f"{path}:{line}: a class of train/, or a file and its class or number from 0 to "
                f"{len(numbers) - 1} expected, found {value[:40]!r}"
            )
        labels[name.partition(".")[0]] = label
    if missing := [file for file in files if file.partition(".")[0] not in labels]:
        raise UserError(f"{path}: a line for {missing[0]} expected, found none in {len(words)}")
    return [labels[file.partition(".")[0]] for file in files]
