"""A config that a run or a job recorded in its folder, which may be another user's.

Such a config describes the training. How a job is started here, and what it reads and writes
elsewhere, is said by the command line alone: by `system.job` as a whole, by another machine
(`system=NAME`), and by paths that lead out of the run's folder and the working folder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..host.errors import UserError
from .leaves import Leaf, Leaves, Origin
from .load import Loaded, load, merge
from .names import recorded_in
from .schema import PLACES
from .yaml_file import parse_overrides, read_layers, short

_ENVIRONMENT = "system.job.environment"
DATA = ("data.path",)
RESUME = ("data.path", _ENVIRONMENT)
RESUME_JOB = ("data.path", "system.job.")
RUN = (*RESUME, "system.results")
JOB = (*RESUME_JOB, "system.results")
"""The keys that affect the machine: of commands for an image set, of a run or a job that is
resumed, and of a new one. Job scripts alone read more of `system.job` than the environment."""

_PATH = re.compile(r"[\w.-]*/[\w./-]*", re.ASCII)


def load_recorded(
    source: Path, overrides: Sequence[str] = (), keys: tuple[str, ...] = RUN
) -> Loaded:
    """The config `source` in the folder of a run or a job, with overrides, which may set anything.
    Raises UserError: as of `load`; the file is a link or has a file as a base; or it sets some of
    `keys` in a way that only the command line may."""
    layers = read_layers(source, within=source.parent)
    leaves = merge([*layers, *parse_overrides(overrides)])
    problems = [
        f"{problem}; if it is yours, add {shlex.quote(override)}"
        for problem, override in _refused(leaves, source, keys)
    ]
    if problems:
        raise UserError(*problems)
    return load(source, overrides)


def load_named(
    config: str, overrides: Sequence[str], keys: tuple[str, ...] = RUN
) -> Loaded:
    """The config that a command line names, read by `load_recorded` if it is a recorded one. A new
    run of a sweep's trial goes beside the sweep, not into it."""
    if recorded_in(Path(config)) is None:
        return load(config, overrides)
    loaded = load_recorded(Path(config), overrides, keys)
    results = Path(loaded.run.system.results)
    name = loaded.run.name
    is_trial = results.name == "trials" and re.fullmatch(r"trial_\d+", name) is not None
    if not is_trial or any(
        override.startswith("system.results=") for override in overrides
    ):
        return loaded
    moved = [f"system.results={json.dumps(str(results.parent.parent))}"]
    if not any(override.startswith("name=") for override in overrides):
        moved.append(f"name={results.parent.name}_{name}")
    return load_recorded(Path(config), [*overrides, *moved], keys)


def words_to_repeat(
    folder: Path, keys: tuple[str, ...], loaded: Loaded | None = None
) -> list[str]:
    """The overrides without which `load_recorded` refuses the user's own config in `folder`.
    `loaded`: what it was, as the folder may be elsewhere by now."""
    source = folder / "config.yaml"
    leaves: Leaves = {}
    # replaced by what the folder says, if it can be read
    if loaded is not None:
        origin = Origin(short(source))
        leaves = {key: Leaf(value, origin) for key, value, _ in loaded.leaves()}
    with suppress(UserError):  # such as: there is no config
        leaves = merge(read_layers(source, within=folder))
    return [override for _, override in _refused(leaves, source, keys)]


def _refused(
    leaves: Leaves, source: Path, keys: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """(what is wrong, the override that allows it) for the leaves that `source` itself sets.
    Values of another type than the schema's are left to the schema."""
    name = short(source)
    for key, (value, origin) in leaves.items():
        # what the command line gives is the user's; an empty value asks for nothing
        if origin.source != name or not key.startswith(keys) or not value:
            continue
        wrong = "of the machine, which a recorded config does not set"
        if key in PLACES:
            if not isinstance(value, str) or not leads_out(value, source.parent):
                continue
            if key == "system.results" and _holds_run(value, source.parent):
                continue
            wrong = f"{_written(value)} lies outside the run's folder and the working folder"
        yield f"{origin}: {key}: {wrong}", f"{key}={_written(value)}"


def leads_out(path: str, folder: Path) -> bool:
    """Does a path lie outside the folder of its run or job and the working folder, with the links
    in the latter (of a container's image: datasets, results)?"""
    if "\0" in path:
        return False
    target = Path(os.path.realpath(path))
    home = Path.cwd()
    allowed_folders = [folder, home]
    if home != folder.resolve():
        allowed_folders += [path for path in home.iterdir() if path.is_symlink()]
    return not any(map(target.is_relative_to, map(os.path.realpath, allowed_folders)))


def _holds_run(results: str, folder: Path) -> bool:
    """Do these results hold the folder of a run or a job, as results/NAME/TIME, or in that as
    run_N? A scratch disk that holds a run may hold the next."""
    folder = folder.resolve()
    # a job's run lies one folder deeper
    if re.fullmatch(r"run_\d+", folder.name):
        folder = folder.parent
    return os.path.realpath(results) == str(folder.parent.parent)


def _written(value: Any) -> str:
    """A value as an override has it."""
    if isinstance(value, str) and _PATH.fullmatch(value):
        return value
    return json.dumps(value)
