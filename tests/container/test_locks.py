"""The locks that scripts/setup.sh installs: complete, hashed, and MXNet the same everywhere."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

PYTHONS = ("310", "311", "312", "313")
DECIDING = ("mxnet", "nvidia-dali-cuda120", "mlperf-logging")
"""What decides bits and verdicts."""


def packages(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Name -> version and hashes, of every package of a lock."""
    blocks = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", lock, re.M)
    return {name: (version, hashes.split()[::2]) for name, version, hashes in blocks}


def asked_for(requirements: str, python: tuple[int, int]) -> set[str]:
    """The names of requirements.txt for one Python."""
    found = re.findall(
        r'^([\w.-]+)[^\s;]*(?:; python_version (\S+) "3\.(\d+)")?', requirements, re.M
    )
    holds = {"<": lambda minor: python < (3, minor), ">=": lambda minor: python >= (3, minor)}
    named = (name for name, sign, minor in found if not sign or holds[sign](int(minor)))
    return {re.sub(r"[._]", "-", name).lower() for name in named}


@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_has_all_that_is_asked_for_with_hashes(root: Path, python: str) -> None:
    lock = (root / f"requirements/py{python}.txt").read_text()
    found = packages(lock)
    assert len(found) == lock.count("==") > 70
    assert all(hashes and all("sha256:" in h for h in hashes) for _, hashes in found.values())
    asked = asked_for((root / "requirements.txt").read_text(), (3, int(python[1:])))
    assert len(asked) > 20
    assert not asked - found.keys()
    sections = re.findall("^# (To .*)", lock, re.M)
    assert sections == ["To build", "To run", "To test"]  # setup.sh divides a lock at these
    numpy_major = found["numpy"][0].split(".")[0]
    assert numpy_major == ("1" if python < "312" else "2")


def test_what_decides_results_is_the_same_for_every_python(root: Path) -> None:
    locks = [packages((root / f"requirements/py{python}.txt").read_text()) for python in PYTHONS]
    for name in DECIDING:
        assert len({lock[name][0] for lock in locks}) == 1, name


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nonsense"], "unknown argument --nonsense; --gpu, "),
        (["--stack", "extra"], "unknown argument extra; --gpu, "),
        (
            ["--into", "new"],
            "Python 3.10 to 3.13 with venv expected of PYTHON=my python, found Python 3.9.2; ",
        ),
        (
            ["--into", "thesis"],
            "--into: a new folder or a Python environment expected, found thesis with other things",
        ),
    ],
)
def test_set_up_refuses_what_does_not_suit(
    root: Path, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    python = tmp_path / "my python"
    python.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\n')
    python.chmod(0o755)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.tex").touch()
    paths = {"new": str(tmp_path / "new"), "thesis": str(tmp_path / "thesis")}
    command = [root / "scripts/setup.sh", *(paths.get(word, word) for word in arguments)]
    environment = os.environ | {"PYTHON": str(python)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    said = done.stderr.replace(f"{tmp_path}/", "")
    assert said.startswith(f"setup: error: {expected}")
    assert (tmp_path / "thesis/thesis.tex").exists() and not (tmp_path / "new").exists()


def test_an_mpi_installed_after_the_set_up_is_built_with(root: Path, tmp_path: Path) -> None:
    for name, line in (("mpicxx", f"g++ -I{tmp_path}"), ("python", "Python 3.9.2")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "pyvenv.cfg").touch()
    digest, files = hashlib.sha256(), [*sorted(root.glob("requirements/*.txt"))]
    for name, last in (("stack.stamp", "scripts/setup.sh"), ("setup.stamp", "pyproject.toml")):
        for path in [*files, root / last]:
            digest.update(path.read_bytes())
        (tmp_path / name).write_text(f"cpu {digest.hexdigest()}  -\nwithout MPI\n")
        files = []
    command = [root / "scripts/setup.sh", "--into", tmp_path]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": f"{tmp_path}/python"}
    assert subprocess.run(command, env=environment).returncode == 0
    (tmp_path / "mpi.h").touch()
    assert subprocess.run(command, env=environment).returncode == 1  # which Python 3.9 cannot


@pytest.mark.parametrize(
    ("compilers", "chosen"),
    [
        ({"g++": "12"}, "g++"),
        ({"g++": "14.2.0", "g++-13": "13"}, "g++"),
        ({"g++": "15", "g++-13": "13", "g++-12": "12"}, "g++-13"),
        ({"g++": "16"}, ""),
        ({}, ""),
    ],
)
def test_the_compiler_is_the_systems_own_or_the_newest_that_suits(
    root: Path, tmp_path: Path, compilers: dict[str, str], chosen: str
) -> None:
    for name, version in compilers.items():
        (tmp_path / name).write_text(f"#!/bin/bash\necho {version}\n")
        (tmp_path / name).chmod(0o755)
    script = (root / "scripts/setup.sh").read_text()
    parts = re.findall(r"^newest_compiler=.*\n|^find_compiler\(\) \{\n(?:.*\n)*?\}\n", script, re.M)
    assert len(parts) == 2
    command = ["/bin/bash", "-euo", "pipefail", "-c", "".join(parts) + "find_compiler"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (chosen, 0 if chosen else 1)
