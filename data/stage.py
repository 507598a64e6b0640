"""A packed set on the node's own disk: copied once a node, checked on the way.

Of a set that is larger than the disk a node can hold its part (`data.shards`): train.rec then has
its whole size, but only the records of the part take space. All else is copied whole.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..config.manifest import (
    FILE_NAME,
    SPLITS,
    WHOLE,
    Manifest,
    Part,
    has_manifest,
    load_manifest,
)
from ..host.atomic import copy_file, follow_links, is_free, sync
from ..host.errors import UserError, failing_as
from ..host.lock import hold
from ..host.progress import Progress, silent
from ..host.reading import blocks_of, open_file
from .dataset import check_digest, check_sizes, load_table

Chunk = tuple[int, int, int]
"""Start, end and CRC-32 of a piece of a record file."""


def stage(
    source: Path, target: Path, part: Part = WHOLE, *, progress: Progress = silent
) -> None:
    """Copy the packed set `source` to `target`, which appears when every checksum is right. A
    target that holds the same set already is left as it is.

    Args:
        source: a packed set.
        target: folder to make, on a disk of this node.
        part: the training records to copy, with what else is in their chunks.
        progress: called with (bytes done, bytes in all).

    Raises:
        UserError: no packed set, another one at `target`, bytes that are not those of the
            manifest, no space.
    """
    source_manifest = load_manifest(source, WHOLE)
    manifest = source_manifest.model_copy(update={"part": part})
    check_sizes(source, manifest)
    target = follow_links(target)
    chunks = {}
    total = 0
    for split in SPLITS:
        chunks[split] = _chunks_of(source, split, manifest)
        total += sum(end - start for start, end, _ in chunks[split])
    lock = target.with_name(f".{target.name}.staging.lock")
    with failing_as(f"{target}: cannot write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with hold(lock, target, wait_s=math.inf):
            if not _is_staged(source, target, manifest):
                unfinished = _unfinished(target)
                shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
                unfinished.mkdir()
                try:
                    done = 0
                    for count in _copy(source, unfinished, manifest, chunks):
                        done += count
                        progress(done, total)
                    unfinished.replace(target)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)


def remove(source: Path, target: Path) -> None:
    """Delete the copy of `source` at `target` and what an unfinished copy left; nothing else.
    Raises UserError: `target` is there and is no copy of `source`, or cannot be deleted."""
    target = follow_links(target)
    with failing_as(f"{target}: cannot remove"):
        if not is_free(target):
            staged = _load_copy(source, target)
            for name in (*staged.files, FILE_NAME):
                (target / name).unlink(missing_ok=True)
        if target.exists():
            target.rmdir()
    shutil.rmtree(_unfinished(target), ignore_errors=True)


def _is_staged(source: Path, target: Path, manifest: Manifest) -> bool:
    """The set at `target` is that of `source`, by its manifest and sizes."""
    if is_free(target):
        return False
    staged = _load_copy(source, target)
    if staged != manifest:
        raise UserError(
            f"{target}: {manifest.part} of {source} expected, found another copy of it with "
            f"{staged.part}; --remove it first"
        )
    check_sizes(target, manifest)
    return True


def _load_copy(source: Path, target: Path) -> Manifest:
    """The manifest of the set at `target`. Raises UserError: it is not that of `source`, whole or a
    part of it. It may be somebody's only one."""
    staged = load_manifest(target)
    expected = f"{target}: a copy of the set of {source} expected"
    way_out = f"if it is not needed: rm -r {shlex.quote(str(target))}"
    if not has_manifest(source):
        raise UserError(
            f"{expected}, found a set that cannot be compared with it, because no set is there; "
            f"{way_out}"
        )
    if staged.model_copy(update={"part": WHOLE}) != load_manifest(source, WHOLE):
        raise UserError(f"{expected}, found another set; {way_out}")
    return staged


def _chunks_of(source: Path, split: str, manifest: Manifest) -> list[Chunk]:
    """The chunks of a record file with records of the manifest's part."""
    of_split = manifest.splits[split]
    ends = [0]
    ends += [end for end, _ in of_split.chunks]
    size = of_split.files["rec"].bytes
    if ends[-1] != size:
        key = f"{source / FILE_NAME}: splits.{split}.chunks"
        raise UserError(f"{key}: {size} bytes expected, found {ends[-1]}")
    table = load_table(source, split)
    offsets = [*table["offset"].tolist(), size]
    part = manifest.part if split == "train" else WHOLE
    first, last = (offsets[image] for image in part.images(of_split.samples))
    chunks = []
    for start, (end, crc32) in zip(ends, of_split.chunks, strict=False):
        if start < last and end > first:
            chunks.append((start, end, crc32))
    return chunks


def _copy(
    source: Path, target: Path, manifest: Manifest, chunks: Mapping[str, list[Chunk]]
) -> Iterator[int]:
    """Copy the files of a set, and check them; yields the bytes of each block of records."""
    for name, file in sorted(manifest.files.items()):
        original = source / name
        copy = target / name
        split, _, suffix = name.partition(".")
        if suffix == "rec":
            yield from _copy_chunks(original, copy, chunks[split])
            os.truncate(copy, file.bytes)  # a hole behind the last chunk
        else:
            copy_file(original, copy)
            check_digest(copy, file)
    (target / FILE_NAME).write_text(manifest.to_json())


def _copy_chunks(source: Path, target: Path, chunks: list[Chunk]) -> Iterator[int]:
    """Copy `chunks` to the same places, between which are holes; yields the bytes of each block,
    checks the CRC-32 of each chunk."""
    with failing_as(f"{source}: cannot read"):
        file = open_file(source)
    with file, target.open("wb") as out:
        for start, end, crc32 in chunks:
            copied = 0
            out.seek(start)
            for block in blocks_of(source, file, start, end):
                copied = zlib.crc32(block, copied)
                yield out.write(block)
            if copied != crc32:
                raise UserError(
                    f"{source}: CRC-32 {crc32:08x} of bytes {start} to {end} expected "
                    f"(manifest.json), copied {copied:08x}"
                )
    sync(target)


def _unfinished(target: Path) -> Path:
    # not .partial, which is that of `pack`
    return target.with_name(f".{target.name}.staging")
