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
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, groupby
from operator import attrgetter
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
_RESERVED = (
    "a class cannot have the name train or val, which are those of a layout: rename it"
)
_OTHER_SPLITS = ("test/", "testing/", "valid/", "validation/")
_KINDS = ".jpg, .jpeg, .png, in any case"
_FLAT = ""
_LOOSE = "/"
"""In the place of a class: all of a val without classes; what lies beside the class folders."""
_MOST_NAMED = 10
_EXAMPLES = 3
_IMAGE_BYTES = 64 << 20  # the largest of ImageNet has 15 MB


class Place(NamedTuple):
    """A file: a whole one, or `length` bytes from `offset` of a tar (length -1: whole)."""

    name: str
    """Within the split, the same in every layout: "n01440764/n01440764_18.JPEG"."""
    path: str
    offset: int = 0
    length: int = -1


Files = dict[str, list[Place]]
"""The files of each class."""


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
        most_bytes = _IMAGE_BYTES if whole else None
        with open_file(Path(self.path), most_bytes) as file:
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
    hold_out: float | None,
    seed: int,
    *,
    recursive: bool,
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
    train_files = _train_files(images)
    classes = sorted(train_files.keys() - {_LOOSE})
    if not classes:
        raise UserError(_no_classes(images))
    if not recursive:
        _refuse_nested(images, train_files)
    if len(classes) < 2:
        raise UserError(
            f"{images}: folders of two classes expected, found {classes[0]} alone"
        )
    if empty := [
        name for name in classes if not any(map(_is_image, train_files[name]))
    ]:
        raise UserError(
            f"{images}: {shortened(empty)}: images ({_KINDS}) expected, found none"
        )
    train = _sources(train_files, classes)
    beside = _beside_train(images)
    val_files: Files = {}
    if hold_out is not None:
        _refuse_classes_beside_train(images, beside)
        train, val = _hold_out(images, train, hold_out, seed)
    else:
        val_files = _val_files(images, beside)
        if not recursive:
            _refuse_nested(images / "val", val_files)
        val = _val_sources(images, val_files, classes)
    if not val:
        raise UserError(f"{images}/val: images ({_KINDS}) expected, found none")
    _print_left_out(images, beside, train_files, val_files)
    names = list(map(_in_utf8, classes))
    return names, {"train": train, "val": val}


def _val_sources(
    images: Path,
    files: Files,
    classes: list[str],
) -> list[SourceImage]:
    unknown = files.keys() - {*classes, _FLAT, _LOOSE}
    if unknown:
        names = shortened(sorted(unknown))
        raise UserError(f"{images}/val: classes of train expected, found {names}")
    if _FLAT in files:
        return _label(files[_FLAT], images, classes)
    return _sources(files, classes)


def _refuse_nested(folder: Path, files: Files) -> None:
    """Raises UserError: there are images in folders below that of a class."""
    below = Counter[str]()
    for place in chain.from_iterable(files.values()):
        parts = place.name.split("/")
        if len(parts) > 2 and _is_image(place):
            below["/".join(parts[:2])] += 1
    if below:
        counts = [
            f"{name} (images: {count:,})" for name, count in sorted(below.items())
        ]
        raise UserError(
            f"{folder}: images right in the folders of the classes expected, found them in "
            f"{shortened(counts)}; --recursive takes them as images of the class"
        )


def _print_left_out(
    images: Path,
    beside: list[str],
    *splits: Files,
) -> None:
    """Print what is not packed, by kind."""
    names = defaultdict[str, list[str]](list)
    if beside:
        names["beside train"] = beside
    for files in splits:
        for place in files.pop(_LOOSE, ()):
            names["beside the class folders"].append(place.name)
        for place in chain.from_iterable(files.values()):
            if not _is_image(place):
                names[_kind_of(place)].append(place.name)
    kinds = []
    for reason, left_out in sorted(names.items()):
        examples = ", ".join(sorted(left_out)[:_EXAMPLES])
        kinds.append(f"{len(left_out):,} {reason} ({examples})")
    if kinds:
        line = f"{images}: not packed: {'; '.join(kinds)}"
        print(printable(line), file=sys.stderr)


def _kind_of(place: Place) -> str:
    file = Path(place.name)
    if file.name.startswith("."):
        return "hidden"
    return file.suffix.lower() or "without suffix"


def _in_utf8(name: str) -> str:
    """A name on disk as a manifest can hold it: a byte that is not UTF-8 becomes \\xff."""
    return os.fsencode(name).decode(errors="backslashreplace")


def shortened(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = names[:_MOST_NAMED]
    left = len(names) - len(shown)
    if left:
        shown.append(f"and {left} more")
    return ", ".join(shown)


def _sources(
    files: Files,
    classes: list[str],
) -> list[SourceImage]:
    """The images of class folders."""
    sources = []
    for label, name in enumerate(classes):
        places = _images_of(files.get(name, []))
        sources += [SourceImage(label, *place) for place in places]
    return sources


def _train_files(images: Path) -> Files:
    """The files of each class of train."""
    folder = images / "train"
    tar = images / TRAIN_TAR
    if folder.is_dir():
        return _in_classes(folder)
    if tar.is_file():
        files = {}
        for inner in _in_tar(tar, "", 0):
            name = inner.name.removesuffix(".tar")
            files[name] = list(_in_tar(tar, f"{name}/", inner.offset))
        return files
    if images.is_dir() and not _has_val(images):
        return _in_classes(images)
    missing = folder if images.is_dir() else images
    reserved = f"; {_RESERVED}" if _has_val(images) else ""
    raise UserError(f"{missing}: a folder expected ({_LAYOUT}), found none{reserved}")


def _no_classes(images: Path) -> str:
    """The error of a folder without folders of classes."""
    wanted = "a folder for each class expected, found none"
    folder = images / "train"
    if folder.is_dir():
        return f"{folder}: {wanted}; {_RESERVED}"
    return f"{images}: {wanted}"


def _val_files(
    images: Path,
    beside: list[str],
) -> Files:
    """The files of each class of val. `beside`: what may be meant where there is none."""
    folder = images / "val"
    tar = images / VAL_TAR
    if folder.is_dir():
        files = _in_classes(folder)
        if files.keys() == {_LOOSE}:
            return {_FLAT: files[_LOOSE]}
        return files
    if tar.is_file():
        return {_FLAT: list(_in_tar(tar, "", 0))}
    raise UserError(
        f"{folder}: a folder expected ({_LAYOUT}), found {shortened(beside) or 'none'}; "
        "rename the one that is meant, or hold out a fifth of every class of train: --hold-out 0.2"
    )


def _beside_train(images: Path) -> list[str]:
    """What is neither train nor val beside these; folders end in a slash."""
    names = {path.name + "/" * path.is_dir() for path in images.iterdir()}
    train = {"train/", TRAIN_TAR}
    if not names & train:
        return []
    return sorted(names - train - {"val/", VAL_TAR, DEVKIT})


def _refuse_classes_beside_train(images: Path, beside: list[str]) -> None:
    """Raises UserError: folders beside train hold images, as those of classes do. One of another
    split, which is left out, is known by its name."""
    folders = []
    for name in beside:
        is_split = name in _OTHER_SPLITS or name.startswith(".")
        if name.endswith("/") and not is_split:
            # lost+found is not ours to read
            with suppress(PermissionError), os.scandir(images / name) as entries:
                if any(_is_image(Place(entry.name, entry.path)) for entry in entries):
                    folders.append(name)
    if folders:
        raise UserError(
            f"{images}: folders of classes in train/ alone expected, found {shortened(folders)} "
            f"beside it; {_RESERVED}, or move what is not to be packed"
        )


def _has_val(images: Path) -> bool:
    return (images / "val").exists() or (images / VAL_TAR).exists()


def _hold_out(
    images: Path,
    train: list[SourceImage],
    share: float,
    seed: int,
) -> tuple[list[SourceImage], list[SourceImage]]:
    """(what stays in train, what is held out), both sorted.

    The images with the lowest digests of seed and name are held out, so that a few more or fewer in
    a class change little.
    """
    if _has_val(images):
        raise UserError(f"--hold-out: {images} without a val expected, found one")

    def digest(source: SourceImage) -> bytes:
        text = f"{seed}/{source.name}"
        name = text.encode(errors="surrogateescape")
        return hashlib.sha256(name).digest()

    held = set[SourceImage]()
    for _, of_class in groupby(train, key=attrgetter("label")):
        sources = sorted(of_class, key=digest)
        share_of_class = max(1, round(share * len(sources)))
        count = min(share_of_class, len(sources) - 1)
        held.update(sources[:count])
    if not held:
        raise UserError(
            f"--hold-out: {images}: a class of two images expected, found none"
        )
    kept = [source for source in train if source not in held]
    return kept, sorted(held)


def _images_of(places: list[Place]) -> list[Place]:
    """The images among files, in order."""
    return sorted(filter(_is_image, places))


def _is_image(place: Place) -> bool:
    """By its name. Hidden files are such as a Mac's `._photo.jpg`."""
    name = place.name.rpartition("/")[2]
    is_hidden = name.startswith(".")
    return name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden


def _in_classes(folder: Path) -> Files:
    """What lies in each folder of `folder`, and beside these."""
    files: Files = {_LOOSE: []}
    for entry in os.scandir(folder):
        if entry.is_dir() and not entry.name.startswith("."):
            files[entry.name] = _in_folder(entry.path, f"{entry.name}/")
        else:
            place = Place(entry.name, entry.path)
            files[_LOOSE].append(place)
    return files


def _in_folder(
    folder: str,
    prefix: str,
) -> list[Place]:
    """The files of a class and of all folders below; a link to a folder, which may lead back, and
    a hidden folder are as files that are no images."""
    places = []
    for entry in os.scandir(folder):
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            places += _in_folder(entry.path, f"{name}/")
        else:
            places.append(Place(name, entry.path))
    return places


def _in_tar(
    path: Path,
    prefix: str,
    start: int,
) -> Iterator[Place]:
    """The files in a tar that begins at byte `start` of `path`."""
    try:
        with open_file(path) as file:
            file.seek(start)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # a million would stay
                    if member.isfile():
                        yield Place(
                            prefix + _base_name(member),
                            str(path),
                            member.offset_data,
                            member.size,
                        )
    except (OSError, ValueError, tarfile.TarError) as error:
        raise UserError(f"{path}: a tar at byte {start} expected: {error}") from None


def _base_name(member: tarfile.TarInfo) -> str:
    return member.name.rpartition("/")[2]


def _label(
    flat: list[Place],
    images: Path,
    classes: list[str],
) -> list[SourceImage]:
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
        stem = place.name.partition(".")[0]
        wnid = class_of.get(stem, "none")
        if wnid not in numbers:
            raise UserError(
                f"{kit}: {place.name}: a class of train expected, found {wnid}"
            )
        name = f"{wnid}/{place.name}"
        sources.append(SourceImage(numbers[wnid], name, *place[1:]))
    return sorted(sources)


def _read_devkit(path: Path) -> dict[str, str]:
    """The WordNet ID of each validation image, by its name."""
    from scipy.io import loadmat  # 0.3 s

    try:
        with tarfile.open(path, "r:*") as tar:
            content = {}
            for member in tar:
                if (name := _base_name(member)) in _IN_KIT:
                    file = tar.extractfile(member) or io.BytesIO()
                    content[name] = file.read()
        truth, meta = (content[name] for name in _IN_KIT)
        tables = loadmat(io.BytesIO(meta), squeeze_me=True)
        synsets = tables["synsets"]
        numbers = map(int, synsets["ILSVRC2012_ID"])
        names = map(str, synsets["WNID"])
        wnids = dict(zip(numbers, names, strict=True))
        return {
            f"ILSVRC2012_val_{number:08}": wnids[int(line)]
            for number, line in enumerate(truth.split(), 1)
        }
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
