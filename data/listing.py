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
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from posixpath import basename
from typing import NamedTuple

from ..host.errors import UserError
from ..host.finding import printable
from ..host.progress import say_aside
from ..host.reading import open_file, read_file
from .survey import (
    PHOTO_SUFFIXES,
    describe,
    is_hidden,
    is_photo,
    kind_of,
    look,
    name_of,
    named_as_splits,
    refusal,
    refuse_look_alikes,
    rename_advice,
    shortened,
    survey,
)

TRAIN_TAR = "ILSVRC2012_img_train.tar"
VAL_TAR = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12"
"""A folder, or a tar with .tar.gz behind the name. It has the number of the class of each
validation image, and the WordNet ID of each number."""
_IN_KIT = ("ILSVRC2012_validation_ground_truth.txt", "meta.mat")
_LAYOUT = (
    "layout: train/<class>/*.JPEG, val/<class>/*.JPEG; docs/data.md names the others"
)
_KINDS = f"{', '.join(PHOTO_SUFFIXES)}, in any case"
_FOLDERS_ABOVE = 3  # Kaggle's list of val lies above ILSVRC/Data/CLS-LOC
_IMAGE_BYTES = 64 << 20  # the largest of ImageNet has 15 MB
_KIT_BYTES = 16 << 20
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZ": "bzip2",
    b"\xfd7": "xz",
    b"(\xb5": "zstd",
    b"PK": "zip",
}
"""Programs that compress, by the first two bytes of their files."""


class StoredFile(NamedTuple):
    """A file: a whole one, or `length` bytes from `offset` of a tar (length -1: whole)."""

    name: str
    """Within the split, the same in every layout: "n01440764/n01440764_18.JPEG"."""
    path: str
    offset: int = 0
    length: int = -1


class Files(NamedTuple):
    """The files of each class, and those beside the folders: of a val without classes all."""

    classes: dict[str, list[StoredFile]]
    loose: list[StoredFile]

    @property
    def all(self) -> Iterator[StoredFile]:
        """All of them."""
        return chain(self.loose, *self.classes.values())


class SourceImage(NamedTuple):
    """An image of a class; the other fields are those of its file."""

    label: int
    name: str
    path: str
    offset: int
    length: int

    def read(self) -> bytes:
        """The bytes of the image. Raises OSError."""
        is_whole = self.length < 0
        most_bytes = _IMAGE_BYTES if is_whole else None
        with open_file(Path(self.path), most_bytes) as file:
            file.seek(self.offset)
            image = file.read(min(self.length, _IMAGE_BYTES))
        if not is_whole and len(image) != self.length:
            raise OSError(0, f"{self.length:,} bytes expected, found {len(image):,}")
        return image

    @property
    def listed(self) -> str:
        """The name as one line of UTF-8."""
        return printable(_in_utf8(self.name))

    def __str__(self) -> str:
        return _in_utf8(self.path if self.length < 0 else f"{self.path}: {self.name}")


def list_images(
    images: Path, hold_out: float | None, seed: int, *, recursive: bool
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
    classes = sorted(train_files.classes)
    _refuse_train(images, train_files, classes, recursive=recursive)
    train = _sources(train_files, classes)
    neighbours = _beside_train(images)
    val_files = Files({}, [])
    if hold_out is not None:
        _refuse_classes_beside_train(images, neighbours)
        train, val = _hold_out(images, train, hold_out, seed)
    else:
        val_files = _val_files(images, neighbours)
        if _has_splits(val_files):
            raise refusal(images / "val", "folders of classes")
        if not recursive:
            _refuse_nested(images / "val", val_files)
        val = _val_sources(images, val_files, classes)
    if not val:
        raise UserError(f"{images}/val: images ({_KINDS}) expected, found none")
    _print_left_out(images, neighbours, train_files, val_files)
    names = list(map(_in_utf8, classes))
    return names, {"train": train, "val": val}


def _refuse_train(
    images: Path, files: Files, classes: list[str], *, recursive: bool
) -> None:
    """Raises UserError: the files of train are not those of two classes or more, each in a folder
    of its own."""
    sources = (images / name for name in ("train", TRAIN_TAR))
    folder = next(filter(Path.exists, sources), images)
    lying = None if folder.is_dir() else [f"{name}.tar" for name in classes]
    if not classes:
        _refuse_classes_beside_train(images, _beside_train(images))
        raise refusal(folder, "a folder for each class", lying)
    if _has_splits(files):
        raise refusal(folder, "folders of classes", lying)
    if len(classes) < 2:
        raise refusal(folder, "folders of two classes", lying)
    if not recursive:
        _refuse_nested(folder, files)
    if empty := [
        name for name in classes if not any(map(_is_image, files.classes[name]))
    ]:
        first, *rest = empty
        names = [basename(file.name) for file in files.classes[first]]
        also = f" in it, and in {shortened(rest)}," if rest else ""
        raise refusal(folder / first, f"images ({_KINDS}){also}", names)
    if folder != images:
        _refuse_tars(folder, files)
    refuse_look_alikes(folder, classes)


def _val_sources(images: Path, files: Files, classes: list[str]) -> list[SourceImage]:
    folder = images / "val"
    if not files.classes:
        return _label(files.loose, images, classes)
    refuse_look_alikes(folder, files.classes)
    spelt = {look(name): name for name in classes}
    for name in sorted(files.classes.keys() - {*classes}):
        if as_in_train := spelt.get(look(name)):
            files.classes[as_in_train] = files.classes.pop(name)
            say_aside(f"{folder}: {name!a} is taken as {as_in_train!a} of train")
    if unknown := files.classes.keys() - {*classes}:
        names = sorted(f"{name}/" for name in unknown)
        raise refusal(folder, "classes of train", names)
    return _sources(files, classes)


def _refuse_nested(folder: Path, files: Files) -> None:
    """Raises UserError: there are images in folders below that of a class."""
    below = Counter[str]()
    for file in files.all:
        parts = file.name.split("/")
        if len(parts) > 2 and _is_image(file):
            below["/".join(parts[:2])] += 1
    if below:
        counts = [
            f"{name} (images: {count:,})" for name, count in sorted(below.items())
        ]
        classes = sorted(files.classes)
        raise UserError(
            f"{folder}: images right in the folders of the classes expected, found them in "
            f"{shortened(counts)}; --recursive takes them as images of the classes "
            f"{shortened(classes)}"
        )


def _refuse_tars(folder: Path, files: Files) -> None:
    """Raises UserError: beside the folders of classes lie tars of others, not unpacked yet."""
    tars = [
        file.name
        for file in files.loose
        if file.name.endswith(".tar") and file.name[:-4] not in files.classes
    ]
    if packed := [name for name in tars if not is_hidden(name)]:
        raise refusal(folder, "a folder for each class", packed)


def _has_splits(files: Files) -> bool:
    """Whether folders in the place of classes, or below them, are named as splits."""
    below = set[str]()
    for file in filter(_is_image, files.all):
        below.update(file.name.split("/")[1:-1])
    return bool(named_as_splits(files.classes) or named_as_splits(below))


def _print_left_out(images: Path, neighbours: list[str], *splits: Files) -> None:
    """Print what is not packed, by kind: what lies beside train, beside the class folders, and in
    these without being an image."""
    names = list(neighbours)
    for files in splits:
        if files.classes:
            names += [file.name for file in files.loose]
        inside = chain(*files.classes.values()) if files.classes else files.loose
        names += [file.name for file in inside if not _is_image(file)]
    if names:
        say_aside(f"{images}: not packed: {describe(sorted(names))}")


def _in_utf8(name: str) -> str:
    """A name on disk as a manifest can hold it: a byte that is not UTF-8 becomes \\xff."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _sources(files: Files, classes: list[str]) -> list[SourceImage]:
    """The images of class folders."""
    sources = []
    for label, name in enumerate(classes):
        images = _images_of(files.classes.get(name, []))
        sources += [SourceImage(label, *image) for image in images]
    return sources


def _train_files(images: Path) -> Files:
    """The files of each class of train."""
    folder = images / "train"
    tar = images / TRAIN_TAR
    if folder.is_dir():
        return _in_classes(folder)
    if tar.is_file():
        return _in_tar_of_tars(tar)
    if not images.is_dir():
        finding = "a file" if images.exists() else "none"
        raise UserError(f"{images}: a folder expected ({_LAYOUT}), found {finding}")
    if not _has_val(images):
        return _in_classes(images)
    raise refusal(images, f"train/ ({_LAYOUT})")


def _in_tar_of_tars(tar: Path) -> Files:
    files = Files({}, [])
    members = list(_in_tar(tar, 0))
    for inner in members:
        base = basename(inner.name)
        if base.endswith(".tar") and not is_hidden(base):
            name = base.removesuffix(".tar")
            files.classes[name] = [
                file._replace(name=f"{name}/{basename(file.name)}")
                for file in _in_tar(tar, inner.offset)
            ]
        else:
            files.loose.append(inner)
    if not files.classes:
        names = [file.name for file in members]
        raise refusal(tar, "a tar for each class", names)
    return files


def _val_files(images: Path, neighbours: list[str]) -> Files:
    """The files of each class of val. `neighbours`: what may be meant where there is none."""
    folder = images / "val"
    tar = images / VAL_TAR
    if folder.is_dir():
        return _in_classes(folder)
    if tar.is_file():
        members = [
            member._replace(name=basename(member.name)) for member in _in_tar(tar, 0)
        ]
        return Files({}, members)
    raise UserError(
        f"{folder}: a folder expected ({_LAYOUT}), found {describe(neighbours)} in its place; "
        "rename the one that is meant, or hold out a fifth of every class of train: --hold-out 0.2"
    )


def _beside_train(images: Path) -> list[str]:
    """What is neither train nor val beside these; folders end in a slash."""
    names = set(map(name_of, images.iterdir()))
    train = {"train/", TRAIN_TAR}
    if not names & train:
        return []
    kit = {f"{DEVKIT}/", f"{DEVKIT}.tar.gz"}
    return sorted(names - train - kit - {"val/", VAL_TAR})


def _refuse_classes_beside_train(images: Path, neighbours: list[str]) -> None:
    """Raises UserError: folders beside train hold images, as those of classes do. One of another
    split, which is left out, is known by its name."""
    folders = [
        name
        for name in neighbours
        if name.endswith("/")
        and not name.startswith(".")
        and not named_as_splits([name.rstrip("/")])
        and any(map(is_photo, survey(images / name)))
    ]
    if folders:
        raise UserError(
            f"{images}: folders of classes in train/ alone expected, found {shortened(folders)} "
            f"beside it; {rename_advice({'train': 'train'})}, or move what is not to be packed"
        )


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
        """The place of an image in the order in which images are held out."""
        key = f"{seed}/{source.name}"
        name = key.encode(errors="surrogateescape")
        return hashlib.sha256(name).digest()

    held_out = set[SourceImage]()
    for _, of_class in groupby(train, key=attrgetter("label")):
        sources = sorted(of_class, key=digest)
        share_of_class = max(1, round(share * len(sources)))
        count = min(share_of_class, len(sources) - 1)
        held_out.update(sources[:count])
    if not held_out:
        raise UserError(
            f"--hold-out: {images}: a class of two images expected, found none"
        )
    remaining = [source for source in train if source not in held_out]
    return remaining, sorted(held_out)


def _images_of(files: list[StoredFile]) -> list[StoredFile]:
    """The images among files, in order."""
    return sorted(filter(_is_image, files))


def _is_image(file: StoredFile) -> bool:
    return is_photo(file.name)


def _in_classes(folder: Path) -> Files:
    """What lies in each folder of `folder`, and beside these."""
    files = Files({}, [])
    for entry in os.scandir(folder):
        if entry.is_dir() and not entry.name.startswith("."):
            files.classes[entry.name] = _in_folder(entry.path, f"{entry.name}/")
        else:
            file = StoredFile(entry.name, entry.path)
            files.loose.append(file)
    return files


def _in_folder(folder: str, prefix: str) -> list[StoredFile]:
    """The files of a class and of all folders below; a link to a folder, which may lead back, and
    a hidden folder are as files that are no images."""
    files = []
    for entry in os.scandir(folder):
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            files += _in_folder(entry.path, f"{name}/")
        else:
            files.append(StoredFile(name, entry.path))
    return files


def _in_tar(path: Path, start: int) -> Iterator[StoredFile]:
    """The files in a tar that begins at byte `start` of `path`, by their whole names in it."""
    first = b""
    try:
        with open_file(path) as file:
            file.seek(start)
            first = file.read(2)
            file.seek(start)
            # "r:": what is compressed is refused, as no place in it could be read again
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # a million would stay
                    if member.isfile():
                        yield StoredFile(
                            member.name, str(path), member.offset_data, member.size
                        )
    except (OSError, ValueError, tarfile.TarError) as error:
        finding: object = error
        if program := _COMPRESSED.get(first):
            finding = f"found one compressed by {program}: decompress it first"
        raise UserError(f"{path}: a tar at byte {start} expected: {finding}") from None


def _label(
    flat: list[StoredFile], images: Path, classes: list[str]
) -> list[SourceImage]:
    """The images of a flat val with their classes, sorted by class and name."""
    kit = images / DEVKIT
    if not kit.is_dir():
        kit = kit.with_name(f"{DEVKIT}.tar.gz")
    if not kit.exists():
        lists = [
            str(folder / name)
            for folder in (images, *images.resolve().parents[:_FOLDERS_ABOVE])
            for name in survey(folder)
            if kind_of(name).noun == "list" and "val" in name.lower()
        ]
        names = [image.name for image in flat]
        raise refusal(
            images / "val",
            f"a folder for each class, or {kit} (lists of val: {shortened(lists) or 'none'}),",
            names,
        )
    class_of = _read_devkit(kit)
    numbers = {name: label for label, name in enumerate(classes)}
    sources = []
    for image in _images_of(flat):
        stem = image.name.partition(".")[0]
        wnid = class_of.get(stem, "none")
        if wnid not in numbers:
            raise UserError(
                f"{kit}: {image.name}: a class of train expected, found {wnid}"
            )
        name = f"{wnid}/{image.name}"
        sources.append(SourceImage(numbers[wnid], name, *image[1:]))
    return sorted(sources)


def _read_devkit(path: Path) -> dict[str, str]:
    """The WordNet ID of each validation image, by its name."""
    from scipy.io import loadmat  # 0.3 s

    try:
        content = {}
        if path.is_dir():
            for file in path.rglob("*"):
                if file.name in _IN_KIT:
                    content[file.name] = read_file(file, _KIT_BYTES)
        else:
            with tarfile.open(path, "r:*") as tar:
                for member in tar:
                    if (name := basename(member.name)) in _IN_KIT:
                        packed = tar.extractfile(member) or io.BytesIO()
                        content[name] = packed.read()
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
