"""A packed set on the node's own disk: copied once a node, checked on the way, taken up again.

Of a set that is larger than the disk a node can hold its part (`data.shards`): train.rec then has
its whole size, but only the records of the part take space. All else is copied whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ..config.atomic import follow_links
from ..config.errors import UserError
from ..config.manifest import FILE_NAME, MOST_BYTES, WHOLE, File, Manifest, Part, load_manifest
from ..config.reading import open_file, read_file
from .dataset import check_sizes, load_table
from .lock import hold

_BLOCK_BYTES = 4 << 20


def stage(
    source: Path,
    target: Path,
    part: Part = WHOLE,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Copy the packed set `source` to `target`, which appears when every digest is right.

    What an earlier copy that was killed left is taken up again, after a check of its bytes; a part
    of train.rec is copied anew. A target that holds the same set already is left as it is.

    Args:
        source: a packed set.
        target: folder to make, on a disk of this node.
        part: the training records to copy, with what else is in their chunks.
        progress: called with (bytes done, bytes in all).

    Raises:
        UserError: no packed set, another one at `target`, bytes that are not those of the
            manifest, no space.
    """
    manifest, text = _wanted(source, part)
    target = follow_links(target)
    total = sum(file.bytes for file in manifest.files.values())
    copy_records = _copy
    if part != WHOLE:
        chunks = _chunks_of(source, manifest)
        total += sum(end - start for start, end, _ in chunks) - manifest.files["train.rec"].bytes
        copy_records = partial(_copy_chunks, chunks)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with hold(target.with_name(f".{target.name}.staging.lock"), target, wait=True):
            if not _is_staged(source, target, manifest, text):
                unfinished = _unfinished(target)
                unfinished.mkdir(exist_ok=True)
                done = 0
                for name, file in manifest.files.items():
                    copy = copy_records if name == "train.rec" else _copy
                    copied = 0
                    for copied in copy(source / name, unfinished / name, file):
                        progress(done + copied, total)
                    done += copied
                (unfinished / FILE_NAME).write_bytes(text)
                unfinished.replace(target)
            progress(total, total)
    except OSError as error:
        raise UserError(
            f"{error.filename or target}: cannot write: {error.strerror} "
            "(what is copied stays, the same command continues; --remove frees the disk)"
        ) from None
    return manifest


def remove(target: Path) -> None:
    """Delete the staged set and what an unfinished copy left; nothing else. Raises UserError:
    `target` is there and is no packed set, or cannot be deleted."""
    target = follow_links(target)
    try:
        if target.exists() and any(target.iterdir()):
            names = [*load_manifest(target).files, FILE_NAME]
            for name in names:
                (target / name).unlink(missing_ok=True)
        if target.exists():
            target.rmdir()
    except OSError as error:
        raise UserError(f"{error.filename or target}: cannot remove: {error.strerror}") from None
    shutil.rmtree(_unfinished(target), ignore_errors=True)


def _wanted(source: Path, part: Part) -> tuple[Manifest, bytes]:
    """The manifest that a copy of `source`, or of a part of it, has, and its text."""
    manifest, text = load_manifest(source, WHOLE), _manifest_text(source)
    if part == WHOLE:
        return manifest, text
    manifest = manifest.model_copy(update={"part": part})
    return manifest, manifest.to_json().encode()


def _manifest_text(folder: Path) -> bytes:
    return read_file(folder / FILE_NAME, MOST_BYTES)


def _is_staged(source: Path, target: Path, manifest: Manifest, text: bytes) -> bool:
    """The set at `target` is that of `source`, by its manifest's `text` and sizes."""
    if not target.is_dir() or not any(target.iterdir()):
        return False
    if not (target / FILE_NAME).is_file() or _manifest_text(target) != text:
        raise UserError(
            f"{target}: no folder yet, or the set of {source} expected, found something else "
            "(`rn50 data stage --remove` deletes a set that was staged there)"
        )
    check_sizes(target, manifest)
    return True


def _copy(source: Path, target: Path, wanted: File) -> Iterator[int]:
    """Copy a file from where `target` ends on; yields bytes done, checks size and digest."""
    sha = hashlib.sha256()
    done = 0
    with target.open("ab+") as out, open_file(source) as file:
        out.seek(0)
        if os.fstat(out.fileno()).st_size > wanted.bytes:
            out.truncate(0)
        while block := out.read(_BLOCK_BYTES):
            sha.update(block)
            done += len(block)
            yield done
        file.seek(done)
        while block := file.read(_BLOCK_BYTES):
            out.write(block)
            sha.update(block)
            done += len(block)
            yield done
        out.flush()
        os.fsync(out.fileno())
    if done != wanted.bytes or sha.hexdigest() != wanted.sha256:
        target.unlink()
        raise UserError(
            f"{source}: {wanted.bytes} bytes with SHA-256 {wanted.sha256[:12]}... expected "
            f"(manifest.json), copied {done} with {sha.hexdigest()[:12]}... to {target}"
        )


def _chunks_of(source: Path, manifest: Manifest) -> list[tuple[int, int, int]]:
    """(start, end, CRC-32) of the chunks of train.rec with records of the manifest's part."""
    train = manifest.splits["train"]
    ends = [0, *(end for end, _ in train.chunks)]
    if ends[-1] != train.files["rec"].bytes or ends != sorted(ends):
        raise UserError(
            f"{source / FILE_NAME}: splits.train.chunks: checksums of train.rec expected, "
            "found none (older versions write none: pack the set again, or stage all of it)"
        )
    offsets = [*load_table(source, "train")["offset"].tolist(), ends[-1]]
    first, last = (offsets[image] for image in manifest.part.images(len(offsets) - 1))
    chunks = zip(ends, train.chunks, strict=False)
    return [(start, end, crc) for start, (end, crc) in chunks if start < last and end > first]


def _copy_chunks(
    chunks: Sequence[tuple[int, int, int]], source: Path, target: Path, whole: File
) -> Iterator[int]:
    """Copy `chunks` to their places in a file of full size, the rest of which is a hole; yields
    bytes done, checks the CRC-32 of each."""
    done = 0
    with target.open("wb") as out, open_file(source) as file:
        out.truncate(whole.bytes)
        for start, end, wanted in chunks:
            found = 0
            file.seek(start)
            out.seek(start)
            while block := file.read(min(_BLOCK_BYTES, end - file.tell())):
                found = zlib.crc32(block, found)
                done += out.write(block)
                yield done
            if found != wanted:
                target.unlink()
                raise UserError(
                    f"{source}: CRC-32 {wanted:08x} of bytes {start} to {end} expected "
                    f"(manifest.json), copied {found:08x}"
                )
        out.flush()
        os.fsync(out.fileno())


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")
