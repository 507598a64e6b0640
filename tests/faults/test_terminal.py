"""A terminal that is closed, and a launcher whose own process is killed, under real ranks."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50.config.load import load
from rn50.launch.run import Options, conclude
from tests.conftest import Rn50
from tests.faults.test_resume import LAUNCHERS, RUN

pytestmark = pytest.mark.slow
SIGN = "step 20/"


def test_a_closed_terminal_leaves_a_checkpoint(rn50: Any, small_data: Path) -> None:
    ours, theirs = os.openpty()
    process = rn50.start(
        *("launch", *RUN, f"data.path={small_data}", f"system.results={rn50.results}"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while SIGN.encode() not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    process.send_signal(signal.SIGHUP)  # as the kernel does where it is the session's terminal
    assert process.wait(timeout=60) == 130
    folder = rn50.run_folder()
    result = json.loads((folder / "result.json").read_text())
    assert result["reason"].startswith("stopped by SIGHUP at step ")
    assert list((folder / "checkpoint").iterdir())
    assert not [name for name in (".lock", ".reserve") if (folder / name).exists()]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, small_data: Path) -> Path:
    """A run under `nohup`, to which a closed terminal is nothing; its folder."""
    rn50 = Rn50(tmp_path_factory.mktemp("nohup"))
    process = rn50.start(
        *("launch", *RUN, f"data.path={small_data}", f"system.results={rn50.results}"),
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert process.stdout is not None and any(SIGN in line for line in process.stdout)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=120)
    assert process.returncode == 1
    return rn50.run_folder()


def test_nohup_is_respected(ended: Path) -> None:
    assert json.loads((ended / "result.json").read_text())["epochs"] == 4


def test_a_disk_that_is_full_at_the_end_costs_no_verdict(
    ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rn50.launch.run.write_json", full)
    result = conclude(load(ended / "config.yaml").run, ended, Options())
    out = capsys.readouterr().out
    assert result["official_checker"]["verdict"] == "FAIL"  # the target is out of reach
    assert "result.json: cannot write: No space left on device" in out and "\nRESULT " in out


def test_a_full_standard_output_is_named_and_leaves_no_reserve(
    rn50: Any, small_data: Path, device: Any
) -> None:
    with device("full").open("w") as full:
        process = rn50.start(
            *("launch", *RUN, f"data.path={small_data}", f"system.results={rn50.results}"),
            stdout=full,
        )
        _, err = process.communicate(timeout=60)
    reason = "standard output: cannot write: No space left on device"
    assert process.returncode == 2 and f"error: {reason}; start again with: " in err
    folder = rn50.run_folder()
    assert json.loads((folder / "result.json").read_text())["reason"] == reason
    assert not (folder / ".reserve").exists()


def test_a_stop_waits_for_the_log_point_that_heeds_it(rn50: Any, small_data: Path) -> None:
    process = rn50.start(
        *("launch", *RUN, "log.every=20 steps", "limits.grace_s=0.001"),
        *(f"data.path={small_data}", f"system.results={rn50.results}"),
    )
    assert any(SIGN in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Ctrl-C again ends it without" in err
    result = json.loads((rn50.run_folder() / "result.json").read_text())
    said = r"stopped by Ctrl-C at step (\d+) \(checkpoint of step \1\)"
    assert re.fullmatch(said, result["reason"])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_that_is_killed_is_named(rn50: Any, small_data: Path, launcher: str) -> None:
    process: subprocess.Popen[str] = rn50.start(
        *("launch", *RUN, "--launcher", launcher),
        *(f"data.path={small_data}", f"system.results={rn50.results}"),
    )
    assert process.stdout is not None
    assert any(SIGN in line for line in process.stdout)
    (child,) = psutil.Process(process.pid).children()
    child.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "the launcher's process, not a rank, was killed by SIGKILL" in err
