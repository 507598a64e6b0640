"""What to say of a `data.path` that holds no packed set: near misses, and what else lies there."""

from __future__ import annotations

import difflib
import os
import shlex
from pathlib import Path

from ..config.leaves import Origin
from ..config.names import PRESETS
from .journal import partial_folder
from .listing import IMAGE_SUFFIXES, TRAIN_TAR, shortened

_MOST_NAMED = 5
_MOST_ENTRIES = 2000  # of a folder, looked at for a hint


def explain_missing(path: str, written_at: Origin | None = None) -> str:
    """One line: where `data.path` was written, what is there, what may be meant, what to do.

    Args:
        path: `data.path`, which holds no packed set.
        written_at: the file and line, or the command line, that it comes from.
    """
    folder = Path(os.path.realpath(path))
    where = "" if written_at is None else f"{written_at}: "
    found, images = _look(folder)
    own = _own_folder(written_at)
    meant = _from_here(folder, own) or _near_miss(folder)
    if images is not None:
        packed = images.with_name(f"{images.name}_packed")
        pack = f"pack them with `rn50 data pack {_word(images)} {_word(packed)}`"
    else:
        target = "FOLDER" if _has_content(folder) else _word(Path(path))
        make = "make one" if target == "FOLDER" else "make it"
        pack = f"{make} with `rn50 data pack IMAGES {target}`"
    if meant is not None:
        pack = f"did you mean {_as_written(meant, path, own)}? Else {pack}"
    elif found == "nothing" and (beside := _sets_in(folder.parent)):
        found += f" (packed sets beside it: {beside})"
    return f"{where}data.path: a packed image set expected at {folder}, found {found}; {pack}"


def _look(folder: Path) -> tuple[str, Path | None]:
    """(what is there instead, the image folder that it is)."""
    try:
        if not folder.is_dir():
            if partial_folder(folder).is_dir():
                return "a packing that is not finished", None
            return ("a file" if folder.exists() else "nothing"), None
        names = _names(folder)
    except OSError as error:
        return f"what cannot be read ({error.strerror})", None
    if not names:
        return "an empty folder", None
    if "train" in names or TRAIN_TAR in names or _holds_classes(folder, names):
        return "images that are not packed", folder
    if (folder / "train.rec").is_file():
        return "records without their manifest.json", None
    if inside := _sets_in(folder):
        return f"a folder of packed sets ({inside})", None
    return "a folder without manifest.json", None


def _has_content(folder: Path) -> bool:
    """Whether something is there that packing would not touch."""
    try:
        return bool(_names(folder))
    except FileNotFoundError:
        return False
    except OSError:  # a file among others
        return True


def _holds_classes(folder: Path, names: list[str]) -> bool:
    """Whether a folder of it holds an image file."""
    for name in names[:_MOST_NAMED]:
        try:
            inside = _names(folder / name) if (folder / name).is_dir() else []
        except OSError:
            continue
        if any(file.lower().endswith(IMAGE_SUFFIXES) for file in inside):
            return True
    return False


def _near_miss(folder: Path) -> Path | None:
    """The packed set whose path is nearest to that of `folder`, one misspelt name at a time."""
    there, rest = folder, list[str]()
    while not os.path.isdir(there) and there != there.parent:  # noqa: PTH112 (raises nothing)
        rest.insert(0, there.name)
        there = there.parent
    if not rest:  # it is there and is no set: one beside it, or within
        rest, there = [folder.name], folder.parent
    candidates = [there]
    for name in rest:
        candidates = [
            candidate / near for candidate in candidates for near in _near(candidate, name)
        ]
    sets = [found for found in candidates if found != folder and _is_set(found)]
    return next(iter(sets), None)


def _sets_in(folder: Path) -> str:
    """The packed sets in a folder; empty: it has none."""
    try:
        names = [n for n in _names(folder) if not n.startswith(".") and _is_set(folder / n)]
    except OSError:
        return ""
    return shortened(names, _MOST_NAMED)


def _near(folder: Path, name: str) -> list[str]:
    try:
        names = [entry for entry in _names(folder) if not entry.startswith(".")]
    except OSError:
        return []
    return difflib.get_close_matches(name, names, n=_MOST_NAMED)


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False))


def _is_set(folder: Path) -> bool:
    try:
        return (folder / "manifest.json").is_file()
    except OSError:
        return False


def _own_folder(written_at: Origin | None) -> Path | None:
    """The folder of the user's YAML, to which its paths are relative; None: no such file."""
    if written_at is None or written_at.line is None:
        return None
    folder = Path(written_at.source).resolve().parent
    return None if folder.is_relative_to(PRESETS) else folder


def _from_here(folder: Path, own: Path | None) -> Path | None:
    """The set that the path would name from the current folder, not from that of its YAML."""
    if own is None:
        return None
    found = Path(os.path.realpath(os.path.relpath(folder, own)))
    return found if found != folder and _is_set(found) else None


def _as_written(found: Path, path: str, own: Path | None) -> str:
    """As the user would write it: relative to the YAML, or where `path` is."""
    if own is not None:
        return os.path.relpath(found, own)
    return str(found) if Path(path).is_absolute() else os.path.relpath(found)


def _word(path: Path) -> str:
    return shlex.quote(str(path))
