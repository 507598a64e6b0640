"""The hidden folder beside a set being packed: what is committed there, and who may write."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.atomic import open_own, own_folder
from ..config.errors import UserError
from ..config.manifest import SPLITS
from ..config.reading import open_file, read_file
from .listing import Source

CHUNK_IMAGES = 128
"""Images that are committed together: 14 MB of ImageNet in the memory of each worker."""
_WAIT_S = 20.0
_BAD_FILES = "bad_files.txt"
_BLOCK_BYTES = 1 << 20


class Chunk(NamedTuple):
    """A line of the journal: the record file is whole up to byte `end`."""

    end: int
    crc32: int  # of its bytes in the record file
    samples: int  # so far
    stamp: int  # of the sizes and times of its sources
    odd: list[dict[str, Any]]


def partial_folder(out: Path) -> Path:
    """Where the set `out` lies while it is packed."""
    return out.parent / f".{out.name}.partial"


class Workspace:
    """`.NAME.partial` beside `out`: locked while in use, kept if anything in it is worth it. Raises
    UserError: another process packs into it, or it cannot be made."""

    def __init__(
        self, out: Path, orders: Mapping[str, Sequence[Source]], options: Sequence[Any]
    ) -> None:
        self.out = out
        self.folder = partial_folder(out)
        self._key = _key(orders, options)

    def __enter__(self) -> Workspace:
        try:
            own_folder(self.folder)
            self._lock = open_own(self.folder / "lock", os.O_RDWR)
        except OSError as error:
            nowhere = error.errno in (errno.ENOENT, errno.ENOTDIR)  # to make anything in
            where = self.out if nowhere or error.filename is None else error.filename
            raise UserError(f"{where}: cannot create: {error.strerror}") from None
        self._take_lock()
        if self._is_of_the_same():
            return self
        for path in self.folder.iterdir():  # of other images or another seed
            if path.name != "lock":
                path.unlink()
        try:
            (self.folder / "key").write_text(self._key)
        except OSError as error:
            raise UserError(f"{self.folder / 'key'}: cannot write: {error.strerror}") from None
        return self

    def _is_of_the_same(self) -> bool:
        """Whether what lies there was packed of the same images in the same way."""
        try:
            return read_file(self.folder / "key", len(self._key)) == self._key.encode()
        except OSError:
            return False

    @property
    def committed(self) -> bool:
        """Whether a part of the images is packed for good, from where the next call goes on."""
        return any(
            path.exists() and path.stat().st_size > 0
            for path in (self.folder / f"{split}.journal" for split in SPLITS)
        )

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and not self.committed:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    def finish(self, manifest: str) -> None:
        """Write the manifest, remove what only packing needs, and become `out`."""
        try:
            (self.folder / "manifest.json").write_text(manifest)
            for split in SPLITS:
                for suffix in ("journal", "rows"):
                    (self.folder / f"{split}.{suffix}").unlink(missing_ok=True)
            for name in ("key", "lock", _BAD_FILES):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.replace(self.out)
        except OSError as error:
            raise UserError(
                f"{error.filename or self.out}: cannot write: {error.strerror}"
            ) from None

    def list_bad(self, lines: Sequence[str]) -> Path:
        """Write the list of bad files, which stays until the packing is complete; its path."""
        path = self.folder / _BAD_FILES
        try:
            path.write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")
        except OSError as error:
            raise UserError(f"{path}: cannot write: {error.strerror}") from None
        return path

    def _take_lock(self) -> None:
        """Workers hold the lock as well and die with their parent: give them time to."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{self.out}: nobody else to write it expected, found another "
                        f"`rn50 data pack` at work in {self.folder}"
                    ) from None
                time.sleep(0.02)


class Journal:
    """What is committed of one split: records, rows of the table and a line for each chunk."""

    def __init__(self, folder: Path, split: str, sources: Sequence[Source], row_bytes: int) -> None:
        self.records = folder / f"{split}.rec"
        self._row_bytes = row_bytes
        self.sha = hashlib.sha256()
        self.chunks = self._read(folder / f"{split}.journal", sources)
        samples = self.chunks[-1].samples if self.chunks else 0
        self.end = self.chunks[-1].end if self.chunks else 0
        self.descriptor = open_own(self.records, os.O_RDWR)
        os.ftruncate(self.descriptor, self.end)
        self._rows = (folder / f"{split}.rows").open("ab", buffering=0)
        self._rows.truncate(samples * row_bytes)
        self._lines = (folder / f"{split}.journal").open("w")
        for chunk in self.chunks:
            self._lines.write(json.dumps(chunk) + "\n")
        self._lines.flush()

    def commit(self, chunk: Chunk, rows: bytes) -> None:
        """Make a chunk part of the set and of its digest; its bytes are in the record file."""
        written = 0
        while written < len(rows):
            written += self._rows.write(rows[written:])
        self._lines.write(json.dumps(chunk) + "\n")
        self._lines.flush()
        self.chunks.append(chunk)
        while self.end < chunk.end:
            block = os.pread(self.descriptor, min(_BLOCK_BYTES, chunk.end - self.end), self.end)
            self.sha.update(block)
            self.end += len(block)

    def close(self) -> None:
        for file in (self._rows, self._lines):
            file.close()
        os.close(self.descriptor)

    def _read(self, path: Path, sources: Sequence[Source]) -> list[Chunk]:
        """The committed chunks whose bytes and sources are as they were."""
        rows = path.with_suffix(".rows")
        if not path.exists() or not rows.exists() or not self.records.exists():
            return []
        chunks: list[Chunk] = []
        start = 0
        with open_file(self.records) as records:
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
                try:
                    chunk = Chunk(*json.loads(line))
                except (ValueError, TypeError):
                    break  # torn by the kill
                content = records.read(chunk.end - start)
                part = sources[number * CHUNK_IMAGES : (number + 1) * CHUNK_IMAGES]
                if (
                    not line.endswith(b"\n")
                    or zlib.crc32(content) != chunk.crc32
                    or chunk.samples * self._row_bytes > rows.stat().st_size
                    or _stamp_on_disk(part) != chunk.stamp
                ):
                    break
                self.sha.update(content)
                chunks.append(chunk)
                start = chunk.end
        return chunks


def stamp(times: Sequence[tuple[int, int]]) -> int:
    """A number for (size, time of change) of each source of a chunk."""
    return zlib.crc32(repr(times).encode())


def _stamp_on_disk(sources: Sequence[Source]) -> int:
    times = []
    for source in sources:
        try:
            about = Path(source.path).stat()
        except OSError:
            times.append((-1, -1))
            continue
        size = about.st_size if source.length < 0 else source.length
        times.append((size, about.st_mtime_ns))
    return stamp(times)


def _key(orders: Mapping[str, Sequence[Source]], options: Sequence[Any]) -> str:
    """Names what is packed: every source in order, and the options that change the result."""
    sha = hashlib.sha256(json.dumps(list(options)).encode())
    for split, sources in orders.items():
        lines = [f"{s.label} {s.name} {s.offset} {s.length}" for s in sources]
        sha.update(f"{split} {len(lines)}\n".encode() + "\n".join(lines).encode(errors="replace"))
    return sha.hexdigest()
