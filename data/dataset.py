"""A packed image set on disk: names of its files, its manifest, its sample table, its checks.

    manifest.json       counts, classes, sizes and SHA-256 of every file; written last
    train.rec, val.rec  RecordIO, original image bytes
    train.idx, val.idx  text index, "number<TAB>offset" a line, as MXNet's im2rec writes it
    train.npy, val.npy  sample table: where each image lies, its label, height and width
    train.lst, val.lst  "number<TAB>label<TAB>class/photo" a line, as im2rec's lists

The manifest and the table hold what the rules let a run know before its clock starts: "shapes,
labels, number and size of records". The records and the index are not read before `run_start`.
"""

from __future__ import annotations

import hashlib
import os
import tokenize
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..config.image_set import wrong_counts
from ..config.leaves import Origin
from ..config.manifest import (
    FILE_NAME,
    LIST,
    SPLITS,
    WHOLE,
    File,
    Manifest,
    load_manifest,
)
from ..config.schema import Data
from ..host.errors import UserError, failing_as
from ..host.progress import Progress, Tracker, untracked
from ..host.reading import open_file
from . import recordio
from .decoder import check_decodes, has_dali
from .workers import worker_pool

TABLE = np.dtype(
    [
        ("offset", "<u8"),  # of the record
        ("length", "<u4"),  # of the image; 0: record in several parts, read it whole
        ("label", "<u4"),
        ("height", "<u2"),
        ("width", "<u2"),
    ]
)
Table = NDArray[np.void]
_PART_RECORDS = 256
_MOST_NAMED = 20
SAMPLED = 1000
MB = 10**6
Fault = tuple[int, str]
"""The number of a record, and what is wrong with it."""


def load_table(folder: Path, split: str) -> Table:
    """The sample table of a split: one row an image, in the order of the record file.

    Mapped, not read: ImageNet's has 25.6 MB, of which the ranks of a node have one copy in memory.
    """
    path = folder / f"{split}.npy"
    try:
        open_file(path).close()  # no FIFO, for which the next line would wait
        table: Table = np.asarray(np.load(path, mmap_mode="r"))
    except (OSError, ValueError, EOFError, tokenize.TokenError) as error:
        raise UserError(f"{path}: a sample table expected: {error}") from None
    if table.dtype != TABLE or table.ndim != 1:
        raise UserError(
            f"{path}: a sample table expected, found an array of another type"
        )
    return table


def check_before_run(
    data: Data, origins: Mapping[str, Origin] | None = None
) -> Manifest:
    """The checks a launcher makes before any clock: counts, what was drawn, sizes and table.

    Cheap at ImageNet size (reads the table, and two records a split).

    Args:
        data: the data section of the config.
        origins: where its values were written, by dotted path, for the messages.

    Raises:
        UserError: no set, counts that are not the config's (all of them, a line each), or a file
            that does not fit the manifest.
    """
    folder = Path(data.path)
    manifest = load_manifest(folder, None if data.shards else WHOLE)
    source = folder / FILE_NAME
    if problems := [*wrong_counts(data, manifest.counts, source, origins or {})]:
        raise UserError(*problems)
    if data.synthetic and manifest.drawn not in (None, data.synthetic):
        raise UserError(
            f"{data.path}: drawn with {data.synthetic} expected, found {manifest.drawn}; "
            "give data.path another folder, or remove this one to have it drawn anew"
        )
    check_sizes(folder, manifest)
    for split in SPLITS:
        _check_table(folder, split, manifest)
    return manifest


def verify(
    folder: Path, *, full: bool = True, processes: int = 1, track: Tracker = untracked
) -> Manifest:
    """Check a set against its manifest and sample table, and decode its images.

    Args:
        folder: a packed set.
        full: every byte and every record; else SAMPLED records of a split, evenly spaced, and no
            digest of whole files.
        processes: that look at records.
        track: gives the progress callback of the bytes, and then of the records.

    Raises:
        UserError: the first file that is not whole, or the records of a split that do not fit or
            do not decode, with the names of their photos.
    """
    manifest = load_manifest(folder, WHOLE)
    # before the bytes are read: the sizes of a set that was cut short say so at once
    check_sizes(folder, manifest)
    if full:
        _check_bytes(folder, manifest, track("checking bytes, in MB"))
    chosen = {}
    for split in SPLITS:
        table = _check_table(folder, split, manifest)
        count = len(table) if full else min(SAMPLED, len(table))
        rows = np.linspace(0, len(table) - 1, count)
        chosen[split] = rows.astype(int).tolist()
    progress = track("checking records")
    has_dali()  # before the workers are forked
    total = sum(map(len, chosen.values()))
    done = 0
    with failing_as(f"{folder}: not checked"), worker_pool(processes) as pool:
        for split, numbers in chosen.items():
            starts = range(0, len(numbers), _PART_RECORDS)
            parts = [numbers[start : start + _PART_RECORDS] for start in starts]
            faults = []
            look = partial(_find_faults, folder, split)
            for part, of_part in zip(parts, pool.map(look, parts), strict=True):
                faults += of_part
                done += len(part)
                progress(done, total)
            _refuse(faults, folder, split)
    return manifest


def _find_faults(
    folder: Path, split: str, numbers: Sequence[int], *, decode: bool = True
) -> list[Fault]:
    path = folder / f"{split}.rec"
    table = load_table(folder, split)
    faults = []
    with open_file(path) as file:
        for number in numbers:
            try:
                _check_record(file, path, table[number], decode=decode)
            except UserError as error:
                faults.append((number, str(error)))
    return faults


def photo_names(path: Path) -> list[str]:
    """The photos of all records of `path`, a record file; none in a set of an older version."""
    with suppress(OSError), open_file(path.with_suffix(f".{LIST}")) as file:
        names = [row.rpartition(b"\t")[2] for row in file.read().split(b"\n")[:-1]]
        return [name.decode(errors="backslashreplace") for name in names]
    return []


def photo_name(path: Path, number: int) -> str:
    """The photo of a record of `path`, a record file; that of its class in a set of an older
    version, which has no list."""
    photos = photo_names(path)
    if number < len(photos):
        return photos[number]
    label = load_table(path.parent, path.stem)["label"][number]
    return load_manifest(path.parent).classes[label]


def _refuse(faults: Sequence[Fault], folder: Path, split: str) -> None:
    """Raises UserError: there are faults; each with the name of the photo."""
    if not faults:
        return
    path = folder / f"{split}.rec"
    lines = []
    for number, message in faults[:_MOST_NAMED]:
        lines.append(f"{message} (record {number}, {photo_name(path, number)})")
    if more := len(faults) - len(lines):
        lines.append(f"{path}: {more:,} more records")
    raise UserError(*lines)


def _check_bytes(folder: Path, manifest: Manifest, progress: Progress) -> None:
    """Raises UserError: a file has not the digest of the manifest."""
    total = sum(file.bytes for file in manifest.files.values())
    done = 0

    def advance(count: int) -> None:
        """Count bytes that were read."""
        nonlocal done
        done += count
        progress(done // MB, total // MB)

    # tables first, by which the records of a change are found
    for name, file in sorted(manifest.files.items()):
        split, _, suffix = name.partition(".")
        try:
            check_digest(folder / name, file, advance)
        except UserError as error:
            if suffix == "rec":
                _refuse_changed(folder, split, manifest, str(error))
            raise


def _refuse_changed(folder: Path, split: str, manifest: Manifest, changed: str) -> None:
    """Raises UserError: names the records that show the first chunk that has changed, or where that
    begins. Returns where all chunks are as they were."""
    offsets = _check_table(folder, split, manifest)["offset"]
    start = 0
    with open_file(folder / f"{split}.rec") as file:
        for end, crc32 in manifest.splits[split].chunks:
            chunk = file.read(end - start)
            if zlib.crc32(chunk) != crc32:
                inside = (start <= offsets) & (offsets < end)
                numbers = np.flatnonzero(inside).tolist()
                suspects = f"in one of {len(numbers)} records that begin with this one"
                first = [(number, f"{changed}: {suspects}") for number in numbers[:1]]
                faults = _find_faults(folder, split, numbers) or first
                _refuse(faults, folder, split)
            start = end


def digest_file(
    path: Path, advance: Callable[[int], object] = lambda count: None
) -> File:
    """Size and SHA-256 of a file. `advance` gets the size of each block that is read."""
    sha = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(MB):
            sha.update(block)
            advance(len(block))
        size = os.fstat(file.fileno()).st_size
    return File(bytes=size, sha256=sha.hexdigest())


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raises UserError: a file of a set has another size than its manifest says, or is missing."""
    for name, file in manifest.files.items():
        path = folder / name
        with failing_as(str(path)), open_file(path) as opened:
            size = os.fstat(opened.fileno()).st_size
        if size != file.bytes:
            raise UserError(
                f"{path}: {file.bytes} bytes expected (manifest.json), found {size}"
            )


def check_digest(
    path: Path, file: File, advance: Callable[[int], object] = lambda count: None
) -> None:
    """Raises UserError: a file has other bytes than its manifest says."""
    digest = digest_file(path, advance).sha256
    if digest != file.sha256:
        raise UserError(
            f"{path}: SHA-256 {file.sha256} expected (manifest.json), found {digest}"
        )


def _check_table(folder: Path, split: str, manifest: Manifest) -> Table:
    """The table fits the manifest, and the records at its ends are where it says."""
    table = load_table(folder, split)
    path = folder / f"{split}.npy"
    samples = manifest.splits[split].samples
    if len(table) != samples:
        raise UserError(f"{path}: {samples} rows expected, found {len(table)}")
    classes = len(manifest.classes)
    if (label := table["label"].max()) >= classes:
        raise UserError(f"{path}: labels below {classes} expected, found {label}")
    part = manifest.part if split == "train" else WHOLE
    first, beyond = part.images(samples)
    ends = [first, beyond - 1]
    faults = _find_faults(folder, split, ends, decode=False)
    _refuse(faults, folder, split)
    return table


def _check_record(file: BinaryIO, path: Path, row: np.void, *, decode: bool) -> None:
    offset = int(row["offset"])
    record = recordio.read(file, offset, str(path))
    where = f"{path}: record at byte {offset}"
    length = len(record.image)
    stored = (record.label, length)
    if stored != (row["label"], row["length"] or length):
        expected = (row["label"], row["length"])
        raise UserError(f"{where}: (label, bytes) {expected} expected, found {stored}")
    if decode:
        height, width = row[["height", "width"]].item()
        try:
            check_decodes(record.image, height, width)
        except ValueError as error:
            raise UserError(
                f"{where}: an image that decodes expected, {error}"
            ) from None
