"""An image set in ImageNet's layout to RecordIO: original bytes, no re-encoding.

Killed at any point, the same command continues with the first part that is not complete and ends
with the same bytes.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..config.atomic import follow_links, refuse_content
from ..config.errors import UserError, failing_as
from ..config.manifest import FILE_NAME, FORMAT, SPLITS, Manifest, OddFile, Split
from ..config.schema import Synthetic
from .listing import Source, list_images, named_kinds, shortened
from .lock import hold
from .pack_parts import Job, PackedSplit, pack_split

Progress = Callable[[int, int], None]
Warn = Callable[[str], None]
_MOST_NAMED = 20
_LARGE_MEGAPIXELS = 2.0
_MS_PER_MEGAPIXEL = 2.8
"""Of a core, to decode JPEG: 12-megapixel ones at 30 a second on an AMD EPYC (docs/own_data.md)."""


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
        progress: called with (images done, images in all) after each part.
        warn: called with what the user should know: classes without evaluation images, files passed
            over, images that are large.

    Raises:
        UserError: more bad files than `skip_bad`, no images, a class without images, no space,
            another process packs into `out`.
    """
    refuse_content(out)
    listing = list_images(images, val_labels, hold_out, shuffle_seed)
    if listing.passed_over:
        warn(f"{images}: not packed: {named_kinds(listing.passed_over)}")
    orders = {split: _shuffled(listing.splits[split], shuffle_seed) for split in SPLITS}
    total = sum(map(len, orders.values()))
    gc.freeze()  # the collector would walk, and workers so copy, the list of a million sources
    with _workspace(follow_links(out), _key(orders, shuffle_seed, decode=decode)) as folder:
        found: dict[str, PackedSplit] = {}
        before = 0
        for split, sources in orders.items():
            job = Job(
                folder=folder,
                split=split,
                sources=sources,
                classes=len(listing.classes),
                decode=decode,
                processes=processes or len(os.sched_getaffinity(0)),
            )
            found[split] = pack_split(job, _after(before, total, progress))
            before += len(sources)
        odd = [file for split in SPLITS for file in found[split].odd]
        bad = sorted((file for file in odd if not file.kept), key=lambda file: file.path)
        _refuse_bad(bad, skip_bad, total)
        _check_classes(found, listing.classes, images)
        _warn_of(found, listing.classes, warn)
        manifest = Manifest(
            format=FORMAT,
            classes=listing.classes,
            shuffle_seed=shuffle_seed,
            splits={
                split: Split(
                    samples=len(packed.table),
                    class_counts=packed.class_counts,
                    files=packed.files,
                    chunks=packed.chunks,
                )
                for split, packed in found.items()
            },
            odd_files=odd,
            drawn=drawn,
        )
        (folder / FILE_NAME).write_text(manifest.to_json())
        for path in folder.iterdir():
            if path.name not in (FILE_NAME, *manifest.files):
                path.unlink()
        folder.replace(follow_links(out))
    return manifest


@contextmanager
def _workspace(out: Path, key: str) -> Iterator[Path]:
    """The folder `.NAME.partial` beside `out`, held by this process alone. It stays behind an error
    if a part in it is complete, and is emptied where it is of other images or another seed.

    Raises UserError: another process packs into it, or a file of it cannot be made or written.
    """
    folder = out.with_name(f".{out.name}.partial")
    with failing_as(f"{out}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
    with hold(out.with_name(f".{out.name}.lock"), out):
        try:
            if not (folder / "key").is_file() or (folder / "key").read_text() != key:
                shutil.rmtree(folder)
                folder.mkdir()
                (folder / "key").write_text(key)
            yield folder
        except OSError as error:
            raise UserError(
                f"{error.filename or out}: cannot write: {error.strerror or error} "
                "(the same command continues with what is packed)"
            ) from None
        finally:
            if folder.is_dir() and not any(folder.glob("*.part")):
                shutil.rmtree(folder, ignore_errors=True)


def _key(orders: Mapping[str, Sequence[Source]], seed: int, *, decode: bool) -> str:
    """What is packed: every source in order, and the options that change the result."""
    sha = hashlib.sha256(json.dumps([seed, decode]).encode())
    for sources in orders.values():
        lines = [f"{s.label} {s.name} {s.offset} {s.length}" for s in sources]
        sha.update("\n".join(lines).encode(errors="replace"))
    return sha.hexdigest()


def _refuse_bad(bad: Sequence[OddFile], skip_bad: int, total: int) -> None:
    if len(bad) > skip_bad:
        raise UserError(
            *(f"{file.path}: {file.found}" for file in bad[:_MOST_NAMED]),
            f"{len(bad):,} bad file(s) of {total:,} images, more than the {skip_bad} of "
            "--skip-bad; mend or remove them, or leave them out with --skip-bad "
            f"{len(bad)} (what is packed by now is kept)",
        )


def _after(before: int, total: int, progress: Progress) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


def _shuffled(sources: list[Source], seed: int) -> list[Source]:
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(sources))
    return [sources[i] for i in order]


def _check_classes(found: Mapping[str, PackedSplit], classes: Sequence[str], images: Path) -> None:
    """Raises UserError: a split without an image that is not bad, or a class of train."""
    for split, packed in found.items():
        if not len(packed.table):
            raise UserError(f"{images}: {split}: no image that is not bad")
    if empty := _classes_without(classes, found["train"]):
        raise UserError(f"{images}: {shortened(empty)}: no image that is not bad")


def _classes_without(classes: Sequence[str], packed: PackedSplit) -> list[str]:
    """The classes of which a split has no image."""
    counts = zip(classes, packed.class_counts, strict=True)
    return [name for name, count in counts if not count]


def _warn_of(found: Mapping[str, PackedSplit], classes: Sequence[str], warn: Warn) -> None:
    if lacking := _classes_without(classes, found["val"]):
        many = f"{len(lacking)} of {len(classes)} classes"
        warn(f"val has no image of {many}: {shortened(lacking)}")
    sides = np.concatenate([packed.table[["height", "width"]] for packed in found.values()])
    megapixels = float(np.mean(sides["height"].astype(np.float64) * sides["width"])) / 1e6
    if megapixels > _LARGE_MEGAPIXELS:
        ms = megapixels * _MS_PER_MEGAPIXEL
        warn(
            f"the mean image has {megapixels:.1f} megapixels: every epoch decodes each again, "
            f"about {ms:.0f} ms of a core; docs/own_data.md makes photos smaller first"
        )
