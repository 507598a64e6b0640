"""The checkout that is tested: its files, a copy of them, and what lies beside it."""

import os
import shutil
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.waiting import finished

SHARED = Path(os.environ.get("RN50_SHARED", ROOT.parent / "shared"))
"""The folder in which published logs may lie."""


def tracked() -> list[str]:
    """The files of the repository, and those about to be added; without git the test is skipped."""
    command = ["sh", "-c", "git ls-files --cached --others --exclude-standard"]
    listed = finished(command, cwd=ROOT)
    if listed.returncode:
        pytest.skip(f"no git here: {listed.stderr.strip()}", allow_module_level=True)
    names = listed.stdout.splitlines()
    # one that is removed is listed until that is committed
    return [name for name in names if os.path.lexists(ROOT / name)]


def copy_to(target: Path) -> None:
    """Make a copy of the checkout, links as links."""
    for name in tracked():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy, follow_symlinks=False)


def requirements(python: str) -> dict[str, Requirement]:
    """What requirements.txt asks for on a version of Python, by name."""
    by_name: dict[str, Requirement] = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        specification = line.partition("#")[0].strip()
        if not specification:
            continue
        requirement = Requirement(specification)
        marker = requirement.marker
        if marker is None or marker.evaluate({"python_version": python}):
            by_name[canonicalize_name(requirement.name)] = requirement
    return by_name
