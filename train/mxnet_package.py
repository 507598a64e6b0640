"""The MXNet that is installed, a wheel or one built from source: its files and its name. Nothing of
it is loaded."""

from __future__ import annotations

import runpy
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..host.errors import UserError

UNKNOWN = ("mxnet", "")


def package_folder(name: str) -> Path | None:
    """Folder of an installed package, without importing it."""
    spec = find_spec(name)
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) if locations else None


@cache
def _libinfo() -> Any:
    """MXNet's own module that finds its library and headers, without the rest of MXNet."""
    folder = package_folder("mxnet")
    if folder is None:
        raise UserError(
            "mxnet: an installed package expected, found none; scripts/setup.sh"
        )
    return SimpleNamespace(**runpy.run_path(str(folder / "libinfo.py")))


def library() -> Path | None:
    """libmxnet.so; None: there is none."""
    try:
        return Path(_libinfo().find_lib_path()[0]).resolve()
    except (UserError, RuntimeError, OSError):
        return None


def headers() -> Path:
    """The folder of its C++ headers. Raises UserError: there is none."""
    try:
        return Path(_libinfo().find_include_path()).resolve()
    except RuntimeError as error:
        raise UserError(f"mxnet: headers expected, found none: {error}") from None


def operator_source() -> Path:
    """lib_api.cc, with which a library of operators is built. Raises UserError: there is none."""
    path = headers().parent / "src" / "lib_api.cc"
    if not path.is_file():
        raise UserError(f"{path}: expected beside MXNet's headers, found none")
    return path


def distribution() -> tuple[str, str]:
    """(name, version) as pip knows it; without metadata mxnet and the version of its sources."""
    if names := metadata.packages_distributions().get("mxnet"):
        return names[0], metadata.version(names[0])
    try:
        return "mxnet", str(_libinfo().__version__)
    except UserError:
        return UNKNOWN
