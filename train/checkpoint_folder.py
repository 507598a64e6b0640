"""The checkpoints of a run's folder: the newest whole one, the best, and those that may go.

Loads no framework.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..config.atomic import partial_beside
from ..config.errors import UserError
from .checkpoint import BEST, Checkpoint, Part, read

_NAME = re.compile(r"(step|best)_(\d{10})\.(?:ckpt|(?:model|rank_\d{5,7})\.safetensors)")


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of a folder, and what is wrong with those that are newer."""
    problems: list[str] = []
    for path in reversed(listed(folder)):
        try:
            found = read(path)
            found.verify()
            return found, problems
        except UserError as error:
            problems.append(str(error))
    return None, problems


def chosen(path: Path) -> Checkpoint:
    """The checkpoint that a path means: a manifest itself, or of a run's folder the best, else the
    newest whole one. Its parts are checked where they are read. Raises UserError: there is none."""
    if path.suffix == ".ckpt":
        return read(path)
    folder = path / "checkpoint"
    return read(folder / BEST) if os.path.lexists(folder / BEST) else newest_expected(folder)


def newest_expected(folder: Path) -> Checkpoint:
    """The newest whole checkpoint of a folder. Raises UserError: there is none."""
    found, problems = newest(folder)
    if found is None:
        because = f": {problems[0]}" if problems else ""
        raise UserError(f"{folder}: a whole checkpoint expected in it, found none{because}")
    return found


def listed(folder: Path) -> list[Path]:
    """Manifests by step, oldest first; whole or not."""
    return [path for path, kind, _ in _files(folder) if (kind, path.suffix) == ("step", ".ckpt")]


def prune(folder: Path, keep: int, agreed_step: int | None = None) -> None:
    """Remove what is older than the newest `keep` checkpoints (the best has names of its own), but
    for the newest that is no newer than `agreed_step`, if it is given.

    One that lacks a part of another rank, whose disk is slower, does not count yet.
    """
    kept: list[int] = []
    for path in reversed(listed(folder)):
        with suppress(UserError):
            kept += [read(path).meta.step] if _is_there(read(path)) else []
    if len(kept) >= keep:
        agreed = next((step for step in kept if step <= (agreed_step or 0)), None)
        _remove(folder, "step", lambda step: step < kept[keep - 1] and step != agreed)


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps than `step`."""
    _remove(folder, "step", lambda other: other > step)


def remove_unnamed(folder: Path, up_to: int) -> None:
    """Remove the parts of steps up to `up_to` that no manifest names, as rank 0 could not write it:
    on 2,047 ranks 0.46 GB a try, on a disk that is full."""
    named = {int(path.stem.partition("_")[2]) for path in listed(folder)}
    _remove(folder, "step", lambda step: step <= up_to and step not in named)


def mark_best(path: Path, part: Part | None = None) -> None:
    """Give a checkpoint the name `best.ckpt` too, and a part the name that goes with it.

    Each rank does so for its own part, rank 0 (`part` None) for its own and then the manifest.
    """
    step = int(path.stem.partition("_")[2])
    own = part or read(path).parts[0]
    _link(own.beside(path), own.beside(path.with_name(f"best_{step:010d}.ckpt")))
    if part is None:
        _link(path, path.with_name(BEST))
        _remove(path.parent, "best", lambda other: other != step)


def remove_partial(folder: Path) -> None:
    """Remove what a writer that was killed has left; nothing where the folder is a link."""
    if folder.is_symlink():
        return
    for path in folder.glob(".*.partial-*"):
        with suppress(OSError):
            path.unlink()


def _is_there(found: Checkpoint) -> bool:
    """Have all parts their sizes? No proof that they are whole."""
    try:
        return all(found.file_of(p).stat().st_size == p.size_bytes for p in found.parts)
    except OSError:
        return False


def _remove(folder: Path, kind: str, of_step: Callable[[int], bool]) -> None:
    for path, found, step in _files(folder):  # a manifest goes before its parts
        if found == kind and of_step(step):
            path.unlink(missing_ok=True)


def _files(folder: Path) -> list[tuple[Path, str, int]]:
    """(path, "step" or "best", step) of all files of checkpoints, sorted, but `best.ckpt`."""
    try:
        found = [(path, _NAME.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    except OSError:
        return []
    return [(path, name[1], int(name[2])) for path, name in found if name]


def _link(path: Path, name: Path) -> None:
    partial = partial_beside(name)
    try:
        os.link(path, partial)
        partial.replace(name)
    finally:
        partial.unlink(missing_ok=True)
