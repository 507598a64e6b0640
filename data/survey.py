"""What lies in a folder that is not packed as it is, what to do with it, and how names look.

Every refusal of a folder goes through `refusal`, so that its advice fits what lies there.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from posixpath import basename
from typing import NamedTuple

from ..host.errors import UserError
from ..host.finding import printable

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png")
_MOST_NAMED = 10
_EXAMPLES = 3


class Kind(NamedTuple):
    """Files of one kind, by their lower-case names, and what to do with a folder of them."""

    noun: str
    pattern: str
    advice: str


_AS_PHOTOS = "write their images as .jpg or .png files into a folder for each class"
_FOLDER = Kind("folder", "/$", "")
_OTHER = Kind("other file", "", "")
KINDS = (
    Kind("hidden file", r"(^|/)\.[^/]*$", ""),
    Kind("TFRecord", r"\.tfrecords?(\.gz)?$|-\d+-of-\d+$", _AS_PHOTOS),
    Kind(
        "data file",
        r"\.(parquet|arrow|feather|np[yz]|h5|hdf5|mat|pkl|pickle|lmdb|mdb|beton|bin|rec)$"
        r"|^(data|test)_batch",
        _AS_PHOTOS,
    ),
    Kind(
        "compressed tar",
        r"\.(tar\.\w+|t[gbx]z2?|tzst)$",
        "decompress it, such as by `gunzip`: one that holds the tars of all classes is then "
        "packed as it is, one of a class is unpacked into a folder of its name",
    ),
    Kind(
        "tar",
        r"\.tar$",
        "unpack the tar of a class, such as n01440764.tar, into a folder of its name, "
        "train/n01440764/; of WebDataset's shards write the images into a folder for each class",
    ),
    Kind("archive", r"\.(zip|7z|rar|gz|bz2|xz|zst)$", "unpack it"),
    Kind(
        "photo",
        r"\.(jpe?g|png)$",
        "sort the photos into a folder for each class, such as cat.0.jpg into cat/",
    ),
    Kind(
        "unsupported image",
        r"\.(webp|gif|bmp|tiff?|hei[cf]|avif|jp2|jxl|ppm)$",
        "convert the images to .jpg or .png: docs/own_data.md has a program that does",
    ),
    Kind("list", r"\.(csv|tsv|txt|json|xml|ya?ml)$", ""),
    _FOLDER,
)
_SPLITS = {
    "train": "train|training",
    "val": "val|valid|validation|eval|evaluation|dev",
    "test": "test|testing",
}
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
_LATIN = str.maketrans(
    "АВЕЅІЈКМНОРСТХУаеорсухіјѕһԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧονα",  # noqa: RUF001
    "ABESIJKMHOPCTXYaeopcyxijshdqwABEZHIKMNOPTYXova",
)
"""Letters of Cyrillic and Greek that look like Latin ones."""


def kind_of(name: str) -> Kind:
    """The kind of a file, or of a folder, whose name ends in a slash."""
    for kind in KINDS:
        if re.search(kind.pattern, name.lower()):
            return kind
    return _OTHER


def is_photo(name: str) -> bool:
    """Whether a file is a photo, by its name. Hidden ones are none, such as `._photo.jpg`."""
    return name.lower().endswith(PHOTO_SUFFIXES) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden, by its name."""
    return basename(name).startswith(".")


def survey(folder: Path) -> list[str]:
    """The names in a folder, those of folders with a slash, without hidden ones; none where it
    cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = map(name_of, entries)
            return sorted(name for name in names if not name.startswith("."))
    except OSError:
        return []


def name_of(entry: os.DirEntry[str] | Path) -> str:
    """The name of what lies in a folder; that of a folder ends in a slash."""
    return f"{entry.name}/" if entry.is_dir() else entry.name


def refusal(folder: Path, expected: str, names: list[str] | None = None) -> UserError:
    """The error of a folder (or of a tar with these names in it) that is not as expected: what lies
    there, and what to do."""
    if names is None:
        names = survey(folder)
    names = [name for name in names if not is_hidden(name)]
    finding = describe(names)
    below = folder
    while only := _only_folder(names):
        below /= only
        names = survey(below)
        finding += f"; in {only} {describe(names)}"
    advice = _advise(folder, below, names)
    return UserError(
        printable(f"{folder}: {expected} expected, found {finding}; {advice}")
    )


def _only_folder(names: list[str]) -> str | None:
    """The folder that lies alone, or beside lists and other files that are not read."""
    kinds = [kind_of(name) for name in names]
    if kinds.count(_FOLDER) == 1 and all(not kind.advice for kind in kinds):
        return names[kinds.index(_FOLDER)]
    return None


def describe(names: list[str]) -> str:
    """Counts and examples by kind."""
    groups = defaultdict[str, list[str]](list)
    for name in names:
        groups[kind_of(name).noun].append(name)
    counts = []
    for noun, group in groups.items():
        examples = group[:_EXAMPLES]
        if len(group) > _EXAMPLES:
            examples.append("...")
        plural = "s" if len(group) > 1 else ""
        counts.append(f"{len(group):,} {noun}{plural} ({', '.join(examples)})")
    return ", ".join(counts) or "nothing"


def _advise(folder: Path, below: Path, names: list[str]) -> str:
    """What to do with a folder. `below`: its only folder, or that of this one, with these names."""
    if folder.is_file():
        return "unpack it, and pack the folder that it was unpacked into"
    is_split = folder.name in _SPLITS
    if layout := _find_layout(folder.parent if is_split else folder):
        return f"pack {layout}, which has a train/"
    if is_split and below != folder:
        return f"move what {below} holds up into {folder}"
    folders = [name.rstrip("/") for name in names if name.endswith("/")]
    on_the_way = [*below.relative_to(folder).parts, *folders]
    splits = named_as_splits(on_the_way)
    if splits and {*on_the_way} - {*_SPLITS}:
        return rename_advice(splits)
    photos = (
        name
        for folder in folders[:_MOST_NAMED]
        for name in survey(below / folder)
        if is_photo(name)
    )
    if below != folder and any(photos):
        return f"pack {below}, which has folders of photos"
    for kind in KINDS:
        if kind.advice and any(kind_of(name) is kind for name in names):
            return kind.advice
    return "docs/data.md names the layouts that are packed"


def _find_layout(folder: Path, depth: int = 4) -> Path | None:
    """The first folder below this one that has folders of classes in its train/."""
    folders = [folder / name for name in survey(folder) if name.endswith("/")]
    for below in folders:
        names = survey(below / "train")
        if any(name.endswith("/") for name in names):
            return below
    for below in folders[:_MOST_NAMED] if depth else ():
        if layout := _find_layout(below, depth - 1):
            return layout
    return None


def named_as_splits(names: Iterable[str]) -> dict[str, str]:
    """Those folders in the place of classes that have the name of a split, in any case.
    If most have one as a word, and not all the same, as training_set and seg_test, these."""
    exact = {}
    loose = {}
    names = list(names)
    for name in names:
        spelt = name.lower().strip(" ._-")
        for split, pattern in _SPLITS.items():
            if re.fullmatch(pattern, spelt):
                exact[name] = split
            if re.search(rf"(?<![a-z])({pattern})(set|data|images)?(?![a-z])", spelt):
                loose[name] = split
    are_most = 2 * len(loose) > len(names) and len({*loose.values()}) > 1
    return loose if are_most else exact


def rename_advice(splits: dict[str, str]) -> str:
    """What to do with folders that have the names of splits."""
    pairs = [
        f"{printable(name)} to {split}"
        for name, split in splits.items()
        if name != split
    ]
    to_splits = f"splits ({', '.join(pairs)}), or " if pairs else ""
    return f"rename {to_splits}what is a class: it cannot have the name of a split"


def look(name: str) -> str:
    """What a name looks like; people cannot tell two names with the same look apart. Case, blanks
    and dots at the end, invisible characters and the form of an accent do not count."""
    characters = _IGNORABLE.sub("", unicodedata.normalize("NFKC", name))
    characters = unicodedata.normalize("NFKC", characters.translate(_LATIN).lower())
    characters = "".join(filter(str.isprintable, characters))
    return " ".join(characters.rstrip(" .").split())


def refuse_look_alikes(folder: Path, names: Iterable[str]) -> None:
    """Raises UserError: people would take two of these folders for the same class."""
    spellings = defaultdict[str, list[str]](list)
    for name in sorted(names):
        spellings[look(name)].append(ascii(name))
    pairs = [" and ".join(alike) for alike in spellings.values() if len(alike) > 1]
    if pairs:
        raise UserError(
            f"{folder}: class names that people can tell apart expected, found "
            f"{shortened(pairs)}; rename one, or move its photos into the other"
        )


def shortened(names: list[str]) -> str:
    """The first names, and how many more there are."""
    listed = names[:_MOST_NAMED]
    more = len(names) - len(listed)
    if more:
        listed.append(f"and {more} more")
    return ", ".join(listed)
