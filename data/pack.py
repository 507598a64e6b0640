"""An image set in ImageNet's layout to RecordIO: original bytes, no re-encoding but of PNGs with
transparency.

Killed at any point, the same command continues with the first part that is not complete and ends
with the same bytes.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from ..config.manifest import FILE_NAME, FORMAT, SPLITS, Manifest, OddFile, Split
from ..config.schema import Synthetic
from ..host.atomic import follow_links, refuse_content
from ..host.errors import UserError
from ..host.progress import Progress, say_aside, silent
from .decoder import has_dali
from .listing import SourceImage, list_images
from .pack_parts import PackedSplit, PackJob, pack_split
from .survey import shortened
from .workspace import workspace

_MOST_NAMED = 20
_EXAMPLES = 2


def pack_images(
    images: Path,
    out: Path,
    *,
    shuffle_seed: int = 0,
    processes: int | None = None,
    skip_bad: int = 0,
    hold_out: float | None = None,
    recursive: bool = False,
    synthetic: Synthetic | None = None,
    progress: Progress = silent,
) -> Manifest:
    """Pack `images` into `out`, which appears only when complete.

    Records are shuffled by `shuffle_seed`, so that readers which shuffle within a buffer mix
    classes as well. Classes are numbered by their sorted names. All files are looked at before a
    bad one ends the packing, so that it names all bad ones; what is packed by then stays.

    Args:
        images: in a layout of `listing`.
        out: folder to make; an unfinished packing of the same images into it is continued.
        shuffle_seed: order of the records, and which images are held out.
        processes: that read and encode; default: one for each core. The result is the same.
        skip_bad: so many files that are no image are left out and named in the manifest.
        hold_out: without a val: the share of every class of train that is taken for it.
        recursive: images in folders below that of a class are of the class.
        synthetic: what the images were drawn with, for the manifest.
        progress: called with (images done, images in all) after each part.

    Raises:
        UserError: more bad files than `skip_bad`, no images, a class without images, no space,
            another process packs into `out`.
    """
    refuse_content(out)
    classes, sources_of = list_images(
        images, hold_out, shuffle_seed, recursive=recursive
    )
    orders = {}
    for split in SPLITS:
        orders[split] = _shuffled(sources_of[split], shuffle_seed)
    total = sum(map(len, orders.values()))
    done = 0

    def advance(count: int) -> None:
        """Count images that are packed."""
        nonlocal done
        done += count
        progress(done, total)

    has_dali()  # before the workers are forked
    gc.freeze()  # the collector would walk, and workers so copy, the list of a million sources
    target = follow_links(out)
    with workspace(target, _key(orders, shuffle_seed)) as folder:
        packed = {}
        for split, sources in orders.items():
            job = PackJob(
                folder=folder,
                split=split,
                sources=sources,
                classes=len(classes),
                processes=processes or len(os.sched_getaffinity(0)),
            )
            packed[split] = pack_split(job, advance)
        splits = {split: of_split.split for split, of_split in packed.items()}
        odd_files = [
            file for of_split in packed.values() for file in of_split.odd_files
        ]
        _refuse_bad(odd_files, skip_bad, total)
        _check_classes(splits, classes, images)
        _print_copies(images, packed["train"], packed["val"])
        manifest = Manifest(
            format=FORMAT,
            classes=classes,
            shuffle_seed=shuffle_seed,
            splits=splits,
            odd_files=odd_files,
            drawn=synthetic,
        )
        (folder / FILE_NAME).write_text(manifest.to_json())
        # parts, and the key by which an unfinished packing is known
        for path in folder.iterdir():
            if path.name not in (FILE_NAME, *manifest.files):
                path.unlink()
        folder.replace(target)
    return manifest


def _key(orders: Mapping[str, Sequence[SourceImage]], seed: int) -> str:
    """What is packed: every source in order, where it really lies, and the seed."""
    real = cache(os.path.realpath)  # of each folder once, not of a million images
    sha = hashlib.sha256(str(seed).encode())
    for sources in orders.values():
        lines = []
        for source in sources:
            folder, _, _ = source.path.rpartition("/")
            numbers = f"{source.label} {source.offset} {source.length}"
            lines.append(f"{numbers} {real(folder)} {source.name}")
        listing = "\n".join(lines)
        sha.update(listing.encode(errors="replace"))
    return sha.hexdigest()


def _refuse_bad(odd_files: Sequence[OddFile], skip_bad: int, total: int) -> None:
    bad = sorted(f"{file.path}: {file.found}" for file in odd_files)
    if len(bad) > skip_bad:
        raise UserError(
            *bad[:_MOST_NAMED],
            f"{len(bad):,} bad file(s) of {total:,} images, more than the {skip_bad} of "
            "--skip-bad; mend or remove them, or leave them out with --skip-bad "
            f"{len(bad)} (what is packed by now is kept)",
        )


def _check_classes(
    splits: Mapping[str, Split], classes: Sequence[str], images: Path
) -> None:
    """Raises UserError: where the bad files are left out, val or a class of train has no image."""
    counts = zip(classes, splits["train"].class_counts, strict=True)
    empty = [name for name, count in counts if not count]
    if not splits["val"].samples:
        empty.append("val")
    if empty:
        raise UserError(f"{images}: {shortened(empty)}: no image that is not bad")


def _print_copies(images: Path, train: PackedSplit, val: PackedSplit) -> None:
    """Print how many photos of val are photos of train, which it was to be held apart from, and how
    many photos lie in two classes."""
    digests = np.concatenate([train.digests, val.digests])
    labels = np.concatenate([train.labels, val.labels])
    names = train.names + [f"val/{name}" for name in val.names]
    _, firsts, copied = np.unique(digests, return_index=True, return_inverse=True)
    firsts = firsts[copied]  # of each photo the first that has its bytes
    is_val = np.arange(len(digests)) >= len(train.digests)
    in_train = is_val & ~is_val[firsts]
    in_two = labels != labels[firsts]
    for copies, what in (
        (in_train, "photos of val that are in train as well"),
        (in_two, "photos that lie in more than one class"),
    ):
        if numbers := np.flatnonzero(copies).tolist():
            examples = [
                f"{names[number]} is {names[firsts[number]]}"
                for number in numbers[:_EXAMPLES]
            ]
            say_aside(f"{images}: {what}: {len(numbers):,} ({', '.join(examples)})")


def _shuffled(sources: list[SourceImage], seed: int) -> list[SourceImage]:
    stream = np.random.Generator(np.random.Philox(seed))
    order = stream.permutation(len(sources))
    return [sources[number] for number in order]
