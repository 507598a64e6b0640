"""What make lists, and what it removes: caches; never a run or an image set."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.checkout import requirements
from tests.conftest import write_file
from tests.rooms import ROOMS
from tests.waiting import finished

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEPT = (
    "results/quick/20261121T085508Z/result_0.txt",
    "results/__pycache__/by_hand.txt",
    "datasets/imagenet/train.rec",
    "datasets/build/image.jpeg",
    "mine.yaml",
    "config/mine.yaml",
    "data/own/train.rec",
)
ENVIRONMENTS = (".venv/bin/python", ".venv-gpu/bin/python")
CACHES = (
    ".mypy_cache/3.11/a.json",
    ".pytest_cache/v/a",
    ".ruff_cache/a",
    ".hypothesis/a",
    "build/lib/a.py",
    "rn50.egg-info/PKG-INFO",
    "config/__pycache__/load.cpython-311.pyc",
    "tests/gpu/__pycache__/runs.cpython-311.pyc",
)


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A checkout in use, as far as make's removing can see it."""
    for path in ("Makefile", "pyproject.toml", ".gitignore"):
        shutil.copy(root / path, tmp_path / path)
    for room in (*ROOMS, "scripts", "tests"):
        (tmp_path / room).mkdir()
    for name in (*KEPT, *ENVIRONMENTS, *CACHES):
        write_file(tmp_path / name, "content")
    (tmp_path / "datasets/linked").symlink_to(tmp_path / "config")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "removed"), [("clean", CACHES), ("distclean", CACHES + ENVIRONMENTS)]
)
def test_make_removes_no_data(
    copy: Path, target: str, removed: tuple[str, ...]
) -> None:
    subprocess.run(["make", "-s", target], cwd=copy, check=True)
    assert not [name for name in removed if (copy / name).exists()]
    remaining = {*KEPT, *ENVIRONMENTS} - set(removed)
    assert not [name for name in remaining if not (copy / name).is_file()]
    assert not (copy / "config/__pycache__").exists()


def test_help_lists_every_target(root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.M)
    done = finished(["make", "-s"], cwd=root, check=True)
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    assert listed == targets


def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_what_pip_installs_is_what_set_up_installs(root: Path) -> None:
    """The dependencies and the extra `train` are of requirements.txt, with its versions."""
    stated = requirements("3.13")  # older ones have a NumPy of their own, for MXNet
    metadata = project(root)["project"]
    declared = metadata["dependencies"] + metadata["optional-dependencies"]["train"]
    for requirement in map(Requirement, declared):
        version = str(stated[canonicalize_name(requirement.name)].specifier)
        assert str(requirement.specifier) == version or not version.startswith("=="), (
            requirement
        )
