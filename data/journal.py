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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.atomic import open_own, own_folder
from ..config.errors import UserError
from ..config.manifest import FILE_NAME, Manifest
from .listing import Source

CHUNK_IMAGES = 128
"""Images that are committed together: 14 MB of ImageNet in the memory of each worker."""
_WAIT_S = 20.0
_KEY_BYTES = 65  # the first line of a journal
_BLOCK_BYTES = 1 << 20


class Chunk(NamedTuple):
    """A line of the journal: the record file is whole up to byte `end`."""

    end: int
    crc32: int  # of its bytes in the record file
    samples: int  # so far
    stamp: int  # of the sizes and times of its sources
    odd: list[dict[str, Any]]
    rows: str  # of the sample table, in base64


def partial_folder(out: Path) -> Path:
    """Where the set `out` lies while it is packed or staged."""
    return out.parent / f".{out.name}.partial"


class Workspace:
    """`.NAME.partial` beside `out`: locked while in use, kept if anything in it is worth it. Raises
    UserError: another process packs into it, or a file of it cannot be made or written."""

    def __init__(self, out: Path, options: Sequence[Any]) -> None:
        """`options`: those that change the result."""
        self.out, self.options = out, options
        self.folder = partial_folder(out)

    def __enter__(self) -> Workspace:
        try:
            own_folder(self.folder)
            self._lock = open_own(self.folder / "lock", os.O_RDWR)
        except OSError as error:
            nowhere = error.errno in (errno.ENOENT, errno.ENOTDIR)  # to make anything in
            where = self.out if nowhere or error.filename is None else error.filename
            raise UserError(f"{where}: cannot create: {error.strerror}") from None
        self._take_lock()
        return self

    def __exit__(self, kind: object, error: object, _: object) -> None:
        journals = self.folder.glob("*.journal")
        committed = any(path.stat().st_size > _KEY_BYTES for path in journals)
        if kind is not None and not committed:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        if isinstance(error, OSError):
            kept = " (the same command goes on from here)" if committed else ""
            raise UserError(
                f"{error.filename or self.out}: cannot write: {error.strerror or error}{kept}"
            ) from None

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, remove what only packing needs, and become `out`."""
        (self.folder / FILE_NAME).write_text(manifest.to_json())
        for path in self.folder.iterdir():
            if path.name not in (FILE_NAME, *manifest.files):
                path.unlink()
        self.folder.replace(self.out)

    def list_bad(self, lines: Sequence[str]) -> Path:
        """Write the list of bad files, which stays until the packing is complete; its path."""
        path = self.folder / "bad_files.txt"
        path.write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")
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
    """What is committed of one split: its records, and a line for each chunk behind a key that
    names what is packed; what lies there of other images or another seed is dropped."""

    def __init__(self, workspace: Workspace, split: str, sources: Sequence[Source]) -> None:
        self.chunks: list[Chunk] = []
        self.end = 0
        self.sha = hashlib.sha256()
        self.descriptor = open_own(workspace.folder / f"{split}.rec", os.O_RDWR)
        journal = open_own(workspace.folder / f"{split}.journal", os.O_RDWR)
        self._lines = os.fdopen(journal, "r+b")
        key = _key(sources, workspace.options)
        found = [line for line in self._lines if line.endswith(b"\n")]  # else torn by a kill
        kept = found[:1] if found[:1] == [key] else []
        if kept:
            self._take_over(found[1:], sources)
            kept += found[1 : 1 + len(self.chunks)]
        os.ftruncate(self.descriptor, self.end)
        self._lines.truncate(sum(map(len, kept)))
        self._lines.seek(0, os.SEEK_END)
        if not kept:
            self._write(key)

    def commit(self, chunk: Chunk) -> Chunk:
        """Make a chunk part of the set and of its digest; its bytes are in the record file."""
        self._write(json.dumps(chunk).encode() + b"\n")
        self.chunks.append(chunk)
        while self.end < chunk.end:
            block = os.pread(self.descriptor, min(_BLOCK_BYTES, chunk.end - self.end), self.end)
            self.sha.update(block)
            self.end += len(block)
        return chunk

    def close(self) -> None:
        try:
            self._lines.close()  # writes what a full disk did not take, and fails again
        finally:
            os.close(self.descriptor)

    def _write(self, line: bytes) -> None:
        self._lines.write(line)
        self._lines.flush()

    def _take_over(self, lines: Sequence[bytes], sources: Sequence[Source]) -> None:
        """The committed chunks whose bytes and sources are as they were."""
        with open(self.descriptor, "rb", closefd=False) as records:
            for number, line in enumerate(lines):
                try:
                    chunk = Chunk(*json.loads(line))
                except (ValueError, TypeError):
                    break  # torn by a power failure
                content = records.read(chunk.end - self.end)
                part = sources[number * CHUNK_IMAGES : (number + 1) * CHUNK_IMAGES]
                if zlib.crc32(content) != chunk.crc32 or _stamp_on_disk(part) != chunk.stamp:
                    break
                self.sha.update(content)
                self.chunks.append(chunk)
                self.end = chunk.end


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


def _key(sources: Sequence[Source], options: Sequence[Any]) -> bytes:
    """A line that names what is packed: every source in order, and the options."""
    sha = hashlib.sha256(json.dumps(list(options)).encode())
    lines = [f"{s.label} {s.name} {s.offset} {s.length}" for s in sources]
    sha.update("\n".join(lines).encode(errors="replace"))
    return f"{sha.hexdigest()}\n".encode()
