"""The images of a set as ImageNet ships them: folders, tars, tars within a tar, flat with labels.

    train/<class>/*.JPEG    train/<class>.tar    ILSVRC2012_img_train.tar (tars of classes in a tar)
    val/<class>/*.JPEG      val/ILSVRC2012_val_*.JPEG or ILSVRC2012_img_val.tar, with a label file
                            or ImageNet's development kit
    <class>/*.jpg           and train alone: a share of every class is held out in the place of val

All give the same list in the same order, so the packed set does not depend on the layout.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..config.errors import UserError
from ..config.reading import open_file, read_file
from .devkit import DEVKITS, is_devkit, read_devkit

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
LABEL_FILES = (
    "val_labels.txt",
    "imagenet_2012_validation_synset_labels.txt",
    "LOC_val_solution.csv",
    "val.txt",
)
_LAYOUT = "layout: train/<class>/*.JPEG, val/<class>/*.JPEG; docs/data.md names the others"
_KINDS = ".JPEG, .jpg, .png"
_MOST_NAMED = 10
_IMAGE_BYTES = 64 << 20  # the largest of ImageNet has 15 MB
_LABELS_BYTES = 16 << 20  # LOC_val_solution.csv has 2 MB


class Source(NamedTuple):
    """An image: a whole file, or `length` bytes from `offset` of a tar (length -1: whole)."""

    label: int
    name: str  # within the split, the same in every layout: "n01440764/n01440764_18.JPEG"
    path: str
    offset: int = 0
    length: int = -1

    def read(self) -> tuple[bytes, int]:
        """(bytes, time of the last change in ns). Raises OSError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:  # without a file object, which takes longer than reading a small image
            about = os.fstat(descriptor)
            wanted = about.st_size if self.length < 0 else self.length
            if wanted > _IMAGE_BYTES:
                raise OSError(0, f"at most {_IMAGE_BYTES:,} bytes expected, found {wanted:,}")
            image = os.pread(descriptor, wanted, self.offset)
            while len(image) < wanted:  # over a network a read may return less
                more = os.pread(descriptor, wanted - len(image), self.offset + len(image))
                if not more:
                    raise OSError(0, f"{wanted} bytes expected, found {len(image)}")
                image += more
        finally:
            os.close(descriptor)
        return image, about.st_mtime_ns

    def __str__(self) -> str:
        return self.path if self.length < 0 else f"{self.path}: {self.name}"


class Listing(NamedTuple):
    """What is there to pack."""

    classes: list[str]
    splits: dict[str, list[Source]]
    passed_over: Counter[str]
    """Files and folders that are no image of a class, by kind: ".webp", "hidden"."""


def list_images(
    images: Path, val_labels: Path | None = None, hold_out: float | None = None, seed: int = 0
) -> Listing:
    """Class names in order, and the images of `train` and `val`, sorted by class and name.

    Args:
        images: folder with one of the layouts above.
        val_labels: for a flat val: lines of a class in the order of the file names, or of
            "file class" or "file,class" with a class or its number from 0. Default: the first of
            LABEL_FILES in `images` or its val folder.
        hold_out: without a val: the share of every class of train that is taken for it, between 0
            and 1; one image at least, never all.
        seed: which images are held out.

    Raises:
        UserError: naming the folder, file or line.
    """
    over: Counter[str] = Counter()
    folder, found = _train_images(images, over)
    classes = sorted(found)
    if not classes:
        raise UserError(f"{folder}: a folder for each class expected, found none")
    numbers = {name: label for label, name in enumerate(classes)}
    train = [Source(numbers[name], *place) for name in classes for place in found[name]]
    if not train:
        kinds = f" ({named_kinds(over)})" if over else ""
        raise UserError(f"{folder}: images ({_KINDS}) expected, found none{kinds}")
    if empty := [str(folder / name) for name in classes if not found[name]]:
        raise UserError(f"{shortened(empty)}: images ({_KINDS}) expected, found none")
    if hold_out is None:
        val = list(_val_images(images, numbers, val_labels, over))
    else:
        train, val = _hold_out(images, train, hold_out, seed)
    if not val:
        raise UserError(f"{images / 'val'}: images ({_KINDS}) expected, found none")
    return Listing(classes, {"train": train, "val": val}, over)


def named_kinds(kinds: Counter[str]) -> str:
    """The counts in words: "12 .webp, 1 hidden"."""
    return shortened([f"{count:,} {kind}" for kind, count in kinds.most_common()])


def shortened(names: list[str], most: int = _MOST_NAMED) -> str:
    """The first names, and how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join(names[:most] + more)


_Place = tuple[str, str, int, int]  # the fields of a Source behind its label


def _train_images(images: Path, over: Counter[str]) -> tuple[Path, dict[str, list[_Place]]]:
    """(the folder of the classes, the images of each by name: also of classes without any)."""
    folder, outer = images / "train", images / TRAIN_TAR
    found: dict[str, list[_Place]] = {}
    if not folder.is_dir() and outer.is_file():
        for tar, offset, length in _members(str(outer), 0, outer.stat().st_size, "train"):
            found[tar[:-4]] = _in_tar(str(outer), offset, length, tar[:-4], over)
        return folder, found
    if not folder.is_dir():
        if not images.is_dir() or (images / "val").exists() or (images / VAL_TAR).exists():
            raise UserError(f"{folder}: a folder expected ({_LAYOUT}), found none")
        folder = images  # whose folders are the classes
    for entry in os.scandir(folder):
        if entry.is_dir() and not entry.name.startswith("."):
            found[entry.name] = _in_folder(entry.path, entry.name, over)
        elif entry.name.endswith(".tar") and folder != images:
            name, size = entry.name[:-4], entry.stat().st_size
            found[name] = _in_tar(entry.path, 0, size, name, over)
        else:
            over["outside a class folder"] += 1
    return folder, found


def _val_images(
    images: Path, numbers: dict[str, int], val_labels: Path | None, over: Counter[str]
) -> Iterator[Source]:
    """The images of val by class and name."""
    folder, tar = images / "val", images / VAL_TAR
    if folder.is_dir():
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        names = sorted(entry.name for entry in entries if entry.is_dir())
        if unknown := sorted(set(names) - set(numbers)):
            raise UserError(f"{folder}: classes of train/ expected, found {shortened(unknown)}")
        for name in names:
            for place in _in_folder(str(folder / name), name, over):
                yield Source(numbers[name], *place)
        if names and (loose := len(entries) - len(names)):
            over["outside a class folder"] += loose
        flat = [] if names else _in_folder(str(folder), "", over)
    elif tar.is_file():
        flat = _in_tar(str(tar), 0, tar.stat().st_size, "", over)
    else:
        raise UserError(
            f"{folder}: a folder expected ({_LAYOUT}), found none; "
            "or take a fifth of every class of train for it with --hold-out 0.2"
        )
    if not flat:
        return
    labels = _read_labels(val_labels or _find_labels(images), [p[0] for p in flat], numbers)
    classes = sorted(numbers)
    for label, (name, path, start, size) in sorted(zip(labels, flat, strict=True)):
        yield Source(label, f"{classes[label]}/{name}", path, start, size)


def _hold_out(
    images: Path, train: list[Source], share: float, seed: int
) -> tuple[list[Source], list[Source]]:
    """(what stays in train, what is held out), both sorted.

    The images with the lowest digests of seed and name are held out, so that a few more or fewer in
    a class change little.
    """
    for val in (images / "val", images / VAL_TAR):
        if val.exists():
            raise UserError(f"--hold-out: no {val} expected, found one, which is what evaluates")

    def digest(name: str) -> bytes:
        return hashlib.sha256(f"{seed}/{name}".encode(errors="surrogateescape")).digest()

    by_class: dict[int, list[Source]] = {}
    for source in train:
        by_class.setdefault(source.label, []).append(source)
    held = set()
    for sources in by_class.values():
        count = min(max(1, round(share * len(sources))), len(sources) - 1)
        held.update(sorted((source.name for source in sources), key=digest)[:count])
    return (
        [source for source in train if source.name not in held],
        [source for source in train if source.name in held],
    )


def _in_folder(folder: str, name: str, over: Counter[str]) -> list[_Place]:
    prefix = f"{name}/" if name else ""
    files = []
    for entry in os.scandir(folder):
        if _is_image(entry.name):
            files.append(entry.name)
        elif entry.name not in LABEL_FILES:
            over[_kind(entry.name)] += 1
    return [(prefix + file, f"{folder}/{file}", 0, -1) for file in sorted(files)]


def _in_tar(path: str, start: int, length: int, name: str, over: Counter[str]) -> list[_Place]:
    prefix = f"{name}/" if name else ""
    places = []
    for member, offset, size in _members(path, start, length, name or "val"):
        if _is_image(member):
            places.append((prefix + member, path, offset, size))
        else:
            over[_kind(member)] += 1
    return sorted(places)


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def _kind(name: str) -> str:
    """What kind of file is passed over; hidden ones are such as macOS's `._photo.jpg`."""
    return "hidden" if name.startswith(".") else Path(name).suffix.lower() or "without a suffix"


def _members(path: str, start: int, length: int, name: str) -> Iterator[tuple[str, int, int]]:
    """(base name, offset in `path`, bytes) of the files in a tar at `start` of `path`."""
    try:
        with open_file(Path(path)) as file:
            file.seek(start)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # a million would stay
                    offset = member.offset_data
                    if offset + member.size > start + length:
                        raise tarfile.ReadError(f"{member.name} at byte {offset} is truncated")
                    if member.isfile():
                        yield member.name.rpartition("/")[2], offset, member.size
    except (OSError, ValueError, tarfile.TarError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: {name}: a tar at byte {start} expected: {why}") from None


def _find_labels(images: Path) -> Path:
    for folder in (images, images / "val"):
        for name in (*LABEL_FILES, *DEVKITS):
            if (folder / name).exists():
                return folder / name
    raise UserError(
        f"{images / 'val'}: a folder for each class, ImageNet's {DEVKITS[0]}, or a label file "
        f"(--val-labels, or one of {', '.join(LABEL_FILES)}) expected, found images alone"
    )


def _labels_by_number(path: Path, files: list[str], numbers: dict[str, int]) -> list[int]:
    """The labels of `ILSVRC2012_val_00000001.JPEG` and so on, by ImageNet's development kit."""
    classes, labels = read_devkit(path), []
    for file in files:
        number = re.search(r"(\d{1,8})\.\w+$", file)
        place = int(number[1]) if number else 0
        if not 1 <= place <= len(classes):
            found = f"{len(classes):,} images"
            raise UserError(f"{path}: the class of {file} expected, found those of {found}")
        if classes[place - 1] not in numbers:
            raise UserError(
                f"{path}: {file}: a class of train/ expected, found {classes[place - 1]}"
            )
        labels.append(numbers[classes[place - 1]])
    return labels


_NUMBER = re.compile(r"[0-9]{1,9}")


def _read_labels(path: Path, files: list[str], numbers: dict[str, int]) -> list[int]:
    """The label of each of the sorted flat files."""
    if is_devkit(path):
        return _labels_by_number(path, files, numbers)
    try:
        lines = read_file(path, _LABELS_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: a label file expected: {why}") from None
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
        label = numbers.get(value, int(value) if name and _NUMBER.fullmatch(value) else -1)
        if not 0 <= label < len(numbers) or not name:
            raise UserError(
                f"{path}:{line}: a class of train/, or a file and its class or number from 0 to "
                f"{len(numbers) - 1} expected, found {value[:40]!r}"
            )
        labels[name.partition(".")[0]] = label
    if missing := [file for file in files if file.partition(".")[0] not in labels]:
        raise UserError(f"{path}: a line for {missing[0]} expected, found none in {len(words)}")
    return [labels[file.partition(".")[0]] for file in files]
