"""One split into its record file by several processes, chunk by chunk."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.manifest import File, OddFile
from . import recordio
from .dataset import TABLE
from .journal import CHUNK_IMAGES, Chunk, Journal, Workspace, stamp
from .jpeg import UNENDED, decode_error, read_header
from .listing import Source

_PR_SET_PDEATHSIG = 1
_DEAD = -1


class Packed(NamedTuple):
    """What a split holds: labels by record, pixels, the record file's digest, odd files, (end,
    CRC-32) of each chunk."""

    labels: NDArray[np.uint32]
    pixels: int
    records: File
    odd: list[OddFile]
    chunks: list[tuple[int, int]]


def pack_split(
    workspace: Workspace,
    split: str,
    sources: Sequence[Source],
    processes: int,
    decode: bool,
    watch: Callable[[OddFile], None],
    progress: Callable[[int], None],
) -> Packed:
    """Write rec, idx and npy of `split` from `sources` in their order; continues what is there.
    `watch`: called with each file that is no ordinary JPEG, as it is met. Raises OSError: a write
    that failed."""
    odd: list[OddFile] = []
    done = 0
    try:
        with (
            closing(Journal(workspace, split, sources)) as journal,
            closing(_chunks(journal, split, sources, processes, decode)) as chunks,
        ):
            for chunk in chain(tuple(journal.chunks), chunks):
                for file in chunk.odd:
                    odd.append(OddFile(**file))
                    watch(odd[-1])
                done = min(done + CHUNK_IMAGES, len(sources))
                progress(done)
        rows = b"".join(b64decode(chunk.rows) for chunk in journal.chunks)
        table = np.frombuffer(rows, TABLE)
        offsets = table["offset"].tolist()
        with (workspace.folder / f"{split}.idx").open("w") as idx:
            idx.writelines(f"{number}\t{offset}\n" for number, offset in enumerate(offsets))
        np.save(workspace.folder / f"{split}.npy", table)
    except OSError as error:
        error.filename = error.filename or workspace.folder / f"{split}.rec"
        raise
    pixels = int(table["height"].astype(np.int64) @ table["width"].astype(np.int64))
    records = File(bytes=journal.end, sha256=journal.sha.hexdigest())
    crcs = [(chunk.end, chunk.crc32) for chunk in journal.chunks]
    return Packed(table["label"], pixels, records, odd, crcs)


# --- the workers --------------------------------------------------------------------------------


class _Job(NamedTuple):
    """What all workers of a split share; they get it by fork."""

    split: str
    sources: Sequence[Source]
    descriptor: int
    decode: bool
    turn: Any  # condition: whose chunk is next
    place: Any  # shared array: next chunk, its offset, its first number


_job: _Job


def _chunks(
    journal: Journal, split: str, sources: Sequence[Source], processes: int, decode: bool
) -> Generator[Chunk, None, None]:
    """The chunks in order from the first that is not committed on, each once it is."""
    first = len(journal.chunks)
    numbers = range(first, -(-len(sources) // CHUNK_IMAGES))
    samples = journal.chunks[-1].samples if journal.chunks else 0
    context = multiprocessing.get_context("fork")
    place = context.Array("q", [first, journal.end, samples], lock=False)
    job = _Job(split, sources, journal.descriptor, decode, context.Condition(), place)
    pool = ProcessPoolExecutor(
        max(1, min(processes, len(numbers))), context, _begin, (job, os.getpid())
    )
    ahead: deque[Future[Chunk]] = deque()
    try:
        for number in numbers:
            ahead.append(pool.submit(_pack_chunk, number))
            if len(ahead) > 2 * processes:
                yield journal.commit(ahead.popleft().result())
        while ahead:
            yield journal.commit(ahead.popleft().result())
    except BrokenProcessPool:
        raise OSError(0, "a worker process was killed") from None
    finally:
        place[0] = _DEAD  # those who wait for their turn need not
        pool.shutdown(cancel_futures=True)


def _begin(job: _Job, parent: int) -> None:
    """Start of a worker: it dies with its parent and leaves Ctrl-C to it."""
    global _job
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # it would touch, and so copy, every page of the list of a million sources
    _job = job


def _pack_chunk(number: int) -> Chunk:
    """Read and encode a chunk, wait for its place in the file, write it there."""
    try:
        first = number * CHUNK_IMAGES
        guess = first  # the record's number unless files before it were skipped
        times, images, odd = _read(_job.sources[first : first + CHUNK_IMAGES])
        records = _encode(images, guess)
        lengths = [sum(map(len, record)) for record in records]
        size = sum(lengths)
    except BaseException:
        with _job.turn:
            _job.place[0] = _DEAD
            _job.turn.notify_all()
        raise
    start, begun = _take_place(number, size, len(records))
    if begun != guess:
        records = _encode(images, begun)
    content = b"".join([piece for record in records for piece in record])
    written = 0
    while written < size:
        written += os.pwrite(_job.descriptor, memoryview(content)[written:], start + written)
    table = np.zeros(len(records), TABLE)
    table["offset"] = start + np.cumsum([0, *lengths])[:-1]
    whole = [not recordio.is_split(record) for record in records]
    table["length"] = np.multiply([len(image) for _, image, _, _ in images], whole)
    table["label"] = [source.label for source, _, _, _ in images]
    table["height"] = [height for _, _, height, _ in images]
    table["width"] = [width for _, _, _, width in images]
    return Chunk(
        end=start + size,
        crc32=zlib.crc32(content),
        samples=begun + len(records),
        stamp=stamp(times),
        odd=odd,
        rows=b64encode(table.tobytes()).decode(),
    )


def _take_place(number: int, size: int, samples: int) -> tuple[int, int]:
    """Wait until the chunks before `number` have their place; (offset, first record's number)."""
    with _job.turn:
        while _job.place[0] != number:
            if _job.place[0] == _DEAD:
                raise OSError(0, "stopped")
            _job.turn.wait(1.0)
        _, start, begun = _job.place
        _job.place[:] = [number + 1, start + size, begun + samples]
        _job.turn.notify_all()
    return start, begun


_Image = tuple[Source, bytes, int, int]


def _read(
    sources: Sequence[Source],
) -> tuple[list[tuple[int, int]], list[_Image], list[dict[str, Any]]]:
    """(size and time of each source, images that can be packed, odd files)."""
    times, images, odd = [], [], []

    def tell(source: Source, found: str, kept: bool) -> None:
        path = str(source)
        odd.append({"split": _job.split, "path": path, "found": found, "kept": kept})

    for source in sources:
        try:
            image, changed_ns = source.read()
        except OSError as error:
            times.append((-1, -1))
            tell(source, f"cannot read: {error.strerror}", False)
            continue
        times.append((len(image), changed_ns))
        try:
            height, width, oddity = read_header(image)
        except ValueError as error:
            tell(source, f"a JPEG or PNG image expected, {error}", False)
            continue
        if (_job.decode or oddity == UNENDED) and (problem := decode_error(image)):
            tell(source, f"an image that decodes expected: {problem}", False)
            continue
        if oddity:
            tell(source, oddity, True)
        images.append((source, image, height, width))
    return times, images, odd


def _encode(images: Sequence[_Image], first: int) -> list[list[bytes]]:
    return [
        recordio.encode(source.label, first + place, image)
        for place, (source, image, _, _) in enumerate(images)
    ]
