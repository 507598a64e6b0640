"""The checkpoints of a run's folder: the newest whole one, the best, and those that may go.

Loads no framework.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from ...host.atomic import copy_file, in_its_folder, partial_beside, sync
from ...host.errors import UserError
from ...host.progress import say_aside
from ...logging.run_folder import RunFolder
from .file import BEST, Checkpoint, read_checkpoint, step_of

_NAME = re.compile(r"step_\d{10}\.ckpt")


class Checkpoints(NamedTuple):
    """The checkpoints of a run by step, oldest first; whole or not. `doubtful`: newer than the last
    step at which all was well, by the run's failures. `doubt`: a line about them."""

    trusted: list[Path]
    doubtful: list[Path]
    doubt: str


def checkpoints_of_run(folder: Path) -> Checkpoints:
    """What is in the folder `checkpoint` of a run. Raises UserError: a failure of it cannot be
    read."""
    failures = RunFolder(folder.absolute().parent).read_failures()
    steps = [f.agreed_step for f in failures if f.agreed_step is not None]
    last_step = min(steps, default=math.inf)
    paths = checkpoints_in(folder)
    trusted = [path for path in paths if step_of(path) <= last_step]
    doubtful = paths[len(trusted) :]
    doubt = (
        f"{folder}: {', '.join(path.name for path in doubtful)} not trusted, as by the run's "
        f"failure ranks differed or a loss was not finite after step {last_step}"
    )
    return Checkpoints(trusted, doubtful, doubt)


def newest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a run that is trusted and whole, and what is wrong with those that
    are newer. Raises UserError: a failure of the run cannot be read, or the folder is a link out of
    the one in which it lies."""
    checkpoints = checkpoints_of_run(in_its_folder(folder))
    problems = [checkpoints.doubt] if checkpoints.doubtful else []
    for path in reversed(checkpoints.trusted):
        try:
            checkpoint = read_checkpoint(path)
            checkpoint.verify()
            return checkpoint, problems
        except UserError as error:
            problems.append(str(error))
    return None, problems


def chosen_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that a path means: the file itself, or of a run's folder the best, else the
    newest that is trusted and whole; doubtful ones make a warning. Its digest is checked as it is
    loaded. Raises UserError: there is none, or the run's folder of checkpoints is a link out of it.
    """
    is_file = path.suffix == ".ckpt"
    folder = path.parent if is_file else in_its_folder(RunFolder(path).checkpoints)
    checkpoints = checkpoints_of_run(folder)
    if checkpoints.doubtful and (not is_file or path in checkpoints.doubtful):
        say_aside(f"rn50: warning: {checkpoints.doubt}")
    if is_file:
        return read_checkpoint(path)
    first = path / "run_0"
    if first.is_dir() and not folder.is_dir():
        raise UserError(
            f"{path}: the folder of a run expected, found a job's; its first: {first}"
        )
    if os.path.lexists(folder / BEST):
        return read_checkpoint(folder / BEST)
    return newest_expected(folder)


def newest_expected(folder: Path) -> Checkpoint:
    """The checkpoint of `newest_checkpoint`. Raises UserError: there is none."""
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
    # the one to go on from if replicas differ at the next comparison
    agreed = [path for path in paths if step_of(path) <= (agreed_step or 0)]
    remaining = [*paths[-keep:], *agreed[-1:], unmarked]
    for path in paths:
        if path not in remaining:
            path.unlink()


def remove_after(folder: Path, checkpoint: Checkpoint | None) -> None:
    """Remove doubtful checkpoints, and those newer than `checkpoint`, if it is given."""
    checkpoints = checkpoints_of_run(folder)
    for path in checkpoints.doubtful:
        path.unlink()
    for path in checkpoints.trusted:
        if checkpoint and step_of(path) > checkpoint.meta.step:
            path.unlink()


def mark_best(path: Path) -> None:
    """Give a checkpoint the name `best.ckpt` too: a link, or a copy where there are no links."""
    best = path.with_name(BEST)
    # a folder, as a lock on the link would be one on the checkpoint
    with partial_beside(best, is_folder=True) as partial:
        _name_too(path, partial / BEST)
        (partial / BEST).replace(best)


def copy_of(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """The file of `checkpoint` under the new name `path`, where a run that trains can neither
    replace nor remove it between its metadata and its arrays. It may be newer than `checkpoint`.
    Raises UserError: it is damaged."""
    _name_too(checkpoint.path.resolve(), path)
    try:
        renamed = read_checkpoint(path)
        renamed.verify()
    except UserError as error:
        reason = str(error).replace(str(path), str(checkpoint.path))
        raise UserError(reason) from None
    return renamed


def _name_too(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:
        copy_file(path, name)
        sync(name)
