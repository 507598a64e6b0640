"""A packed set on the node's own disk: copied once a node, checked on the way.

Of a set that is larger than the disk a node can hold its part (`data.shards`): train.rec then has
its whole size, but only the records of the part take space. All else is copied whole.
"""

from __future__ import annotations

import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from ..config.atomic import follow_links, is_free, sync
from ..config.errors import UserError, failing_as
from ..config.manifest import FILE_NAME, SPLITS, WHOLE, Manifest, Part, load_manifest
from ..config.reading import open_file
from .dataset import check_digest, check_sizes, load_table
from .lock import hold

_BLOCK_BYTES = 4 << 20


def stage(
    source: Path,
    target: Path,
    part: Part = WHOLE,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
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
    manifest = load_manifest(source, WHOLE).model_copy(update={"part": part})
    check_sizes(source, manifest)
    target = follow_links(target)
    chunks = {split: _chunks_of(source, split, manifest) for split in SPLITS}
    total = sum(end - start for few in chunks.values() for start, end, _ in few)
    with failing_as(f"{target}: cannot write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f".{target.name}.staging.lock")
        with hold(lock, target, wait_s=math.inf), ExitStack() as cleanup:
            if not _is_staged(source, target, manifest):
                unfinished = _unfinished(target)
                shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
                cleanup.callback(
                    shutil.rmtree,
                    unfinished,
                    ignore_errors=True,
                )
                unfinished.mkdir()
                done = 0
                for split in SPLITS:
                    for suffix in manifest.splits[split].files.keys() - {"rec"}:
                        name = f"{split}.{suffix}"
                        shutil.copyfile(source / name, unfinished / name)
                        check_digest(unfinished / name, manifest.files[name])
                    name = f"{split}.rec"
                    for count in _copy_chunks(
                        source / name, unfinished / name, chunks[split]
                    ):
                        done += count
                        progress(done, total)
                    os.truncate(unfinished / name, manifest.files[name].bytes)
                (unfinished / FILE_NAME).write_text(manifest.to_json())
                unfinished.replace(target)
            progress(total, total)
    return manifest


def remove(target: Path) -> None:
    """Delete the staged set and what an unfinished copy left; nothing else. Raises UserError:
    `target` is there and is no packed set, or cannot be deleted."""
    target = follow_links(target)
    with failing_as(f"{target}: cannot remove"):
        if not is_free(target):
            for name in (*load_manifest(target).files, FILE_NAME):
                (target / name).unlink(missing_ok=True)
        if target.exists():
            target.rmdir()
    shutil.rmtree(_unfinished(target), ignore_errors=True)


def _is_staged(source: Path, target: Path, manifest: Manifest) -> bool:
    """The set at `target` is that of `source`, by its manifest and sizes."""
    if is_free(target):
        return False
    if load_manifest(target) != manifest:
        raise UserError(
            f"{target}: the set of {source} expected, found another; --remove it first"
        )
    check_sizes(target, manifest)
    return True


def _chunks_of(
    source: Path, split: str, manifest: Manifest
) -> list[tuple[int, int, int]]:
    """(start, end, CRC-32) of the chunks of a record file with records of the manifest's part."""
    of_split = manifest.splits[split]
    ends = [0, *(end for end, _ in of_split.chunks)]
    if ends[-1] != (size := of_split.files["rec"].bytes):
        place = f"{source / FILE_NAME}: splits.{split}.chunks"
        raise UserError(f"{place}: {size} bytes expected, found {ends[-1]}")
    offsets = [*load_table(source, split)["offset"].tolist(), ends[-1]]
    part = manifest.part if split == "train" else WHOLE
    first, last = (offsets[image] for image in part.images(len(offsets) - 1))
    chunks = zip(ends, of_split.chunks, strict=False)
    return [
        (start, end, crc)
        for start, (end, crc) in chunks
        if start < last and end > first
    ]


def _copy_chunks(
    source: Path, target: Path, chunks: list[tuple[int, int, int]]
) -> Iterator[int]:
    """Copy `chunks` to the same places, between which are holes; yields the bytes of each block,
    checks the CRC-32 of each chunk."""
    with target.open("wb") as out, open_file(source) as file:
        for start, end, wanted in chunks:
            found = 0
            file.seek(start)
            out.seek(start)
            while block := file.read(min(_BLOCK_BYTES, end - file.tell())):
                found = zlib.crc32(block, found)
                yield out.write(block)
            if found != wanted:
                raise UserError(
                    f"{source}: CRC-32 {wanted:08x} of bytes {start} to {end} expected "
                    f"(manifest.json), copied {found:08x}"
                )
    sync(target)


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")
