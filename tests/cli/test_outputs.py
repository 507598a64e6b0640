"""Every option that names an output file: nothing is destroyed, `-` is standard output."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.test_predict import write_log
from tests.conftest import Rn50
from tests.waiting import finished


@pytest.fixture
def log(root: Path) -> str:
    return str(root / "tests/golden/smoke_result_0.txt")


def test_a_dash_has_the_standard_output_to_itself(
    rn50: Rn50,
    tmp_path: Path,
) -> None:
    path = tmp_path / "out"
    run = write_log(tmp_path / "log.txt", batch=128, step_s=0.02)
    command = ["predict", "calibrate", f"{run}:8", "--system", "dgx1"]
    assert rn50(*command, "--out", str(path)).returncode == 0
    done = rn50(*command, "--out", "-")
    assert done.returncode == 0
    assert done.stdout == path.read_text()
    assert "step = " in done.stderr


def test_an_unread_standard_output(log: str) -> None:
    """What `| head` leaves in Python's buffer was two lines of it, and exit 120."""
    program = shlex.quote(str(Path(sys.executable).with_name("rn50")))
    words = f"log report {shlex.quote(log)} --out -"
    for redirection, code in (("| true", 0), (">/dev/full", 2)):
        done = finished(["bash", "-c", f"{program} {words} {redirection}"])
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == bool(code)
