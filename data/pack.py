"""An image set in ImageNet's layout to RecordIO: original bytes, no re-encoding.

Worker processes read and encode chunks of the shuffled list, take their place in the record file
in turn and write there themselves; this process commits chunks in order to a journal and follows
with the digest. Killed at any point, the same command goes on from the last committed chunk and
ends with the same bytes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..config.errors import UserError
from ..config.schema import Synthetic
from .atomic import follow_links, refuse_content
from .dataset import FORMAT, SPLITS, SUFFIXES, Manifest, OddFile, Split, digest_file
from .journal import Workspace
from .listing import Source, list_images
from .pack_split import pack_split

Progress = Callable[[int, int], None]


def pack_images(
    images: Path,
    out: Path,
    *,
    shuffle_seed: int = 0,
    processes: int | None = None,
    skip_bad: int = 0,
    decode: bool = False,
    val_labels: Path | None = None,
    drawn: Synthetic | None = None,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """Pack `images` into `out`, which appears only when complete.

    Records are shuffled by `shuffle_seed`, so that readers which shuffle within a buffer mix
    classes as well. Classes are numbered by their sorted names.

    Args:
        images: in a layout of `listing`.
        out: folder to make; an unfinished packing of the same images into it is continued.
        shuffle_seed: order of the records.
        processes: that read and encode; default: one for each core. The result is the same.
        skip_bad: so many files that are no image are left out and named in the manifest.
        decode: decode every image; one that does not is bad.
        val_labels: label file of a flat val.
        drawn: what the images were drawn with, for the manifest.
        progress: called with (images done, images in all) after each chunk.

    Raises:
        UserError: no images, a class without images, more bad files than `skip_bad`, no space.
    """
    refuse_content(out)
    out = follow_links(out)
    with _no_collections():
        return _pack(
            images, out, shuffle_seed, processes, skip_bad, decode, val_labels, drawn, progress
        )


@contextmanager
def _no_collections() -> Iterator[None]:
    """Without Python's garbage collector: it walks the list of a million files again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _pack(
    images: Path,
    out: Path,
    shuffle_seed: int,
    processes: int | None,
    skip_bad: int,
    decode: bool,
    val_labels: Path | None,
    drawn: Synthetic | None,
    progress: Progress,
) -> Manifest:
    classes, listing = list_images(images, val_labels)
    total = sum(map(len, listing.values()))
    processes = processes or len(os.sched_getaffinity(0))
    orders = {split: _shuffled(listing[split], shuffle_seed) for split in SPLITS}
    with Workspace(out, orders, (shuffle_seed, skip_bad, decode)) as workspace:
        splits = {}
        odd: list[OddFile] = []
        before = 0
        for split in SPLITS:

            def step(done: int, before: int = before) -> None:
                progress(before + done, total)

            found = pack_split(
                workspace, split, orders[split], processes, skip_bad - _bad(odd), decode, step
            )
            odd += found.odd
            before += len(orders[split])
            splits[split] = Split(
                samples=len(found.labels),
                class_counts=np.bincount(found.labels, minlength=len(classes)).tolist(),
                files={
                    "rec": found.records,
                    **{
                        suffix: digest_file(workspace.folder / f"{split}.{suffix}")
                        for suffix in SUFFIXES[1:]
                    },
                },
            )
            if empty := [n for n, count in enumerate(splits["train"].class_counts) if not count]:
                raise UserError(f"{images}: {classes[empty[0]]}: no image that is not bad")
        manifest = Manifest(
            format=FORMAT,
            classes=classes,
            shuffle_seed=shuffle_seed,
            splits=splits,
            odd_files=odd,
            drawn=drawn,
        )
        workspace.finish(manifest.to_json())
    return manifest


def _shuffled(sources: list[Source], seed: int) -> list[Source]:
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(sources))
    return [sources[i] for i in order]


def _bad(odd: list[OddFile]) -> int:
    return sum(not file.kept for file in odd)
