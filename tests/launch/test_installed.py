"""Files that a purge by age took from an environment."""

import os
import sys
from pathlib import Path

import pytest

from rn50.launch.installed import losses
from tests.waiting import finished

RECORD = (
    'numpy/core.py,sha256=x,4\nnumpy/core.pyc,,\n"numpy/a,b.py",,\n'
    "numpy-2.0.dist-info/RECORD,,\n"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """One whole package, whose compiled file is not there."""
    for name in ("numpy/core.py", "numpy/a,b.py", "numpy-2.0.dist-info/RECORD"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(RECORD)
    return tmp_path


def test_a_whole_package_has_lost_nothing_whatever_its_version(site: Path) -> None:
    assert list(losses(site, {"numpy"})) == []


@pytest.mark.parametrize(
    "file", ["numpy/core.py", "numpy/a,b.py", "numpy-2.0.dist-info/RECORD"]
)
def test_the_first_file_that_is_gone_is_named(site: Path, file: str) -> None:
    (site / file).unlink()
    assert list(losses(site, {"numpy"})) == [("numpy", file)]


def test_a_package_without_any_file_is_missed(site: Path) -> None:
    assert [name for name, _ in losses(site, {"numpy", "horovod"})] == ["horovod"]


def test_a_foreign_package_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy/__init__.py").write_text(
        "raise ImportError('numpy of another Python')"
    )
    for command in (["launch", "smoke", "--dry-run"], ["doctor"]):
        done = finished(
            [sys.executable, "-m", "rn50.cli.entry", *command],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
        )
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "numpy of another Python" in line
        assert str(tmp_path) in line
