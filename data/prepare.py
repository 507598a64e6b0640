"""The packed set that a config names: there already, or drawn and packed now."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from ..config.image_set import SYNTHETIC, wrong_counts
from ..config.leaves import Origin
from ..config.manifest import Manifest, explain_missing, has_manifest
from ..config.schema import Data, Synthetic
from ..host.atomic import follow_links, is_free, partial_beside
from ..host.errors import UserError, failing_as
from ..host.lock import hold
from ..host.progress import Tracker
from .dataset import check_before_run
from .pack import pack_images
from .synthetic import make_images


def prepare(
    data: Data, track: Tracker, origins: Mapping[str, Origin] | None = None
) -> Manifest:
    """Make sure that `data.path` holds the set, and check it against the config.

    Of several processes that miss the same set one draws it, and the others wait and use it.

    Args:
        data: the data section; with `synthetic` set a missing folder is drawn.
        track: gives the progress callback of a named piece of work.
        origins: where the values were written, by dotted path, for the messages.

    Raises:
        UserError: no set and none to be drawn, or one that does not fit the config.
    """
    folder = Path(data.path)
    synthetic = data.synthetic
    if not has_manifest(folder):
        written = origins or {}
        if synthetic is None or not is_free(folder):
            raise UserError(describe_missing(data, written))
        if problems := [*wrong_counts(data, synthetic, SYNTHETIC, written)]:
            raise UserError(*problems)
        with failing_as(f"{folder}: cannot create"):
            _draw_once(folder, synthetic, track)
    return check_before_run(data, origins)


def describe_missing(data: Data, origins: Mapping[str, Origin]) -> str:
    """One line for a `data.path` without a packed set: where it was written and what to do."""
    where = f"{origins['data.path']}: " if "data.path" in origins else ""
    return f"{where}data.path: {explain_missing(Path(data.path))}"


def _draw_once(folder: Path, settings: Synthetic, track: Tracker) -> None:
    """Draw the set unless another process does so; then wait until it is there."""
    target = follow_links(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    with hold(lock, target, wait_s=math.inf):
        if not is_free(target):
            return
        with partial_beside(target, is_folder=True) as scratch:
            images = scratch / "images"
            packed = scratch / "set"
            make_images(images, settings, track("drawing images"))
            progress = track("packing records")
            pack_images(images, packed, synthetic=settings, progress=progress)
            packed.replace(target)
