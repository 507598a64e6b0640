"""The wheel in an environment of its own, with what it asks for and nothing else."""

import json
import re
import shutil
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
from tests.conftest import made_once
from tests.rooms import ROOMS
from tests.waiting import finished, output_of

pytestmark = pytest.mark.slow

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
        place = site / name
        if name not in ("..", "__pycache__") and not place.is_symlink():
            place.symlink_to(str(distribution.locate_file(name)))


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


def test_the_wheel_has_every_file_of_its_rooms(environment: Path) -> None:
    """An installation from a wheel once lacked stamp.c, which every rank compiles."""
    (wheel,) = environment.with_name("wheel").glob("rn50-*.whl")
    packed = zipfile.ZipFile(wheel).namelist()
    rooms = tuple(f"{room}/" for room in ROOMS)
    names = [name for name in tracked() if name.startswith(rooms)]
    expected = {f"rn50/{name}" for name in names if not name.endswith(".md")}
    assert "rn50/train/kernels/stamp.c" in expected
    assert expected <= {*packed}


def run(
    environment: Path,
    folder: Path,
    *words: str,
) -> subprocess.CompletedProcess[str]:
    """`rn50 WORDS` of the wheel, far from any checkout."""
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return finished(
        [environment / "bin/rn50", *words],
        cwd=folder,
        env=variables,
    )


def test_the_wheel_checks_a_log_beside_the_official_checker(
    environment: Path,
    root: Path,
    tmp_path: Path,
) -> None:
    shutil.copy(root / "tests/golden/smoke_result_0.txt", tmp_path / "result_0.txt")
    done = run(
        environment,
        tmp_path,
        "log",
        "check",
        "--json",
        "result_0.txt",
    )
    assert done.returncode == 0, done.stderr
    check = json.loads(done.stdout)
    assert check["verdict"] == "POLICY"
    assert check["official"]["verdict"] == "PASS"


READS = (
    ("--version",),
    ("log", "show", "result_0.txt"),
    ("log", "compare", "result_0.txt", "result_0.txt"),
    ("log", "report", "result_0.txt"),
    ("log", "rules"),
    ("config", "check", "quick"),
    ("predict", "dgxa100_8", "--plot", "prediction.svg"),
)


@pytest.mark.parametrize(
    "words",
    READS,
    ids=lambda words: "_".join(words[:2]),
)
def test_the_wheel_reads_without_frameworks(
    environment: Path,
    root: Path,
    tmp_path: Path,
    words: tuple[str, ...],
) -> None:
    shutil.copy(root / "tests/golden/smoke_result_0.txt", tmp_path / "result_0.txt")
    done = run(environment, tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_wheel_reads_runs_and_image_sets(
    environment: Path,
    smoke_data: Path,
    whole: Path,
    tmp_path: Path,
) -> None:
    shutil.copytree(whole, tmp_path / "results/smoke/run")
    for words in (
        ("data", "verify", str(smoke_data)),
        ("export", "csv", "results"),
        ("runs", "results"),
        ("log", "report", "results/smoke/run"),
    ):
        done = run(environment, tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    score = run(environment, tmp_path, "log", "score", "results/smoke")
    assert score.returncode == 1, score.stderr  # one run is no submission
    assert "no score" in score.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("launch", "smoke"), "train"),
        (("evaluate", "results/smoke/run"), "train"),
        (("sweep", "quick_lr.yaml"), "train"),
        (("export", "model", "results/smoke/run"), "train"),
        (("export", "tensorboard", "results"), "tensorboard"),
        (("export", "model", "results/smoke/run", "--onnx"), "onnx"),
    ],
    ids=str,
)
def test_a_missing_extra_is_one_line(
    environment: Path,
    root: Path,
    whole: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    extra: str,
) -> None:
    shutil.copytree(whole, tmp_path / "results/smoke/run")
    shutil.copy(root / "config/sweeps/quick_lr.yaml", tmp_path)
    done = run(environment, tmp_path, *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(rf"pip install 'rn50\[{extra}\]'", line), line
