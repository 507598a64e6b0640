"""The locks that scripts/setup.sh installs: complete, hashed, and MXNet the same everywhere."""

import hashlib
import os
import re
import shutil
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


@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_has_all_that_is_asked_for_with_hashes(root: Path, python: str) -> None:
    lock = (root / f"requirements/py{python}.txt").read_text()
    locked = packages(lock)
    assert len(locked) == lock.count("==") > 70
    for _, hashes in locked.values():
        assert hashes
        assert all("sha256:" in digest for digest in hashes)
    asked = requirements(f"3.{python[1:]}")
    assert len(asked) > 20
    assert not asked.keys() - locked.keys()
    sections = re.findall("^# (To .*)", lock, re.M)
    # setup.sh divides a lock at these
    assert sections == ["To build", "To run", "To test"]
    assert locked["numpy"][0].startswith("1." if python < "312" else "2.")


def test_what_decides_results_is_the_same_for_every_python(root: Path) -> None:
    locks = [
        packages((root / f"requirements/py{python}.txt").read_text())
        for python in PYTHONS
    ]
    for name in DECIDING:
        versions = {lock[name][0] for lock in locks}
        assert len(versions) == 1, name


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
    words = [word.replace("FOLDER", str(tmp_path)) for word in arguments]
    environment = os.environ | {"PYTHON": str(python)}
    done = finished([root / "scripts/setup.sh", *words], env=environment)
    assert done.returncode == 1
    error = done.stderr.replace(f"{tmp_path}/", "")
    assert error.startswith(f"setup: error: {expected}")
    assert (tmp_path / "thesis/thesis.tex").exists()
    assert not (tmp_path / "new").exists()


@pytest.fixture
def environment(root: Path, tmp_path: Path) -> Path:
    """What set-up takes for an environment that it has made; its Python is too old to make one."""
    made = tmp_path / "made"
    (made / "bin").mkdir(parents=True)
    write_script(made / "mpicxx", f"echo g++ -I{made}")
    write_script(made / "bin/python", "[ ! -e $0.lost ]")
    (made / "pyvenv.cfg").touch()
    (made / "setup.place").write_text(f"{root}\n{made}\n")
    stack = [*sorted(root.glob("requirements/*.txt")), root / "scripts/setup.sh"]
    stamps = {"stack.stamp": stack, "setup.stamp": [*stack, root / "pyproject.toml"]}
    for name, files in stamps.items():
        content = b"".join(path.read_bytes() for path in files)
        digest = hashlib.sha256(content).hexdigest()
        (made / name).write_text(f"cpu {digest}  -\nwithout MPI\n")
    return made


def set_up(root: Path, environment: Path) -> int:
    """The exit code: 0 where all is done; 1 where it would be made, which Python 3.9 cannot."""
    old = environment.parent / "python3.9"
    write_script(old, "exit 1")
    variables = {"PATH": f"{environment}:/usr/bin:/bin", "PYTHON": str(old)}
    command = (root / "scripts/setup.sh", "--into", environment)
    return subprocess.run(command, env=variables).returncode


def test_an_environment_that_is_whole_is_left_as_it_is(
    root: Path, environment: Path
) -> None:
    assert set_up(root, environment) == 0
    linked = environment.with_name("linked")
    linked.symlink_to(environment)
    assert set_up(root, linked) == 0


@pytest.mark.parametrize("change", ["mpi.h", "bin/python.lost"])
def test_an_environment_before_an_mpi_or_without_a_file_is_made_anew(
    root: Path, environment: Path, change: str
) -> None:
    (environment / change).touch()
    assert set_up(root, environment) == 1


def test_an_environment_for_gpus_stays_one(root: Path, environment: Path) -> None:
    """Its stamp is another after a pull that changes what it is made of."""
    stamp = environment / "stack.stamp"
    stamp.write_text(stamp.read_text() + "gpu before the pull\n")
    assert set_up(root, environment) == 1


def test_a_copy_of_an_environment_is_made_anew(root: Path, environment: Path) -> None:
    """Its scripts would run the code of the original."""
    copy = environment.with_name("copy")
    shutil.copytree(environment, copy)
    assert set_up(root, copy) == 1
    moved = environment.rename(environment.with_name("moved"))
    assert set_up(root, moved) == 1


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
