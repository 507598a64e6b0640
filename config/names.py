"""What a name means: a file relative to the YAML that names it or, on the command line, to the
current folder; else a preset in this folder, or a machine in `system/`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..host.errors import UserError, show

PRESETS = Path(__file__).resolve().parent
SYSTEM_ALIASES = {
    "v100": "dgx1",
    "a100": "dgxa100",
    "h100": "dgxh100",
    "selene": "dgxa100",
}
_RECORDED = (
    "origins.json",
    "metrics.jsonl",
    "result_0.txt",
    "submission.json",
    "exit_code",
)
"""Files of a run or a job, each of which tells its folder. All of their names are in
logging/run_folder.py, a room above this one."""


def list_presets() -> list[str]:
    """Names of the presets beside this module, `quick` first."""
    names = [path.stem for path in PRESETS.glob("*.yaml")]
    # False sorts before True
    return sorted(names, key=lambda name: (name != "quick", name))


def list_systems() -> list[str]:
    """Names of the machines in `system/`."""
    return sorted(path.stem for path in (PRESETS / "system").glob("*.yaml"))


def find_config(name: str, folder: Path = Path()) -> Path:
    """The file of a config: a path relative to `folder`, or a preset's name. Raises UserError:
    neither; names the nearest."""
    if (file := file_beside(name, folder)) is not None:
        return file
    presets = list_presets()
    if name in presets:
        return PRESETS / f"{name}.yaml"
    near = _most_like(Path(name).stem, presets)
    raise _no_file("a preset's name (`rn50 config list`)", name, folder, near)


def find_system(name: str, folder: Path = Path()) -> Path:
    """The file of a machine: a path relative to `folder`, or a name in `system/`.

    Case, dashes and dots of a name do not matter. Raises UserError: neither; names the nearest.
    """
    if (file := file_beside(name, folder)) is not None:
        return file
    names = {stem.replace("_", ""): stem for stem in list_systems()} | SYSTEM_ALIASES
    plain_name = re.sub(r"[ ._-]", "", name.lower())
    if plain_name in names:
        return PRESETS / "system" / f"{names[plain_name]}.yaml"
    near = names.get(_most_like(plain_name, names))
    raise _no_file("a machine (`rn50 config list --systems`)", name, folder, near)


def _no_file(expected: str, name: str, folder: Path, near: str | None) -> UserError:
    """The error of a name that means nothing. `near`: the name that is most like it."""
    if file_beside(f"{name}.yaml", folder):
        near = f"{name}.yaml"
    hint = f'; did you mean "{near}"?' if near else ""
    return UserError(f"a YAML file or {expected} expected, found {show(name)}{hint}")


def _most_like(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The name that is most like a word; empty where none has `cutoff` in common with it."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return near[0] if near else ""


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The end of an error for a word that is none of the `names`: the nearest of them; empty where
    none is near."""
    if ":" in name:  # `optimizer:{base_lr: 0.1}` has the key `optimizer:{base_lr`
        return "; a space is missing after the colon"
    near = _most_like(name, names)
    return f"; did you mean {near}?" if near else ""


def nearest_path(path: Path) -> str:
    """The end of an error for a path that is not there: what beside its first wrong part is meant;
    empty where nothing is near."""
    if os.path.lexists(path):
        return ""
    with suppress(OSError):  # such as a name too long: a value that is no path
        wrong = path
        # up to the first folder that is there; the root always is
        while not wrong.parent.is_dir():
            wrong = wrong.parent
        names = [path.name for path in wrong.parent.iterdir()]
        if near := _most_like(wrong.name, names, 0.75):
            return f"; did you mean {wrong.parent / near}?"
    return ""


def recorded_in(config: Path) -> Path | None:
    """The folder of the run or the job that recorded this config; None: it is of neither."""
    if config.name != "config.yaml":
        return None
    if any(is_file(config.with_name(name)) for name in _RECORDED):
        return config.parent
    return None


def file_beside(value: str, folder: Path) -> Path | None:
    """The file at a path relative to `folder`, or absolute; None: there is none."""
    path = Path(os.path.normpath(folder / Path(value)))
    if is_file(path):
        return path
    return None


def is_file(path: Path) -> bool:
    """Whether a file is there and can be seen; no error for a path that nothing can have."""
    try:
        return path.is_file()
    except OSError:  # such as a name too long
        return False
