"""A packed image set on disk: names of its files, its manifest, its sample table, its checks.

    manifest.json       counts, classes, sizes and SHA-256 of every file; written last
    train.rec, val.rec  RecordIO, original image bytes
    train.idx, val.idx  text index, "number<TAB>offset" a line, as MXNet's im2rec writes it
    train.npy, val.npy  sample table: where each image lies, its label, height and width

The manifest and the table hold what the rules let a run know before its clock starts: "shapes,
labels, number and size of records". The records and the index are not read before `run_start`.
"""

from __future__ import annotations

import ast
import hashlib
import io
import mmap
import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..config.errors import UserError, failing_as, show
from ..config.image_set import wrong_counts
from ..config.leaves import Origin
from ..config.manifest import FILE_NAME, SPLITS, WHOLE, File, Manifest, load_manifest
from ..config.reading import open_file
from ..config.schema import Data
from . import recordio
from .recordio import MOST_PIXELS

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
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_MOST_HEADER_BYTES = 1000  # ours has 118
_MOST_TABLE_BYTES = TABLE.itemsize * 20_000_000  # of ImageNet-21k: 14 million rows
_INDEX_LINE_BYTES = 2 * 21  # two numbers of 64 bits, each with what ends it
_INDEX_PART_BYTES = 1 << 20
_PART_RECORDS = 256


def load_table(folder: Path, split: str) -> Table:
    """The sample table of a split: one row an image, in the order of the record file.

    Mapped, not read: ImageNet's has 25.6 MB, of which the ranks of a node have one copy in memory.
    """
    path = folder / f"{split}.npy"
    try:
        with open_file(path, _MOST_TABLE_BYTES) as file:
            return _read_table(file)
    except OSError as error:
        raise UserError(f"{path}: a sample table expected: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: a sample table expected, found {error}") from None


def _read_table(file: BinaryIO) -> Table:
    """The one array of an .npy file of version 1.0: no archive, no objects, nothing behind it.

    Raises ValueError that says what was found. NumPy's own reader takes an archive for an array,
    and allocates what a header asks for before it looks at the file.
    """
    start = file.read(len(_NPY_MAGIC) + 2)
    length = int.from_bytes(start[len(_NPY_MAGIC) :], "little")
    if not start.startswith(_NPY_MAGIC) or length > _MOST_HEADER_BYTES:
        raise ValueError("no array in NumPy's format 1.0")
    try:
        header = ast.literal_eval(file.read(length).decode("latin-1"))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ValueError("a header that is none") from None
    if not isinstance(header, dict) or header.get("descr") != TABLE.descr:
        raise ValueError("an array of another type")
    if header != {"descr": TABLE.descr, "fortran_order": False, "shape": header.get("shape")}:
        raise ValueError("a header with other keys")
    rest = os.fstat(file.fileno()).st_size - file.tell()
    count, odd = divmod(rest, TABLE.itemsize)
    if odd or header["shape"] != (count,):
        raise ValueError(f"{rest} bytes of rows under the shape {show(header['shape'])}")
    if count == 0:  # nothing can be mapped
        return np.empty(0, TABLE)
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages.madvise(mmap.MADV_WILLNEED)  # rows are looked up at random: in one go, not page by page
    return np.frombuffer(pages, TABLE, count, file.tell())


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
    _check_sizes(folder, manifest)
    for split in SPLITS:
        _check_index(folder, split, manifest, sample=2)
    return manifest


def verify(
    folder: Path,
    *,
    decode: bool = False,
    sample: int | None = None,
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Check a set against its manifest, index and sample table.

    Args:
        folder: a packed set.
        decode: decode every image that is looked at.
        sample: look at so many records of a split, evenly spaced, and at no digest of whole files;
            None: every byte and every record.
        processes: that look at records.
        progress: called with (records looked at, records to look at).

    Raises:
        UserError: the first fault, with file, offset and what was found.
    """
    manifest = load_manifest(folder, WHOLE)
    _check_sizes(folder, manifest)
    for name, file in manifest.files.items() if sample is None else ():
        _check_digest(folder / name, file)
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
            arguments = (repeat(path), parts, repeat(decode))
            for count in (pool.map if pool else map)(_check_records, *arguments):
                done += count
                progress(done, total)
    return manifest


def _check_records(path: Path, table: Table, decode: bool) -> int:
    with open_file(path) as file:
        for row in table:
            _check_record(file, path, row, decode=decode)
    return len(table)


def digest_file(path: Path) -> File:
    """Size and SHA-256 of a file."""
    sha = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(1 << 20):
            sha.update(block)
        size = os.fstat(file.fileno()).st_size
    return File(bytes=size, sha256=sha.hexdigest())


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, file in manifest.files.items():
        path, wanted = folder / name, file.bytes
        with failing_as(str(path)), open_file(path) as opened:
            found = os.fstat(opened.fileno()).st_size
        if found != wanted:
            raise UserError(f"{path}: {wanted} bytes expected (manifest.json), found {found}")


def _check_digest(path: Path, wanted: File) -> None:
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
    try:
        index = _read_index(path, _INDEX_LINE_BYTES * len(table))
    except OSError as error:
        raise UserError(f"{path}: lines of number<TAB>offset expected: {error.strerror}") from None
    except (ValueError, OverflowError, Warning):
        raise UserError(f"{path}: lines of number<TAB>offset expected") from None
    if index.shape == (len(table), 2):
        wrong = np.flatnonzero(index[:, 1] != table["offset"])
        if len(wrong):
            number = wrong[0]
            raise UserError(
                f"{path}: line {number + 1}: does not match {record_path.name}: offset "
                f"{table['offset'][number]} expected, found {index[number, 1]}"
            )
    else:
        raise UserError(
            f"{path}: does not match {record_path.name}: {len(table)} offsets up to "
            f"{table['offset'].max()} expected, found {len(index)} up to {index[:, -1].max()}"
        )
    classes, pixels = len(manifest.classes), table["height"].astype(np.int64) * table["width"]
    for refused, wanted, found in (
        (table["label"] >= classes, f"a label below {classes}", "{0[label]}"),
        (pixels > MOST_PIXELS, f"at most {MOST_PIXELS:,} pixels", "{0[width]} x {0[height]}"),
    ):
        if len(rows := table[refused]):
            raise UserError(
                f"{record_path}: record at byte {rows[0]['offset']}: {wanted} expected, "
                f"found {found.format(rows[0])} ({len(rows)} such)"
            )
    first, last = manifest.part.images(len(table)) if split == "train" else (0, len(table))
    with open_file(record_path) as file:
        for row in table[[first, last - 1]][:sample]:
            _check_record(file, record_path, row, decode=False)
    return table


def _read_index(path: Path, most_bytes: int) -> NDArray[np.uint64]:
    """The numbers of an index, (lines, 2); a part at a time, as a hole in a file has no lines.

    Raises OSError, or ValueError, OverflowError or Warning where it has other lines.
    """
    parts = []
    with open_file(path, most_bytes) as file, warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy only warns of a file without a line
        while part := file.read(_INDEX_PART_BYTES):
            part += file.readline(_INDEX_LINE_BYTES)
            parts.append(np.loadtxt(io.BytesIO(part), dtype=np.uint64, delimiter="\t", ndmin=2))
    if not parts:
        raise ValueError
    return np.concatenate(parts)


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
