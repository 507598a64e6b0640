"""The wheel in an environment of its own, with what it asks for and nothing else."""

import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.checkout import copy_to, tracked
from tests.cli.test_everywhere import USES, Case, make_work, run_all
from tests.conftest import made_once
from tests.rooms import ROOMS
from tests.waiting import output_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

BUILD = (
    "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
)
FRAMEWORKS = {"mxnet", "horovod", "nvidia-dali-cuda120"}


def needed(names: Iterator[Requirement]) -> dict[str, metadata.Distribution]:
    """The installed distributions that the requirements name, and those that these need."""
    distributions: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        requirement = waiting.pop()
        applies = requirement.marker is None or requirement.marker.evaluate(
            {"extra": ""}
        )
        if not applies or requirement.name in distributions:
            continue
        distribution = metadata.distribution(requirement.name)
        version = distribution.version
        assert requirement.specifier.contains(version, prereleases=True), requirement
        distributions[requirement.name] = distribution
        waiting += map(Requirement, distribution.requires or ())
    return distributions


def link(distribution: metadata.Distribution, site: Path) -> None:
    """What a distribution has in its own site-packages, as links in another one."""
    names = {file.parts[0] for file in distribution.files or ()}
    for name in names:
        shortcut = site / name
        if name not in ("..", "__pycache__") and not shortcut.is_symlink():
            shortcut.symlink_to(str(distribution.locate_file(name)))


def has_every_file(wheel: Path) -> None:
    """An installation from a wheel once lacked stamp.c, which every rank compiles."""
    rooms = tuple(f"{room}/" for room in ROOMS)
    names = [name for name in tracked() if name.startswith(rooms)]
    expected = {f"rn50/{name}" for name in names if not name.endswith(".md")}
    assert "rn50/train/kernels/stamp.c" in expected
    assert expected <= {*zipfile.ZipFile(wheel).namelist()}


@pytest.fixture(scope="module")
def environment(shared: Path) -> Path:
    """A virtual environment with the wheel of this checkout, as pip installs it from an index that
    has only its dependencies."""

    def make(folder: Path) -> None:
        checkout = folder.with_name("wheel_checkout")
        copy_to(checkout)
        wheels = folder.with_name("wheel")
        build = [sys.executable, "-c", BUILD, str(wheels)]
        output_of(build, cwd=checkout)
        venv.create(folder, with_pip=False)
        (wheel,) = wheels.glob("rn50-*.whl")
        has_every_file(wheel)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]
        offline = "-q --no-deps --no-index --disable-pip-version-check --no-compile"
        command = [*pip, "install", *offline.split(), str(wheel)]
        subprocess.run(command, check=True)
        (site,) = folder.glob("lib/python3*/site-packages")
        (package,) = metadata.distributions(name="rn50", path=[str(site)])
        distributions = needed(map(Requirement, package.requires or ()))
        assert not FRAMEWORKS & set(distributions)
        for distribution in distributions.values():
            link(distribution, site)

    return made_once(shared / "wheel_environment", make)


TRAINS = ("bench", "data bench", "evaluate", "launch", "sweep")
EXTRAS = dict.fromkeys(TRAINS, "train") | {
    "export model": "train",
    "export tensorboard": "tensorboard",
}
"""The commands that need more, by how they begin."""


def test_every_command_with_the_wheel_alone(
    environment: Path,
    small_data: Path,
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each shows its help; one that trains names the extra that it needs, the others do their work,
    far from any checkout."""
    (tmp_path / "work").mkdir()
    work = make_work(tmp_path / "work", small_data, uninterrupted)
    python = str(environment / "bin/python")
    # which would miss the programs of the packages that are links here
    left_out = {"doctor"}
    # of a folder that is not there it would say that first
    monkeypatch.setitem(USES, "evaluate", "run")
    printed = run_all(Case(), work, tmp_path, python, left_out)
    for result in printed:
        result.is_well({result.code_when_well})
        for begin, extra in EXTRAS.items():
            is_use = result.subject == (result.command,) and not result.is_help
            if is_use and result.command.startswith(begin):
                assert f"pip install 'rn50[{extra}]'" in result.err, result
    (check,) = (p for p in printed if p.subject == ("log check",))
    assert "official checker 4.1.68: PASS" in check.out
