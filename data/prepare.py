"""The packed set that a config names: there already, or drawn and packed now."""

from __future__ import annotations

import difflib
import glob
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..config.atomic import follow_links
from ..config.errors import UserError, failing_as
from ..config.image_set import SYNTHETIC, wrong_counts
from ..config.leaves import Origin
from ..config.manifest import Counts, Manifest
from ..config.progress import Tracker
from ..config.schema import Data, Synthetic
from .dataset import check_before_run
from .listing import shortened
from .lock import hold
from .pack import pack_images
from .synthetic import make_images


def prepare(data: Data, track: Tracker, origins: Mapping[str, Origin] | None = None) -> Manifest:
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
    if not os.path.lexists(folder / "manifest.json"):
        if data.synthetic is None or not is_free(folder):
            raise UserError(explain_missing(data.path, (origins or {}).get("data.path")))
        _check_counts(data, data.synthetic, origins or {})
        with failing_as(f"{folder}: cannot create"):
            _draw_once(folder, data.synthetic, track)
    manifest = check_before_run(data, origins)
    _check_drawn(data, manifest)
    return manifest


def is_free(folder: Path) -> bool:
    """Whether nothing is there that drawing would touch."""
    try:
        return not any(folder.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return not os.path.lexists(folder)  # below a file: where nothing can be made
    except OSError:
        return False


def explain_missing(path: str, written_at: Origin | None = None) -> str:
    """One line for a `data.path` without a packed set: where it was written, what is there, what to
    do.

    Args:
        path: `data.path`.
        written_at: the file and line, or the command line, that it comes from.
    """
    folder = Path(os.path.realpath(path))
    try:
        names = sorted(entry.name for entry in folder.iterdir())
        found = f"a folder with {shortened(names, 3)}" if names else "an empty folder"
    except NotADirectoryError:
        found = "a file"
    except OSError as error:
        found = f"none ({error.strerror})"
    near = ""
    if folder.parent.is_dir():
        sets = [p.parent.name for p in folder.parent.glob("[!.]*/manifest.json")]
        if meant := difflib.get_close_matches(folder.name, sets, n=1) or sorted(sets)[:1]:
            near = f"; did you mean {folder.with_name(meant[0])}?"
    where = "" if written_at is None else f"{written_at}: "
    return (
        f"{where}data.path: a packed image set expected at {folder}, found {found}{near} "
        f"(make one with `rn50 data pack IMAGES {shlex.quote(str(folder))}`)"
    )


def _draw_once(folder: Path, settings: Synthetic, track: Tracker) -> None:
    """Draw the set unless another process does so; then wait until it is there."""
    target = follow_links(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.images-"
    with hold(target.parent / f".{target.name}.lock", target, wait=True):
        if not is_free(target):
            return
        for leftover in target.parent.glob(f"{glob.escape(prefix)}*"):  # of one that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            make_images(scratch / "images", settings, track("drawing images"))
            packing = track("packing records")
            pack_images(scratch / "images", scratch / "set", drawn=settings, progress=packing)
            try:
                (scratch / "set").replace(target)
            except OSError:
                if is_free(target):  # else another machine, with which we share no lock
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _check_counts(data: Data, synthetic: Synthetic, origins: Mapping[str, Origin]) -> None:
    """What is to be drawn is what the config says the set holds."""
    counts = Counts(*(getattr(synthetic, field) for field in Counts._fields))
    if problems := [*wrong_counts(data, counts, SYNTHETIC, origins)]:
        raise UserError(*problems)


def _check_drawn(data: Data, manifest: Manifest) -> None:
    """A set that was drawn is the one that the config would draw."""
    if data.synthetic is None or manifest.drawn is None:
        return
    for key, wanted in data.synthetic.model_dump().items():
        found = getattr(manifest.drawn, key)
        if found != wanted:
            raise UserError(
                f"{data.path}: drawn with data.synthetic.{key} = {wanted} expected, found {found}; "
                "give data.path another folder, or remove this one to have it drawn anew"
            )
