"""One split into its record file, in numbered parts of 128 images, each complete or absent.

Worker processes read images and write `train-000007.rec`; this process appends it to `train.rec`,
follows with the digest and writes `train-000007.part`, which makes the part complete. What is
complete, and still has the bytes and the sources that it had, is not packed again.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import multiprocessing
import os
import signal
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..config.atomic import write_file
from ..config.manifest import SUFFIXES, File, OddFile
from . import recordio
from .dataset import TABLE, Table, digest_file
from .jpeg import UNENDED, decode_error, read_header
from .listing import Source

PART_IMAGES = 128
"""14 MB of ImageNet in the memory of each worker."""
_PR_SET_PDEATHSIG = 1


class Part(NamedTuple):
    """What `train-000007.part` holds."""

    bytes: int  # in the record file
    crc32: int
    stamp: int  # of the sizes and times of its sources
    odd: list[dict[str, Any]]
    rows: str  # of the sample table, in base64; offsets from the part's own start


class PackedSplit(NamedTuple):
    """What the manifest says of a split, and its sample table."""

    table: Table
    class_counts: list[int]
    files: dict[str, File]
    chunks: list[tuple[int, int]]  # (end, CRC-32) of each part
    odd: list[OddFile]


class Job(NamedTuple):
    """What the workers of a split share; they get it by fork."""

    folder: Path
    split: str
    sources: Sequence[Source]
    classes: int
    decode: bool  # every image; one that does not decode is bad
    processes: int

    @property
    def parts(self) -> int:
        return -(-len(self.sources) // PART_IMAGES)

    def path(self, number: int) -> Path:
        return self.folder / f"{self.split}-{number:06}.part"

    def sources_of(self, number: int) -> Sequence[Source]:
        return self.sources[number * PART_IMAGES : (number + 1) * PART_IMAGES]


_job: Job


def pack_split(job: Job, progress: Callable[[int], None]) -> PackedSplit:
    """Write rec, idx and npy of a split from its sources in their order. `progress` gets the number
    of images that are done. Raises OSError: a write that failed, or a worker that was killed."""
    sha, parts = hashlib.sha256(), list[Part]()

    def add(part: Part, content: bytes) -> None:
        sha.update(content)
        parts.append(part)
        progress(min(len(parts) * PART_IMAGES, len(job.sources)))

    with (job.folder / f"{job.split}.rec").open("ab+") as records:
        records.seek(0)
        for part, content in _complete_parts(job, records):
            add(part, content)
        records.seek(records.truncate(sum(part.bytes for part in parts)))
        with closing(_encoded_parts(job, len(parts))) as encoded_parts:
            for part in encoded_parts:
                path = job.path(len(parts))
                content = path.with_suffix(".rec").read_bytes()
                path.with_suffix(".rec").unlink()
                records.write(content)
                records.flush()
                write_file(path, json.dumps(part))
                add(part, content)
    ends = list(accumulate(part.bytes for part in parts))
    tables = [np.frombuffer(b64decode(part.rows), TABLE) for part in parts]
    table = np.concatenate(tables)
    table["offset"] += np.repeat(np.array([0, *ends[:-1]], np.uint64), [*map(len, tables)])
    with (job.folder / f"{job.split}.idx").open("w") as index:
        index.writelines(f"{n}\t{offset}\n" for n, offset in enumerate(table["offset"].tolist()))
    np.save(job.folder / f"{job.split}.npy", table)
    files = {suffix: digest_file(job.folder / f"{job.split}.{suffix}") for suffix in SUFFIXES[1:]}
    return PackedSplit(
        table=table,
        class_counts=np.bincount(table["label"], minlength=job.classes).tolist(),
        files={"rec": File(bytes=ends[-1], sha256=sha.hexdigest()), **files},
        chunks=[(end, part.crc32) for end, part in zip(ends, parts, strict=True)],
        odd=[OddFile(**file) for part in parts for file in part.odd],
    )


def _complete_parts(job: Job, records: BinaryIO) -> Iterator[tuple[Part, bytes]]:
    """The parts from the first on whose bytes and sources are as they were."""
    for number in range(job.parts):
        try:
            part = Part(*json.loads(job.path(number).read_text()))
        except (OSError, ValueError, TypeError):
            return
        content = records.read(part.bytes)
        times = [_time_on_disk(source) for source in job.sources_of(number)]
        if zlib.crc32(content) != part.crc32 or _stamp(times) != part.stamp:
            return
        yield part, content


def _encoded_parts(job: Job, first: int) -> Generator[Part, None, None]:
    """The parts in order from `first` on, encoded by worker processes."""
    processes = max(1, min(job.processes, job.parts - first))
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, context, _begin, (job, os.getpid()))
    ahead: deque[Future[Part]] = deque()
    try:
        for number in range(first, job.parts):
            ahead.append(pool.submit(_encode_part, number))
            if len(ahead) > 2 * processes:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    except BrokenProcessPool:
        raise OSError(0, "a worker process was killed") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(job: Job, parent: int) -> None:
    """Start of a worker: it dies with its parent and leaves Ctrl-C to it."""
    global _job
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # it would touch, and so copy, every page of the list of a million sources
    _job = job


def _encode_part(number: int) -> Part:
    """Read and encode a part into a file of its own: a pipe takes 1.2 times the CPU.

    A record's number is its file's place in the list: one that is bad leaves a gap, and the numbers
    of later parts do not wait for it.
    """
    times: list[tuple[int, int]] = []
    rows: list[tuple[int, int, int, int, int]] = []
    odd, records, offset = [], list[bytes](), 0
    for place, source in enumerate(_job.sources_of(number), number * PART_IMAGES):
        try:
            image, changed_ns = source.read()
            times.append((len(image), changed_ns))
            height, width, oddity = read_header(image)
        except OSError as error:
            times.append((-1, -1))
            odd.append(_odd(source, f"cannot read: {error.strerror}", kept=False))
            continue
        except ValueError as error:
            odd.append(_odd(source, f"a JPEG or PNG image expected, {error}", kept=False))
            continue
        if (_job.decode or oddity == UNENDED) and (problem := decode_error(image)):
            odd.append(_odd(source, f"an image that decodes expected: {problem}", kept=False))
            continue
        if oddity:
            odd.append(_odd(source, oddity, kept=True))
        record = recordio.encode(source.label, place, image)
        length = 0 if recordio.is_split(record) else len(image)
        rows.append((offset, length, source.label, height, width))
        offset += sum(map(len, record))
        records += record
    content = b"".join(records)
    _job.path(number).with_suffix(".rec").write_bytes(content)
    return Part(
        bytes=len(content),
        crc32=zlib.crc32(content),
        stamp=_stamp(times),
        odd=odd,
        rows=b64encode(np.array(rows, TABLE).tobytes()).decode(),
    )


def _odd(source: Source, found: str, *, kept: bool) -> dict[str, Any]:
    return {"split": _job.split, "path": str(source), "found": found, "kept": kept}


def _stamp(times: Sequence[tuple[int, int]]) -> int:
    """A number for (size, time of change) of each source of a part."""
    return zlib.crc32(repr(times).encode())


def _time_on_disk(source: Source) -> tuple[int, int]:
    try:
        about = Path(source.path).stat()
    except OSError:
        return -1, -1
    return (about.st_size if source.length < 0 else source.length), about.st_mtime_ns
