"""The locks that scripts/setup.sh installs: complete, hashed, and MXNet the same everywhere."""

import hashlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.checkout import requirements
from tests.conftest import write_script
from tests.waiting import finished

PYTHONS = ("310", "311", "312", "313")
DECIDING = ("mxnet", "nvidia-dali-cuda120", "mlperf-logging")
"""What decides bits and verdicts."""


def packages(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Name -> version and hashes, of every package of a lock."""
    block = r"^([\w.-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)"
    locked = {}
    for name, version, hashes in re.findall(block, lock, re.M):
        locked[name] = (version, hashes.split()[::2])
    return locked


def test_locks_have_all_that_is_asked_for_with_hashes_and_decide_alike(
    root: Path,
) -> None:
    deciding: set[tuple[str, ...]] = set()
    for python in PYTHONS:
        lock = (root / f"requirements/py{python}.txt").read_text()
        locked = packages(lock)
        assert len(locked) == lock.count("==") > 70
        for _, hashes in locked.values():
            assert hashes
            assert all("sha256:" in digest for digest in hashes)
        names = requirements(f"3.{python[1:]}").keys()
        assert len(names) > 20
        assert not names - locked.keys()
        sections = re.findall("^# (To .*)", lock, re.M)
        # setup.sh divides a lock at these
        assert sections == ["To build", "To run", "To test"]
        assert locked["numpy"][0].startswith("1." if python < "312" else "2.")
        deciding.add(tuple(locked[name][0] for name in DECIDING))
    assert len(deciding) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--nonsense"], "unknown argument --nonsense; --gpu, "),
        (
            ["--into", "FOLDER/new"],
            "Python 3.10 to 3.13 with venv expected of PYTHON=my python, found Python 3.9.2; ",
        ),
        (
            ["--into", "FOLDER/thesis"],
            "--into: a new folder or a Python environment expected, found thesis with other things",
        ),
    ],
)
def test_set_up_refuses_what_does_not_suit(
    root: Path, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    python = tmp_path / "my python"
    write_script(python, '[ "$1" = --version ] && echo Python 3.9.2')
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.tex").touch()
    options = [option.replace("FOLDER", str(tmp_path)) for option in arguments]
    environment = os.environ | {"PYTHON": str(python)}
    done = finished([root / "scripts/setup.sh", *options], env=environment)
    assert done.returncode == 1
    error = done.stderr.replace(f"{tmp_path}/", "")
    assert error.startswith(f"setup: error: {expected}")
    assert (tmp_path / "thesis/thesis.tex").exists()
    assert not (tmp_path / "new").exists()


@pytest.fixture
def environment(root: Path, tmp_path: Path) -> Path:
    """What set-up takes for an environment that it has made; its Python is too old to make one."""
    folder = tmp_path / "made"
    (folder / "bin").mkdir(parents=True)
    write_script(folder / "mpicxx", f"echo g++ -I{folder}")
    write_script(folder / "bin/python", "[ ! -e $0.lost ]")
    (folder / "pyvenv.cfg").touch()
    (folder / "setup.place").write_text(f"{root}\n{folder}\n")
    stack = [*sorted(root.glob("requirements/*.txt")), root / "scripts/setup.sh"]
    stamps = {"stack.stamp": stack, "setup.stamp": [*stack, root / "pyproject.toml"]}
    for name, files in stamps.items():
        content = b"".join(path.read_bytes() for path in files)
        digest = hashlib.sha256(content).hexdigest()
        (folder / name).write_text(f"cpu {digest}  -\nwithout MPI\n")
    return folder


@pytest.mark.parametrize(
    ("change", "name", "code"),
    [
        ("true", "made", 0),
        ("ln -s made linked", "linked", 0),
        ("touch made/mpi.h", "made", 1),
        ("touch made/bin/python.lost", "made", 1),
        # its stamp is another after a pull that changes what it is made of
        ("echo gpu before the pull >>made/stack.stamp", "made", 1),
        # its scripts would run the code of the original
        ("cp -r made copy", "copy", 1),
        ("mv made moved", "moved", 1),
    ],
)
def test_an_environment_is_left_as_it_is_or_made_anew(
    root: Path, environment: Path, change: str, name: str, code: int
) -> None:
    """0 where all is done; 1 where it would be made, which Python 3.9 cannot."""
    parent = environment.parent
    subprocess.run(["sh", "-c", change], cwd=parent, check=True)
    write_script(parent / "python3.9", "exit 1")
    path = f"{parent}/made:{parent}/{name}:/usr/bin:/bin"
    variables = {"PATH": path, "PYTHON": f"{parent}/python3.9"}
    command = (root / "scripts/setup.sh", "--into", parent / name)
    assert subprocess.run(command, env=variables).returncode == code


@pytest.mark.parametrize(
    ("compilers", "chosen"),
    [
        ({"g++": "12"}, "g++"),
        ({"g++": "14.2.0", "g++-13": "13"}, "g++"),
        ({"g++": "15", "g++-13": "13", "g++-12": "12"}, "g++-13"),
        ({}, ""),
    ],
)
def test_the_compiler_is_the_systems_own_or_the_newest_that_suits(
    root: Path, tmp_path: Path, compilers: dict[str, str], chosen: str
) -> None:
    for name, version in compilers.items():
        write_script(tmp_path / name, f"echo {version}")
    script = (root / "scripts/setup.sh").read_text()
    parts = re.findall(
        r"^newest_compiler=.*\n|^find_compiler\(\) \{\n(?:.*\n)*?\}\n", script, re.M
    )
    assert len(parts) == 2
    body = "".join(parts) + "find_compiler"
    command = ["/bin/bash", "-euo", "pipefail", "-c", body]
    done = finished(command, env={"PATH": str(tmp_path)})
    assert done.stdout.strip() == chosen
    assert done.returncode == (0 if chosen else 1)
