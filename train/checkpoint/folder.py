"""The checkpoints of a run's folder: the newest whole one, the best, and those that may go.

Loads no framework.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from ...config.atomic import in_its_folder, partial_beside, sync
from ...config.errors import UserError
from .file import BEST, Checkpoint, read_checkpoint, step_of

_NAME = re.compile(r"step_\d{10}\.ckpt")


def newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of a folder, and what is wrong with those that are newer. Raises
    UserError: it is a link out of the folder in which it lies."""
    problems: list[str] = []
    in_its_folder(folder)
    for path in reversed(checkpoints_in(folder)):
        try:
            checkpoint = read_checkpoint(path)
            checkpoint.verify()
            return checkpoint, problems
        except UserError as error:
            problems.append(str(error))
    return None, problems


def chosen_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that a path means: the file itself, or of a run's folder the best, else the
    newest whole one. Its digest is checked as it is loaded. Raises UserError: there is none, or the
    run's folder of checkpoints is a link out of it."""
    if path.suffix == ".ckpt":
        return read_checkpoint(path)
    folder = in_its_folder(path / "checkpoint")
    first = path / "run_0"
    if first.is_dir() and not folder.is_dir():
        raise UserError(
            f"{path}: the folder of a run expected, found a job's; its first: {first}"
        )
    if os.path.lexists(folder / BEST):
        return read_checkpoint(folder / BEST)
    return newest_expected(folder)


def newest_expected(folder: Path) -> Checkpoint:
    """The newest whole checkpoint of a folder. Raises UserError: there is none."""
    checkpoint, problems = newest_checkpoint(folder)
    if checkpoint is None:
        because = f": {problems[0]}" if problems else ""
        raise UserError(
            f"{folder}: a whole checkpoint expected in it, found none{because}"
        )
    return checkpoint


def checkpoints_in(folder: Path) -> list[Path]:
    """Checkpoints by step, oldest first; whole or not. None where the folder cannot be read, or is
    a link out of the one in which it lies."""
    try:
        paths = sorted(in_its_folder(folder).iterdir())
    except (OSError, UserError):
        return []
    return [path for path in paths if _NAME.fullmatch(path.name)]


def prune(
    folder: Path,
    keep: int,
    agreed_step: int | None = None,
    unmarked: Path | None = None,
) -> None:
    """Remove what is older than the newest `keep` checkpoints (the best has another name too), but
    for `unmarked`, a best one that has not, and for the newest that is no newer than `agreed_step`,
    if they are given."""
    paths = checkpoints_in(folder)
    agreed = [path for path in paths if step_of(path) <= (agreed_step or 0)]
    kept = [*paths[-keep:], *agreed[-1:], unmarked]
    for path in paths:
        if path not in kept:
            path.unlink()


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps than `step`."""
    for path in checkpoints_in(folder):
        if step_of(path) > step:
            path.unlink()


def mark_best(path: Path) -> None:
    """Give a checkpoint the name `best.ckpt` too: a link, or a copy where there are no links."""
    best = path.with_name(BEST)
    # a folder, as a lock on the link would be one on the checkpoint
    with partial_beside(best, is_folder=True) as partial:
        _name_too(path, partial / BEST)
        (partial / BEST).replace(best)


def held_checkpoint(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """The file of `checkpoint` under the new name `path`, where a run that trains can neither
    replace nor remove it between its metadata and its arrays. It may be newer than `checkpoint`.
    Raises UserError: it is damaged."""
    _name_too(checkpoint.path.resolve(), path)
    try:
        again = read_checkpoint(path)
        again.verify()
    except UserError as error:
        reason = str(error).replace(str(path), str(checkpoint.path))
        raise UserError(reason) from None
    return again


def _name_too(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
        sync(other)
