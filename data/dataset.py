"""A packed image set on disk: names of its files, its manifest, its sample table, its checks.

    manifest.json       counts, classes, sizes and SHA-256 of every file; written last
    train.rec, val.rec  RecordIO, original image bytes
    train.idx, val.idx  text index, "number<TAB>offset" a line, as MXNet's im2rec writes it
    train.npy, val.npy  sample table: where each image lies, its label, height and width

The manifest and the table hold what the rules let a run know before its clock starts: "shapes,
labels, number and size of records". The records and the index are not read before `run_start`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tokenize
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError, failing_as
from ..config.image_set import wrong_counts
from ..config.leaves import Origin
from ..config.manifest import FILE_NAME, SPLITS, WHOLE, File, Manifest, load_manifest
from ..config.reading import open_file
from ..config.schema import Data
from . import recordio

TABLE = np.dtype(
    [
        ("offset", "<u8"),  # of the record
        ("length", "<u4"),  # bytes of the image; 0: record in several parts, read it whole
        ("label", "<u4"),
        ("height", "<u2"),
        ("width", "<u2"),
    ]
)
Table = NDArray[np.void]
_PART_RECORDS = 256


def load_table(folder: Path, split: str) -> Table:
    """The sample table of a split: one row an image, in the order of the record file.

    Mapped, not read: ImageNet's has 25.6 MB, of which the ranks of a node have one copy in memory.
    """
    path = folder / f"{split}.npy"
    try:
        with open_file(path) as file:
            npy: Any = np.lib.format  # NumPy 1.23 has no types for it
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
            if dtype != TABLE or len(shape) != 1:
                raise ValueError("an array of another type")
            if file.tell() + shape[0] * TABLE.itemsize != os.fstat(file.fileno()).st_size:
                raise ValueError(f"another size than that of its {shape[0]:,} rows")
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            pages.madvise(mmap.MADV_WILLNEED)  # rows are looked up at random: read all in one go
            return np.frombuffer(pages, TABLE, shape[0], file.tell())
    except OSError as error:
        raise UserError(f"{path}: a sample table expected: {error.strerror}") from None
    except (ValueError, tokenize.TokenError) as error:
        raise UserError(f"{path}: a sample table expected, found {error}") from None


def check_before_run(data: Data, origins: Mapping[str, Origin] | None = None) -> Manifest:
    """The checks a launcher makes before any clock: counts, sizes, index and table.

    Cheap at ImageNet size (reads index and table, and two records a split).

    Args:
        data: the data section of the config.
        origins: where its values were written, by dotted path, for the messages.

    Raises:
        UserError: no set, counts that are not the config's (all of them, a line each), or a file
            that does not fit the manifest.
    """
    folder = Path(data.path)
    manifest = load_manifest(folder, None if data.shards else WHOLE)
    if problems := [*wrong_counts(data, manifest.counts, folder / FILE_NAME, origins or {})]:
        raise UserError(*problems)
    check_sizes(folder, manifest)
    for split in SPLITS:
        _check_index(folder, split, manifest, sample=2)
    return manifest


def verify(
    folder: Path,
    *,
    sample: int | None = None,
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Check a set against its manifest, index and sample table, and decode its images.

    Args:
        folder: a packed set.
        sample: look at so many records of a split, evenly spaced, and at no digest of whole files;
            None: every byte and every record.
        processes: that look at records.
        progress: called with (records looked at, records to look at).

    Raises:
        UserError: the first fault, with file, offset and what was found.
    """
    manifest = load_manifest(folder, WHOLE)
    check_sizes(folder, manifest)
    for name, file in manifest.files.items() if sample is None else ():
        check_digest(folder / name, file)
    tables = {}
    for split in SPLITS:
        table = _check_index(folder, split, manifest, sample=0)
        count = len(table) if sample is None else min(sample, len(table))
        tables[split] = table[np.linspace(0, len(table) - 1, count).astype(int)]
    total = sum(map(len, tables.values()))
    done = 0
    with ProcessPoolExecutor(processes) if processes > 1 else nullcontext() as pool:
        for split, table in tables.items():
            path = folder / f"{split}.rec"
            parts = [table[at : at + _PART_RECORDS] for at in range(0, len(table), _PART_RECORDS)]
            for count in (pool.map if pool else map)(_check_records, repeat(path), parts):
                done += count
                progress(done, total)
    return manifest


def _check_records(path: Path, table: Table) -> int:
    with open_file(path) as file:
        for row in table:
            _check_record(file, path, row, decode=True)
    return len(table)


def digest_file(path: Path) -> File:
    """Size and SHA-256 of a file."""
    sha = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(1 << 20):
            sha.update(block)
        size = os.fstat(file.fileno()).st_size
    return File(bytes=size, sha256=sha.hexdigest())


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raises UserError: a file of a set has another size than its manifest says, or is missing."""
    for name, file in manifest.files.items():
        path, wanted = folder / name, file.bytes
        with failing_as(str(path)), open_file(path) as opened:
            found = os.fstat(opened.fileno()).st_size
        if found != wanted:
            raise UserError(f"{path}: {wanted} bytes expected (manifest.json), found {found}")


def check_digest(path: Path, wanted: File) -> None:
    """Raises UserError: a file has other bytes than its manifest says."""
    found = digest_file(path)
    if found != wanted:
        raise UserError(
            f"{path}: SHA-256 {wanted.sha256[:12]}... expected (manifest.json), "
            f"found {found.sha256[:12]}...: the file changed after packing"
        )


def _check_index(folder: Path, split: str, manifest: Manifest, *, sample: int) -> Table:
    """The index equals the table, and the records at its ends are where it says."""
    table = load_table(folder, split)
    path, record_path = folder / f"{split}.idx", folder / f"{split}.rec"
    if len(table) != manifest.splits[split].samples:
        raise UserError(
            f"{folder / split}.npy: {manifest.splits[split].samples} rows expected "
            f"(manifest.json), found {len(table)}"
        )
    with failing_as(str(path)):
        lines = path.read_text(errors="replace").splitlines()
    wanted = [f"{number}\t{offset}" for number, offset in enumerate(table["offset"].tolist())]
    for number, (line, entry) in enumerate(zip_longest(lines, wanted), 1):
        if line != entry:
            raise UserError(
                f"{path}:{number}: does not match {split}.npy: {entry!r} expected, "
                f"found {line and line[:40]!r}"
            )
    if len(rows := table[table["label"] >= len(manifest.classes)]):
        raise UserError(
            f"{record_path}: record at byte {rows[0]['offset']}: a label below "
            f"{len(manifest.classes)} expected, found {rows[0]['label']} ({len(rows)} such)"
        )
    first, last = manifest.part.images(len(table)) if split == "train" else (0, len(table))
    with open_file(record_path) as file:
        for row in table[[first, last - 1]][:sample]:
            _check_record(file, record_path, row, decode=False)
    return table


def _check_record(file: Any, path: Path, row: np.void, *, decode: bool) -> None:
    record = recordio.read(file, int(row["offset"]), str(path))
    where = f"{path}: record at byte {row['offset']}"
    if record.label != row["label"]:
        raise UserError(f"{where}: label {row['label']} expected, found {record.label:g}")
    if row["length"] and len(record.image) != row["length"]:
        raise UserError(f"{where}: {row['length']} bytes expected, found {len(record.image)}")
    if decode:
        from .jpeg import decode_error

        if problem := decode_error(record.image):
            raise UserError(f"{where}: an image that decodes expected: {problem}")
