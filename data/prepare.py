"""The packed set that a config names: there already, or drawn and packed now."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..config.errors import UserError
from ..config.schema import Data, Synthetic
from .dataset import Manifest, check_before_run
from .pack import pack_images
from .synthetic import make_images

Tracker = Callable[[str], Callable[[int, int], None]]


def prepare(data: Data, track: Tracker) -> Manifest:
    """Make sure that `data.path` holds the set, and check it against the config.

    Args:
        data: the data section; with `synthetic` set a missing folder is made.
        track: gives the progress callback of a named piece of work.

    Raises:
        UserError: no set and none to be drawn, or one that does not fit the config.
    """
    folder = Path(data.path)
    if not folder.exists():
        if data.synthetic is None:
            raise UserError(
                f"{folder}: a packed image set expected (data.path), found none; "
                f"make it with `rn50 data pack IMAGES {folder}`"
            )
        _check_sizes(data, data.synthetic)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.images-", dir=folder.parent))
        except OSError as error:
            raise UserError(f"{folder}: cannot create: {error.strerror}") from None
        try:
            make_images(scratch / "images", data.synthetic, track("drawing images"))
            pack_images(
                scratch / "images", folder, drawn=data.synthetic, progress=track("packing records")
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return check_before_run(data)


def _check_sizes(data: Data, synthetic: Synthetic) -> None:
    """What is to be drawn is what the config says the set holds."""
    for key in ("classes", "train_samples", "eval_samples"):
        wanted, drawn = getattr(data, key), getattr(synthetic, key)
        if wanted != drawn:
            raise UserError(
                f"data.{key}: the same as data.synthetic.{key} ({drawn}) expected, found {wanted}"
            )
