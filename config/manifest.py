"""manifest.json of a packed image set: what the set holds, as packing wrote it.

It stands here, and not beside the records, because a config takes its counts from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, StrictInt, StrictStr, ValidationError

from ..host.errors import UserError, failing_as, show
from ..host.reading import read_file
from .names import nearest_path
from .schema import Synthetic
from .values import Section

FORMAT: Final = "rn50-recordio-1"
FILE_NAME = "manifest.json"
SPLITS = ("train", "val")
SUFFIXES = ("rec", "idx", "npy")
LIST = "lst"
"""Suffix of the photos' names, which sets packed by older versions lack; no content."""
MOST_BYTES = 256 << 20
"""A million files that were left out take 150 MB."""
# data/synthetic.py, wnid; ImageNet's end at n15102894
_DRAWN_CLASS = re.compile("n90000[0-9]{3}")


class File(Section):
    """Size and digest of one file of the set."""

    bytes: Annotated[StrictInt, Field(ge=0)]
    sha256: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")]


class Split(Section):
    """One split: how many images, how many of each class, its files by suffix."""

    samples: Annotated[StrictInt, Field(ge=1)]
    class_counts: list[int]
    files: dict[str, File]
    chunks: list[tuple[int, int]] = Field(default=[])
    """(end, CRC-32) of successive pieces of the record file, by which a part of it is checked."""


class OddFile(Section):
    """A file that was left out: no JPEG or PNG, or one that training does not decode."""

    split: str
    path: str
    found: str


class Part(NamedTuple):
    """One of several parts, from 0, of the training images, as `data.shards` divides them."""

    number: Annotated[StrictInt, Field(ge=0)]
    parts: Annotated[StrictInt, Field(ge=1)]

    def __str__(self) -> str:
        if self.parts == 1:
            return "all training records"
        return f"part {self.number + 1} of {self.parts}"

    def images(self, samples: int) -> tuple[int, int]:
        """[first, last) of `samples` images; parts differ by at most one image."""
        # multiplied before divided: the end of a part is the first of the next
        first = samples * self.number // self.parts
        last = samples * (self.number + 1) // self.parts
        return first, last


WHOLE = Part(0, 1)


class Counts(NamedTuple):
    """The keys of `data` that describe a set."""

    classes: int
    train_samples: int
    eval_samples: int


class Manifest(Section):
    """What the set holds."""

    format: Literal["rn50-recordio-1"]
    classes: list[str]
    shuffle_seed: int
    splits: dict[str, Split]
    odd_files: list[OddFile] = Field(default=[])
    drawn: Synthetic | None = None
    """What the images were drawn with, where `prepare` drew them."""
    part: Part = WHOLE
    """The records that train.rec holds; the rest of the file is a hole."""

    @property
    def is_drawn(self) -> bool:
        """Textures, no photographs: marked so, or of the classes that `synthetic` alone names."""
        named = bool(self.classes) and all(map(_DRAWN_CLASS.fullmatch, self.classes))
        return named or self.drawn is not None

    @property
    def counts(self) -> Counts:
        """The counts as a config's `data` section has them."""
        train, evaluation = (self.splits[split].samples for split in SPLITS)
        return Counts(len(self.classes), train, evaluation)

    @property
    def files(self) -> dict[str, File]:
        """Every file of the set by its name."""
        return {
            f"{split}.{suffix}": file
            for split in SPLITS
            for suffix, file in self.splits[split].files.items()
        }

    @property
    def digest(self) -> str:
        """A digest of the content of the set's files: a copy has the same, wherever it lies."""
        names = (f"{split}.{suffix}" for split in SPLITS for suffix in SUFFIXES)
        files = "".join(f"{name} {self.files[name].sha256}\n" for name in names)
        return hashlib.sha256(files.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The content of the manifest's file."""
        return json.dumps(self.model_dump(), indent=1) + "\n"


def has_manifest(folder: Path) -> bool:
    """Whether a set may be there. Raises UserError: nobody can tell, such as without permission."""
    with failing_as(f"{folder}: a packed image set expected"):
        try:
            (folder / FILE_NAME).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def explain_missing(folder: Path) -> str:
    """The error of a folder without a manifest: what is there, and where to pack a set to."""
    folder = Path(os.path.realpath(folder))
    out = "ANOTHER_FOLDER"
    if any(folder.glob("*.rec")):
        content = f"records without {FILE_NAME}, as im2rec makes them"
    elif os.path.lexists(folder):
        content = "something else"
    else:
        content = "none"
        out = shlex.quote(str(folder))
    return (
        f"a packed image set expected at {folder}, found {content} "
        f"(make one with `rn50 data pack IMAGES {out}`){nearest_path(folder)}"
    )


def load_manifest(folder: Path, part: Part | None = None) -> Manifest:
    """Read `folder`/manifest.json. `part`: the training records that must be there; None: any.
    Raises UserError naming file and key."""
    path = folder / FILE_NAME
    if not has_manifest(folder):
        raise UserError(explain_missing(folder))
    with failing_as(f"{path}: a packed image set expected"):
        content = read_file(path, MOST_BYTES)
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "JSON"
        raise UserError(
            f"{path}: {key}: {first['msg']}, found {show(first['input'])}"
        ) from None
    for name in SPLITS:
        split = manifest.splits.get(name)
        if split is None or {*split.files} - {LIST} != {*SUFFIXES}:
            raise UserError(
                f"{path}: splits.{name}: files {', '.join(SUFFIXES)} expected"
            )
    packed = manifest.part
    if not packed.number < packed.parts <= manifest.splits["train"].samples:
        raise UserError(
            f"{path}: part: a number below that of parts expected, found {packed}"
        )
    # a whole set has every part
    if part is not None and packed not in (WHOLE, part):
        raise UserError(f"{path}: {part} expected (see data.shards), found {packed}")
    return manifest
