"""What a name means: a file beside the place that names it, a preset, or a machine.

A file comes first, relative to the YAML that names it or, on the command line, to the current
folder; then the presets in this folder, or the machines in `system/`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .errors import UserError, failing_as, show

PRESETS = Path(__file__).resolve().parent
SYSTEM_ALIASES = {
    "v100": "dgx1",
    "a100": "dgxa100",
    "h100": "dgxh100",
    "hgxa100": "dgxa100",
    "hgxh100": "dgxh100",
    "selene": "dgxa100",
    "eos": "dgxh100",
    "a100pcie80gb": "a100_pcie",
    "dgxa10080gb": "dgxa100",
    "alibaba": "alibaba_v100",
}


def list_presets() -> list[str]:
    """Names of the presets beside this module, `quick` first."""
    names = [path.stem for path in PRESETS.glob("*.yaml")]
    return sorted(names, key=lambda name: (name != "quick", name))


def list_systems() -> list[str]:
    """Names of the machines in `system/`."""
    return sorted(path.stem for path in (PRESETS / "system").glob("*.yaml"))


def find_config(config: str | Path) -> Path:
    """The file a CONFIG argument means: a path, or the bare name of a preset. Raises UserError:
    neither is there."""
    path = Path(config)
    with failing_as(f"{config}: cannot read"):
        kind = "is no regular file" if path.exists() else "no such file"
        kind = "is a folder" if path.is_dir() else kind
    if (found := _file_or_preset(str(config), Path())) is not None:
        return found
    hint = _meant(str(config), Path(), path.stem, _presets_by_name())
    hint = hint or "; `rn50 config list` shows the presets"
    raise UserError(f"{config}: {kind}, and no preset of that name{hint}")


def find_base(value: str, folder: Path) -> Path:
    """The file that `base: value` means in a YAML file in `folder`: a path or a preset's name.
    Raises UserError: neither; says what was expected and where it looked."""
    if (found := _file_or_preset(value, folder)) is not None:
        return found
    hint = _meant(value, folder, Path(value).stem, _presets_by_name())
    raise UserError(
        f"a YAML file or a preset's name expected, found {show(value)} "
        f"(looked for {show(resolve(value, folder))}){hint}"
    )


def find_file(value: str, folder: Path) -> Path:
    """The file that `base: value` means in a section. Raises UserError: none is there."""
    if (beside := file_beside(value, folder)) is None:
        looked = show(resolve(value, folder))
        raise UserError(f"a YAML file expected, found {show(value)} (looked for {looked})")
    return beside


def _file_or_preset(value: str, folder: Path) -> Path | None:
    preset = PRESETS / f"{value}.yaml"
    return file_beside(value, folder) or (preset if value in list_presets() else None)


def _presets_by_name() -> dict[str, str]:
    return {name: name for name in list_presets()}


def find_system(name: str, folder: Path, ruleset: str | None = None) -> Path:
    """The file of a machine: a path relative to `folder`, or a name in `system/`.

    Case, dashes and dots of a name do not matter. `ruleset` takes the file with the software of
    that round, where there is one (NAME_v07.yaml). Raises UserError: neither; lists the machines
    and names the nearest.
    """
    if (beside := file_beside(name, folder)) is not None:
        return beside
    wanted = _plain(name)
    known = {stem.replace("_", ""): stem for stem in list_systems()}
    known.update(SYSTEM_ALIASES)
    stem = known.get(wanted)
    if stem is not None:
        dated = f"{stem.replace('_', '')}v{(ruleset or '')[:3].replace('.', '')}"
        return PRESETS / "system" / f"{known.get(dated, stem)}.yaml"
    hint = _meant(name, folder, wanted, known)
    if name in list_presets():
        hint = f"; {name} is a preset"
    looked = f" (looked for {show(resolve(name, folder))})" if "/" in name or "." in name else ""
    raise UserError(
        f"a YAML file or one of {', '.join(list_systems())} expected, "
        f"found {show(name)}{looked}{hint}"
    )


def _meant(value: str, folder: Path, name: str, known: Mapping[str, str]) -> str:
    """The end of a message: the file that lacks its ending, else the nearest of the names. `known`:
    from what `name` is compared with to the name as one writes it."""
    if file_beside(f"{value}.yaml", folder) is not None:
        return f'; did you mean "{value}.yaml"?'
    near = difflib.get_close_matches(name, known, n=1)
    return f'; did you mean "{known[near[0]]}"?' if near else ""


def _plain(name: str) -> str:
    """A name as names are compared."""
    return re.sub(r"[ ._-]", "", name.lower())


def recorded_in(config: Path) -> Path | None:
    """The folder of the run or the job that recorded this config; None: it is of neither."""
    of_a_run = ("origins.json", "metrics.jsonl", "result_0.txt")
    files = (config.with_name(name) for name in (*of_a_run, "submission.json", "exit_code"))
    return config.parent if config.name == "config.yaml" and any(map(is_file, files)) else None


def file_beside(value: str, folder: Path) -> Path | None:
    """The file at a path relative to `folder`, or absolute; None: there is none."""
    path = Path(resolve(value, folder))
    return path if is_file(path) else None


def is_file(path: Path) -> bool:
    """Whether a file is there and can be seen; no error for a path that nothing can have."""
    try:
        return path.is_file()
    except OSError:  # such as a name too long
        return False


def resolve(value: str, folder: Path) -> str:
    """A path that stands in a YAML file in `folder`, as seen from the current folder. Relative
    where it lies within that, absolute elsewhere. Links are left as they are."""
    joined = folder / expand_home(value)
    path = Path(os.path.abspath(joined))  # noqa: PTH100 (resolve() would follow links)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def expand_home(value: str) -> str:
    """A path that begins with `~/`, which a shell leaves after `key=`, below the home folder."""
    return str(Path.home() / value[2:]) if value.startswith("~/") else value
