"""An image set in ImageNet's layout to RecordIO: original bytes, no re-encoding.

Worker processes read and encode chunks of the shuffled list, take their place in the record file
in turn and write there themselves; this process commits chunks in order to a journal and follows
with the digest. Killed at any point, the same command goes on from the last committed chunk and
ends with the same bytes.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..config.atomic import follow_links, refuse_content
from ..config.errors import UserError
from ..config.manifest import FORMAT, SPLITS, SUFFIXES, File, Manifest, OddFile, Split
from ..config.schema import Synthetic
from .dataset import digest_file
from .describe import classes_without
from .journal import Workspace
from .listing import Source, list_images, named_kinds, shortened
from .pack_split import Packed, pack_split

Progress = Callable[[int, int], None]
Warn = Callable[[str], None]
_MOST_NAMED = 20
_LARGE_MEGAPIXELS = 2.0
_MS_PER_MEGAPIXEL = 2.8
"""Of a core, to decode JPEG: 12-megapixel ones at 30 a second on an AMD EPYC (docs/own_data.md)."""


class BadFilesError(UserError):
    """More bad files than may be left out; `files` are all of them."""

    def __init__(self, lines: Sequence[str], files: Sequence[OddFile]) -> None:
        super().__init__(*lines)
        self.files = files


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


@_no_collections()
def pack_images(
    images: Path,
    out: Path,
    *,
    shuffle_seed: int = 0,
    processes: int | None = None,
    skip_bad: int = 0,
    decode: bool = False,
    val_labels: Path | None = None,
    hold_out: float | None = None,
    drawn: Synthetic | None = None,
    progress: Progress = lambda done, total: None,
    warn: Warn = lambda message: None,
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
        decode: decode every image; one that does not is bad.
        val_labels: label file of a flat val.
        hold_out: without a val: the share of every class of train that is taken for it.
        drawn: what the images were drawn with, for the manifest.
        progress: called with (images done, images in all) after each chunk.
        warn: called with what the user should know at once: classes without evaluation images,
            files passed over, the first bad file.

    Raises:
        BadFilesError: more bad files than `skip_bad`.
        UserError: no images, a class without images, no space.
    """
    refuse_content(out)
    target = follow_links(out)  # what is renamed to a link would replace it
    listing = list_images(images, val_labels, hold_out, shuffle_seed)
    if listing.passed_over:
        warn(f"{images}: not packed: {named_kinds(listing.passed_over)}")
    lacking = classes_without(listing.classes, listing.counts("val"))
    _warn_of(lacking, listing.classes, images, warn)
    processes = processes or len(os.sched_getaffinity(0))
    orders = {split: _shuffled(listing.splits[split], shuffle_seed) for split in SPLITS}
    total = sum(map(len, orders.values()))
    with Workspace(target, (shuffle_seed, decode)) as workspace:
        found: dict[str, Packed] = {}
        before = 0
        watch = _first_bad(skip_bad, warn)
        for split in SPLITS:

            def step(done: int, before: int = before) -> None:
                progress(before + done, total)

            found[split] = pack_split(
                workspace, split, orders[split], processes, decode, watch, step
            )
            before += len(orders[split])
        odd = [file for split in SPLITS for file in found[split].odd]
        _check_bad(odd, skip_bad, total, workspace)
        counts = _count(found, listing.classes, images)
        if (left := classes_without(listing.classes, counts["val"])) != lacking:
            _warn_of(left, listing.classes, images, warn)
        _warn_of_size(found.values(), warn)
        manifest = Manifest(
            format=FORMAT,
            classes=listing.classes,
            shuffle_seed=shuffle_seed,
            splits={
                split: Split(
                    samples=len(found[split].labels),
                    class_counts=counts[split],
                    files=_files(workspace.folder, split, found[split].records),
                    chunks=found[split].chunks,
                )
                for split in SPLITS
            },
            odd_files=odd,
            drawn=drawn,
        )
        workspace.finish(manifest)
    return manifest


def _count(
    found: Mapping[str, Packed], classes: Sequence[str], images: Path
) -> dict[str, list[int]]:
    """Images of each class by split. Raises UserError for a class of train without any."""
    counts = {}
    for split, packed in found.items():
        counts[split] = np.bincount(packed.labels, minlength=len(classes)).tolist()
        if not len(packed.labels):
            raise UserError(f"{images}: {split}: no image that is not bad")
    if empty := classes_without(classes, counts["train"]):
        raise UserError(f"{images}: {shortened(empty)}: no image that is not bad")
    return counts


def _files(folder: Path, split: str, records: File) -> dict[str, File]:
    others = {suffix: digest_file(folder / f"{split}.{suffix}") for suffix in SUFFIXES[1:]}
    return {"rec": records, **others}


def _warn_of(lacking: list[str], classes: Sequence[str], images: Path, warn: Warn) -> None:
    if lacking:
        many = f"{len(lacking)} of {len(classes)} classes"
        warn(f"{images}: val has no image of {many}: {shortened(lacking)}")


def _warn_of_size(found: Collection[Packed], warn: Warn) -> None:
    images = sum(len(split.labels) for split in found)
    megapixels = sum(split.pixels for split in found) / images / 1e6
    if megapixels > _LARGE_MEGAPIXELS:
        ms = megapixels * _MS_PER_MEGAPIXEL
        warn(
            f"the mean image has {megapixels:.1f} megapixels: every epoch decodes each again, "
            f"about {ms:.0f} ms of a core; docs/own_data.md makes photos smaller first"
        )


def _first_bad(skip_bad: int, warn: Warn) -> Callable[[OddFile], None]:
    """Called with every odd file: warns once, of the first bad one that is one too many."""
    bad = 0

    def watch(file: OddFile) -> None:
        nonlocal bad
        bad += not file.kept
        if not file.kept and bad == skip_bad + 1:
            warn(f"{file.path}: {file.found}; looking at the others too, to name every bad file")

    return watch


def _check_bad(odd: Sequence[OddFile], skip_bad: int, total: int, workspace: Workspace) -> None:
    bad = sorted((file for file in odd if not file.kept), key=lambda file: file.path)
    if len(bad) <= skip_bad:
        return
    lines = [f"{file.path}: {file.found}" for file in bad]
    where = ""
    if len(bad) > _MOST_NAMED:
        where = f", all in {workspace.list_bad(lines)}"
    files = "bad file" if len(bad) == 1 else "bad files"
    found = (
        f"{len(bad):,} {files} of {total:,} images, more than the {skip_bad} of --skip-bad{where}"
    )
    advice = f"mend or remove them, or leave them out with --skip-bad {len(bad)}"
    last = f"{found}; {advice} (which goes on from what is packed by now)"
    raise BadFilesError([*lines[:_MOST_NAMED], last], bad)


def _shuffled(sources: list[Source], seed: int) -> list[Source]:
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(sources))
    return [sources[i] for i in order]
