"""One split into its record file, in numbered parts of 128 images, each complete or absent.

Worker processes read images and write `train-000007.rec`; this process appends it to `train.rec`,
follows with the digest and writes `train-000007.part`, which makes the part complete. What is
complete, and still has the bytes and the sources that it had, is not packed again.
"""

from __future__ import annotations

import gc
import hashlib
import json
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.manifest import LIST, File, OddFile, Split
from ..host.atomic import write_file
from . import recordio
from .dataset import TABLE, Table, digest_file
from .jpeg import read_image
from .listing import SourceImage
from .workers import worker_pool

PART_IMAGES = 128
"""14 MB of ImageNet in the memory of each worker."""


class PackedPart(NamedTuple):
    """What `train-000007.part` holds."""

    bytes: int  # in the record file
    crc32: int
    odd_files: list[dict[str, str]]
    rows: list[list[int]]  # of the sample table; offsets from the part's own start
    names: list[str]  # of the photos
    digests: list[int]  # of the photos: the same for the same bytes


class PackedSplit(NamedTuple):
    """What was packed of a split; the arrays and names have one entry a record."""

    split: Split
    odd_files: list[OddFile]
    names: list[str]
    labels: NDArray[np.uint32]
    digests: NDArray[np.uint64]


class PackJob(NamedTuple):
    """What the workers of a split share; they get it by fork."""

    folder: Path
    split: str
    sources: Sequence[SourceImage]
    classes: int
    processes: int

    @property
    def parts(self) -> int:
        """How many parts the split has."""
        return -(-len(self.sources) // PART_IMAGES)

    def file(self, suffix: str) -> Path:
        """A file of the split."""
        return self.folder / f"{self.split}.{suffix}"

    def path(self, number: int) -> Path:
        """The file that makes a part complete."""
        return self.folder / f"{self.split}-{number:06}.part"

    def sources_of(self, number: int) -> Sequence[SourceImage]:
        """The images of a part."""
        first = number * PART_IMAGES
        return self.sources[first : first + PART_IMAGES]


_job: PackJob


def pack_split(job: PackJob, advance: Callable[[int], None]) -> PackedSplit:
    """Write the files of a split from its sources in their order. `advance` gets the number of
    images of each part that is done. Raises OSError: a write that failed, or a worker that was
    killed."""
    sha = hashlib.sha256()
    end = 0
    tables = list[Table]()
    chunks = list[tuple[int, int]]()
    odd_files = list[OddFile]()
    names = list[str]()
    digests = list[int]()

    def add(part: PackedPart, content: bytes) -> None:
        """Take a part behind those before it."""
        nonlocal end
        sha.update(content)
        rows = [tuple(row) for row in part.rows]
        table = np.array(rows, TABLE)
        table["offset"] += end
        end += part.bytes
        advance(len(job.sources_of(len(tables))))
        tables.append(table)
        chunks.append((end, part.crc32))
        odd_files.extend(OddFile(**file) for file in part.odd_files)
        names.extend(part.names)
        digests.extend(part.digests)

    with job.file("rec").open("ab+") as records:
        records.seek(0)
        for part, content in _complete_parts(job, records):
            add(part, content)
        # what a part that was not complete has left
        records.seek(records.truncate(end))
        with closing(_encoded_parts(job, len(tables))) as encoded_parts:
            for part in encoded_parts:
                path = job.path(len(tables))
                encoded = path.with_suffix(".rec")
                content = encoded.read_bytes()
                encoded.unlink()
                records.write(content)
                records.flush()  # before the file that says so
                write_file(path, json.dumps(part))
                add(part, content)
    table = np.concatenate(tables)
    files = {"rec": File(bytes=end, sha256=sha.hexdigest())}
    files |= _write_tables(job, table, names)
    class_counts = np.bincount(table["label"], minlength=job.classes)
    split = Split.model_construct(  # unchecked: one without any image is refused later
        samples=len(table),
        class_counts=class_counts.tolist(),
        files=files,
        chunks=chunks,
    )
    return PackedSplit(
        split, odd_files, names, table["label"], np.array(digests, np.uint64)
    )


def _write_tables(job: PackJob, table: Table, names: Sequence[str]) -> dict[str, File]:
    """Write the files of a split beside its records: what they are, by suffix."""
    np.save(job.file("npy"), table)
    numbers = range(len(table))
    _write_rows(job.file("idx"), numbers, table["offset"].tolist())
    _write_rows(job.file(LIST), numbers, table["label"].tolist(), names)
    return {suffix: digest_file(job.file(suffix)) for suffix in ("idx", "npy", LIST)}


def _write_rows(path: Path, *columns: Sequence[object]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in zip(*columns, strict=True):
            print(*row, sep="\t", file=file)


def _complete_parts(
    job: PackJob, records: BinaryIO
) -> Iterator[tuple[PackedPart, bytes]]:
    """The parts from the first on whose bytes are as they were and whose sources are older."""
    for number in range(job.parts):
        path = job.path(number)
        try:
            part = PackedPart(*json.loads(path.read_text()))
            paths = (Path(source.path) for source in job.sources_of(number))
            changed_ns = max(path.stat().st_ctime_ns for path in paths)
        except (OSError, ValueError, TypeError):
            return
        content = records.read(part.bytes)
        if zlib.crc32(content) != part.crc32:
            return
        if changed_ns > path.stat().st_mtime_ns:
            return
        yield part, content


def _encoded_parts(job: PackJob, first: int) -> Generator[PackedPart, None, None]:
    """The parts in order from `first` on, encoded by worker processes."""
    missing = job.parts - first
    processes = max(1, min(job.processes, missing))
    ahead: deque[Future[PackedPart]] = deque()
    with worker_pool(processes, partial(_take, job)) as pool:
        for number in range(first, job.parts):
            ahead.append(pool.submit(_encode_part, number))
            # so that each worker has its next part at hand
            if len(ahead) > 2 * processes:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _take(job: PackJob) -> None:
    global _job
    gc.disable()  # it would touch, and so copy, every page of the list of a million sources
    _job = job


def _encode_part(number: int) -> PackedPart:
    """Read and encode a part into a file of its own: a pipe takes 1.2 times the CPU.

    A record's number is its file's place in the list: one that is bad leaves a gap, and the numbers
    of later parts do not wait for it.
    """
    rows = list[list[int]]()
    odd_files = list[dict[str, str]]()
    names = list[str]()
    digests = list[int]()
    records = list[bytes]()
    offset = 0
    first = number * PART_IMAGES
    for number_of_record, source in enumerate(_job.sources_of(number), first):
        try:
            image, height, width = read_image(source.read())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            odd_files.append(
                {
                    "split": _job.split,
                    "path": str(source),
                    "found": f"a JPEG or PNG image expected, {reason}",
                }
            )
            continue
        record = recordio.encode(source.label, number_of_record, image)
        length = 0 if recordio.is_split(record) else len(image)
        rows.append([offset, length, source.label, height, width])
        names.append(source.listed)
        digest = hashlib.blake2b(image, digest_size=8).digest()  # 0.1 ms for 110 kB
        digests.append(int.from_bytes(digest, "little"))
        offset += sum(map(len, record))
        records += record
    content = b"".join(records)
    _job.path(number).with_suffix(".rec").write_bytes(content)
    return PackedPart(
        len(content), zlib.crc32(content), odd_files, rows, names, digests
    )
