"""A terminal that is closed, and a launcher whose own process is killed, under real ranks."""

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50.config.load import load
from rn50.launch.launch_plan import Options
from rn50.launch.run import conclude
from rn50.logging.run_folder import RunFolder
from tests import mpi
from tests.conftest import Rn50, read_json
from tests.faults.test_resume import LAUNCHERS, goes_on, start_run

pytestmark = pytest.mark.slow
OPEN_MPI = mpi.LAUNCHER == "mpirun" and not mpi.WHY_NOT


def test_a_closed_terminal_leaves_a_checkpoint_from_which_the_run_goes_on_bit_for_bit(
    rn50: Rn50, small_data: Path, uninterrupted: Path
) -> None:
    """It is closed behind an evaluation."""
    ours, theirs = os.openpty()
    process = start_run(
        rn50,
        small_data,
        LAUNCHERS[-1],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    output = b""
    while b"* epoch 2" not in output:
        output += os.read(ours, 4096)
    # the kernel's order where it is the session's terminal: after it nothing can be written
    process.send_signal(signal.SIGHUP)
    os.close(ours)
    assert process.wait(timeout=60) == 130
    folder = rn50.run_folder()
    reason = read_json(folder / "result.json")["reason"]
    assert reason.startswith("stopped by SIGHUP at ")
    assert not list(folder.glob(".*"))
    goes_on(rn50, folder, uninterrupted, small_data, LAUNCHERS[-1])


def test_a_disk_that_is_full_at_the_end_costs_no_verdict(
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = shutil.copytree(uninterrupted, tmp_path / "ended")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rn50.launch.run.write", full)
    result = conclude(load(ended / "config.yaml").run, RunFolder(ended), Options())
    out = capsys.readouterr().out
    assert result.official_checker is not None
    assert result.official_checker.verdict == "FAIL"  # the target is out of reach
    assert "result.json: cannot write: No space left on device" in out
    assert "\nRESULT " in out


def test_a_full_standard_output_is_named_and_leaves_no_reserve(
    rn50: Rn50, small_data: Path, device: Any
) -> None:
    with device("full").open("w") as full:
        process = start_run(rn50, small_data, "gloo", stdout=full)
        process.communicate(timeout=60)
    assert process.returncode == 2
    folder = rn50.run_folder()
    reason = "standard output: cannot write: No space left on device"
    assert read_json(folder / "result.json")["reason"] == reason
    assert not (folder / ".reserve").exists()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("launcher", "number", "message"),
    [(launcher, signal.SIGKILL, "killed by SIGKILL") for launcher in LAUNCHERS]
    + [(mpi.LAUNCHER, signal.SIGTERM, "asked to end: its ranks got SIGTERM")]
    * OPEN_MPI,
)
def test_a_launcher_that_is_killed_is_named(
    rn50: Rn50, small_data: Path, launcher: str, number: int, message: str
) -> None:
    """Under `nohup`, to which a closed terminal is nothing. No launcher has named semaphores, which
    nobody would give back."""
    process = start_run(
        rn50,
        small_data,
        launcher,
        "schedule.length=400 epochs",  # else it may end before the signal comes
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert any(" 20/8000" in line for line in process.stdout)
    process.send_signal(signal.SIGHUP)
    assert "images/s" in process.stdout.readline() + process.stdout.readline()
    (child,) = psutil.Process(process.pid).children()
    assert "/dev/shm/sem." not in Path(f"/proc/{child.pid}/maps").read_text()
    child.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"the launcher's process, not a rank, was {message}" in err
