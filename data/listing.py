"""The images of a set: folders of photos, or ImageNet's tar files as they are published.

    train/<class>/*.JPEG    ILSVRC2012_img_train.tar (tars of classes in a tar)
    val/<class>/*.JPEG      val/ILSVRC2012_val_*.JPEG or ILSVRC2012_img_val.tar, with ImageNet's
                            development kit, ILSVRC2012_devkit_t12.tar.gz
    <class>/*.jpg           and train alone: a share of every class is held out in the place of val

All give the same list in the same order, so the packed set does not depend on the layout. What lies
there and is not packed is printed by kind.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..config.errors import UserError
from ..config.finding import printable
from ..config.reading import open_file

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")
TRAIN_TAR = "ILSVRC2012_img_train.tar"
VAL_TAR = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
"""Has the number of the class of each validation image, and the WordNet ID of each number."""
_IN_KIT = ("ILSVRC2012_validation_ground_truth.txt", "meta.mat")
_LAYOUT = (
    "layout: train/<class>/*.JPEG, val/<class>/*.JPEG; docs/data.md names the others"
)
_KINDS = ".jpg, .jpeg, .png, in any case"
_FLAT = ""
_LOOSE = "/"
"""In the place of a class: all of a val without classes; what lies beside the class folders."""
_MOST_NAMED = 10
_EXAMPLES = 3
_IMAGE_BYTES = 64 << 20  # the largest of ImageNet has 15 MB


class Place(NamedTuple):
    """A file: a whole one, or `length` bytes from `offset` of a tar (length -1: whole)."""

    name: (
        str  # within the split, the same in every layout: "n01440764/n01440764_18.JPEG"
    )
    path: str
    offset: int = 0
    length: int = -1


class SourceImage(NamedTuple):
    """An image of a class; the other fields are those of its Place."""

    label: int
    name: str
    path: str
    offset: int
    length: int

    def read(self) -> bytes:
        """The bytes of the image. Raises OSError."""
        whole = self.length < 0
        with open_file(Path(self.path), _IMAGE_BYTES if whole else None) as file:
            file.seek(self.offset)
            image = file.read(min(self.length, _IMAGE_BYTES))
        if not whole and len(image) != self.length:
            raise OSError(0, f"{self.length:,} bytes expected, found {len(image):,}")
        return image

    @property
    def listed(self) -> str:
        """The name as one line of UTF-8."""
        return printable(_in_utf8(self.name))

    def __str__(self) -> str:
        return _in_utf8(self.path if self.length < 0 else f"{self.path}: {self.name}")


def list_images(
    images: Path,
    hold_out: float | None = None,
    seed: int = 0,
    *,
    recursive: bool = False,
) -> tuple[list[str], dict[str, list[SourceImage]]]:
    """Class names in order, and the images of `train` and `val`, sorted by class and name. Prints
    what else lies there.

    Args:
        images: folder with one of the layouts above.
        hold_out: without a val: the share of every class of train that is taken for it, between 0
            and 1; one image at least, never all.
        seed: which images are held out.
        recursive: images in folders below that of a class are of the class.

    Raises:
        UserError: naming the folder or file.
    """
    found = _train_files(images)
    classes = sorted(found.keys() - {_LOOSE})
    if not classes:
        raise UserError(f"{images}: a folder for each class expected, found none")
    if not recursive:
        _refuse_nested(images, found)
    if len(classes) < 2:
        raise UserError(
            f"{images}: folders of two classes expected, found {classes[0]} alone"
        )
    beside = _beside_train(images)
    in_val = {}
    train = _sources(found, classes)
    seen = {source.label for source in train}
    if empty := [name for label, name in enumerate(classes) if label not in seen]:
        raise UserError(
            f"{images}: {shortened(empty)}: images ({_KINDS}) expected, found none"
        )
    if hold_out is not None:
        train, val = _hold_out(images, train, hold_out, seed)
    else:
        in_val = _val_files(images, beside)
        if not recursive:
            _refuse_nested(images / "val", in_val)
        if unknown := sorted(in_val.keys() - {*classes, _FLAT, _LOOSE}):
            raise UserError(
                f"{images}/val: classes of train expected, found {shortened(unknown)}"
            )
        flat = in_val.get(_FLAT)
        val = (
            _sources(in_val, classes) if flat is None else _label(flat, images, classes)
        )
    if not val:
        raise UserError(f"{images}/val: images ({_KINDS}) expected, found none")
    _print_left_out(images, beside, found, in_val)
    return [_in_utf8(name) for name in classes], {"train": train, "val": val}


def _refuse_nested(folder: Path, found: Mapping[str, list[Place]]) -> None:
    """Raises UserError: there are images in folders below that of a class."""
    below = Counter(
        "/".join(place.name.split("/")[:2])
        for places in found.values()
        for place in places
        if place.name.count("/") > 1 and _is_image(place)
    )
    if below:
        counts = [
            f"{name} (images: {count:,})" for name, count in sorted(below.items())
        ]
        raise UserError(
            f"{folder}: images right in the folders of the classes expected, found them in "
            f"{shortened(counts)}; --recursive takes them as images of the class"
        )


def _print_left_out(
    images: Path, beside: list[str], *splits: Mapping[str, list[Place]]
) -> None:
    """Print what is not packed, by kind."""
    names: dict[str, list[str]] = {"beside train": beside} if beside else {}
    for label, places in (item for found in splits for item in found.items()):
        for place in places:
            if label == _LOOSE or not _is_image(place):
                file = Path(place.name)
                kind = file.suffix.lower() or "without suffix"
                kind = "hidden" if file.name.startswith(".") else kind
                kind = "beside the class folders" if label == _LOOSE else kind
                names.setdefault(kind, []).append(place.name)
    kinds = [
        f"{len(of_kind):,} {kind} ({', '.join(sorted(of_kind)[:_EXAMPLES])})"
        for kind, of_kind in sorted(names.items())
    ]
    if kinds:
        print(printable(f"{images}: not packed: {'; '.join(kinds)}"), file=sys.stderr)


def _in_utf8(name: str) -> str:
    """A name on disk as a manifest can hold it: a byte that is not UTF-8 becomes \\xff."""
    return os.fsencode(name).decode(errors="backslashreplace")


def shortened(names: list[str]) -> str:
    """The first names, and how many more there are."""
    left = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED] + ([f"and {left} more"] if left > 0 else []))


def _sources(found: dict[str, list[Place]], classes: list[str]) -> list[SourceImage]:
    """The images of class folders."""
    return [
        SourceImage(label, *place)
        for label, name in enumerate(classes)
        for place in _images_of(found.get(name, []))
    ]


def _train_files(images: Path) -> dict[str, list[Place]]:
    """The files of each class of train."""
    folder = images / "train"
    tar = images / TRAIN_TAR
    if folder.is_dir():
        return _in_classes(folder)
    if tar.is_file():
        inner = _members(tar, 0)
        return {
            name[:-4]: _in_tar(tar, f"{name[:-4]}/", start) for name, start, _ in inner
        }
    if images.is_dir() and not _has_val(images):
        return _in_classes(images)
    missing = folder if images.is_dir() else images
    raise UserError(f"{missing}: a folder expected ({_LAYOUT}), found none")


def _val_files(images: Path, beside: list[str]) -> dict[str, list[Place]]:
    """The files of each class of val. `beside`: what may be meant where there is none."""
    folder = images / "val"
    tar = images / VAL_TAR
    if folder.is_dir():
        files = _in_classes(folder)
        return files if files.keys() != {_LOOSE} else {_FLAT: files[_LOOSE]}
    if tar.is_file():
        return {_FLAT: _in_tar(tar, "", 0)}
    raise UserError(
        f"{folder}: a folder expected ({_LAYOUT}), found {shortened(beside) or 'none'}; "
        "rename the one that is meant, or hold out a fifth of every class of train: --hold-out 0.2"
    )


def _beside_train(images: Path) -> list[str]:
    """What is neither train nor val beside these; folders end in a slash."""
    names = {entry.name + "/" * entry.is_dir() for entry in os.scandir(images)}
    if not names & {"train/", TRAIN_TAR}:
        return []
    return sorted(names - {"train/", "val/", TRAIN_TAR, VAL_TAR, DEVKIT})


def _has_val(images: Path) -> bool:
    return (images / "val").exists() or (images / VAL_TAR).exists()


def _hold_out(
    images: Path, train: list[SourceImage], share: float, seed: int
) -> tuple[list[SourceImage], list[SourceImage]]:
    """(what stays in train, what is held out), both sorted.

    The images with the lowest digests of seed and name are held out, so that a few more or fewer in
    a class change little.
    """
    if _has_val(images):
        raise UserError(f"--hold-out: {images} without a val expected, found one")

    def digest(source: SourceImage) -> bytes:
        text = f"{seed}/{source.name}"
        return hashlib.sha256(text.encode(errors="surrogateescape")).digest()

    by_class: dict[int, list[SourceImage]] = {}
    for source in train:
        by_class.setdefault(source.label, []).append(source)
    held = set[SourceImage]()
    for sources in by_class.values():
        count = min(max(1, round(share * len(sources))), len(sources) - 1)
        held.update(sorted(sources, key=digest)[:count])
    if not held:
        raise UserError(
            f"--hold-out: {images}: a class of two images expected, found none"
        )
    return [one for one in train if one not in held], [
        one for one in train if one in held
    ]


def _images_of(places: list[Place]) -> list[Place]:
    """The images among files, in order."""
    return sorted(filter(_is_image, places))


def _is_image(place: Place) -> bool:
    """By its name. Hidden files are such as a Mac's `._photo.jpg`."""
    name = place.name.rpartition("/")[2]
    return name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")


def _in_classes(folder: Path) -> dict[str, list[Place]]:
    """What lies in each folder of `folder`, and beside these."""
    places: dict[str, list[Place]] = {_LOOSE: []}
    for entry in os.scandir(folder):
        if entry.is_dir() and not entry.name.startswith("."):
            places[entry.name] = _in_folder(entry.path, f"{entry.name}/")
        else:
            places[_LOOSE].append(Place(entry.name, entry.path))
    return places


def _in_folder(folder: str, prefix: str) -> list[Place]:
    """The files of a class and of all folders below; a link to a folder, which may lead back, and
    a hidden folder are as files that are no images."""
    places = []
    left = [(folder, prefix)]
    while left:
        folder, prefix = left.pop()
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                left.append((entry.path, f"{prefix}{entry.name}/"))
            else:
                places.append(Place(prefix + entry.name, entry.path))
    return places


def _in_tar(tar: Path, prefix: str, start: int) -> list[Place]:
    members = _members(tar, start)
    return [
        Place(prefix + name, str(tar), offset, size) for name, offset, size in members
    ]


def _members(path: Path, start: int) -> Iterator[tuple[str, int, int]]:
    """(base name, offset in `path`, bytes) of the files in a tar that begins at `start`."""
    try:
        with open_file(path) as file:
            file.seek(start)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # a million would stay
                    if member.isfile():
                        yield (
                            member.name.rpartition("/")[2],
                            member.offset_data,
                            member.size,
                        )
    except (OSError, ValueError, tarfile.TarError) as error:
        raise UserError(f"{path}: a tar at byte {start} expected: {error}") from None


def _label(flat: list[Place], images: Path, classes: list[str]) -> list[SourceImage]:
    """The images of a flat val with their classes, sorted by class and name."""
    kit = images / DEVKIT
    if not kit.is_file():
        raise UserError(
            f"{images}/val: a folder for each class, or {kit}, expected, found neither"
        )
    class_of = _read_devkit(kit)
    numbers = {name: label for label, name in enumerate(classes)}
    sources = []
    for place in _images_of(flat):
        wnid = class_of.get(place.name.partition(".")[0], "none")
        if wnid not in numbers:
            raise UserError(
                f"{kit}: {place.name}: a class of train expected, found {wnid}"
            )
        sources.append(SourceImage(numbers[wnid], f"{wnid}/{place.name}", *place[1:]))
    return sorted(sources)


def _read_devkit(path: Path) -> dict[str, str]:
    """The WordNet ID of each validation image, by its name."""
    from scipy.io import loadmat  # 0.3 s

    try:
        with tarfile.open(path, "r:*") as tar:
            files = {
                member.name.rpartition("/")[2]: member
                for member in tar
                if member.isfile()
            }
            truth, meta = (
                tar.extractfile(files[name]) or io.BytesIO() for name in _IN_KIT
            )
            synsets = loadmat(io.BytesIO(meta.read()), squeeze_me=True)["synsets"]
            numbers = map(int, synsets["ILSVRC2012_ID"])
            wnids = dict(zip(numbers, map(str, synsets["WNID"]), strict=True))
            found = [wnids[int(line)] for line in truth.read().split()]
    except (
        LookupError,
        ValueError,
        TypeError,
        OSError,
        EOFError,
        tarfile.TarError,
    ) as error:
        raise UserError(
            f"{path}: ImageNet's development kit expected: {error}"
        ) from None
    return {f"ILSVRC2012_val_{number:08}": wnid for number, wnid in enumerate(found, 1)}
