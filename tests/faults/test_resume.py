"""Interrupted and resumed is uninterrupted, bit for bit: real ranks, real signals."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50.compliance.check_log import check_log
from rn50.config.recorded import RESUME, words_to_repeat
from rn50.logging.parse import read_events
from tests import mpi
from tests.conftest import RUN, Process, Rn50, metrics, of_training, read_json
from tests.faults.file_system import refusing
from tests.waiting import leave_nothing, wait_until

pytestmark = pytest.mark.slow
LOG_EVERY = 5
"""Steps, in RUN."""
SAVED = "*/*/checkpoint/step_*.ckpt"
LAUNCHERS = ["gloo", *([] if mpi.WHY_NOT else [mpi.LAUNCHER])]


def records(folder: Path) -> list[dict[str, Any]]:
    """What was learned and when, without clocks."""
    fields = ("kind", "step", "epoch", "loss", "lr", "momentum", "correct", "total")
    learned = metrics(folder, "train", "eval")
    return [
        {key: value for key, value in line.items() if key in fields} for line in learned
    ]


def bits(folder: Path) -> tuple[str, float]:
    result = read_json(folder / "result.json")
    return result["weights_digest"], result["eval_accuracy"]


def start_run(
    rn50: Rn50, data: Path, launcher: str, *more: str, **options: Any
) -> Process:
    """Start a RUN."""
    return rn50.start(
        "launch",
        *RUN,
        "--launcher",
        launcher,
        f"data.path={data}",
        f"system.results={rn50.results}",
        *more,
        **options,
    )


def resume(rn50: Rn50, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = words_to_repeat(folder, RESUME)
    return rn50("launch", "--resume", str(folder), *settings, *more)


def stand_still(job: psutil.Process, for_s: float) -> None:
    """`scontrol suspend`, a machine that is suspended: nobody is silent, time is."""
    family = [job, *job.children(recursive=True)]
    for member in family:
        member.suspend()
    time.sleep(for_s)
    for member in family:
        member.resume()


def is_as_if_uninterrupted(
    folder: Path, uninterrupted: Path, odd_steps: set[int]
) -> None:
    """Result, metrics and log are those of `uninterrupted`. `odd_steps`: after which it went on;
    between two log points the next loss is the mean since then."""
    assert bits(folder) == bits(uninterrupted)
    learned = [records(run) for run in (folder, uninterrupted)]
    for step in (step for step in odd_steps if step % LOG_EVERY):
        for of_run in learned:
            following = next(record for record in of_run if record["step"] > step)
            following.pop("loss", None)
    assert learned[0] == learned[1], f"{folder}: other metrics than in {uninterrupted}"
    logs = [[key for key, *_ in of_training(run)] for run in (folder, uninterrupted)]
    assert logs[0] == logs[1], f"{folder}: other events in its log than {uninterrupted}"


def goes_on(
    rn50: Rn50, folder: Path, uninterrupted: Path, data: Path, launcher: str
) -> None:
    """Resume a run that was stopped, on a copy of its set, and find it as if nothing had been."""
    stopped_step = read_json(folder / "result.json")["stopped"]["step"]
    elsewhere = shutil.copytree(data, rn50.results / "copy")
    done = resume(rn50, folder, "--launcher", launcher, f"data.path={elsewhere}")
    assert done.returncode == 1, done.stderr  # the target is out of reach
    is_as_if_uninterrupted(folder, uninterrupted, {stopped_step})
    check = check_log(folder / "result_0.txt", "4.0.0", official=False)
    assert "resumed-run" in {finding.name for finding in check.findings}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("launcher", "number", "by", "sign"),
    [
        ("gloo", signal.SIGINT, "Ctrl-C", "step 15/"),
        (LAUNCHERS[-1], signal.SIGTERM, "SIGTERM", "* epoch 2"),
    ],
)
def test_stopped_in_order_and_resumed_is_uninterrupted(
    rn50: Rn50,
    small_data: Path,
    uninterrupted: Path,
    launcher: str,
    number: signal.Signals,
    by: str,
    sign: str,
) -> None:
    """The stop comes in the first epoch, after the job stood still, or after an evaluation. The
    launcher is told to wait a millisecond, the ranks know that their log point takes longer."""
    process = start_run(
        rn50, small_data, launcher, "watchdog.silence_s=8", "limits.grace_s=0.001"
    )
    assert any(sign in line for line in process.stdout)
    if by == "Ctrl-C":
        stand_still(psutil.Process(process.pid), 10)
        assert "images/s" in process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    folder = rn50.run_folder()
    leave_nothing(folder)
    result = read_json(folder / "result.json")
    stopped_step = result["stopped"]["step"]
    position = f"step {stopped_step} (checkpoint of step {stopped_step})"
    assert result["reason"] == f"stopped by {by} at {position}"
    onward = f"--resume {folder} --launcher {launcher} data.path={small_data}"
    assert err.endswith(f"rn50 launch {onward}\n")
    goes_on(rn50, folder, uninterrupted, small_data, launcher)


@pytest.mark.nightly
def test_results_that_turn_read_only_end_the_run_and_mended_it_goes_on(
    rn50: Rn50, small_data: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    """ext4 does so on an error. Locks cannot be removed; `config.yaml` is on the disk by then."""
    broken = tmp_path / "broken"
    refused = refusing(
        rn50.results, broken, write="EROFS", unlink="EROFS", fsync="EROFS"
    )
    process = start_run(rn50, small_data, LAUNCHERS[-1], env=os.environ | refused)
    wait_until(lambda: process.poll() or list(rn50.results.glob(SAVED)), 300)
    broken.touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert "Read-only file system; details:" in err
    folder = rn50.run_folder()
    for name in (".lock", ".rank_0.lock"):
        os.utime(folder / name, (0, 0))  # instead of a wait of STALE_S
    done = resume(rn50, folder)
    assert "going on after step " in done.stdout
    assert bits(folder) == bits(uninterrupted)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.nightly
def test_a_spent_budget_is_lifted_and_another_rank_count_has_other_bits(
    rn50: Rn50, small_data: Path, uninterrupted: Path
) -> None:
    """The budget is three epochs, the last of which has no evaluation."""
    spent = start_run(rn50, small_data, LAUNCHERS[-1], "limits.epochs=3")
    spent.communicate(timeout=300)
    folder = rn50.run_folder()
    assert read_json(folder / "result.json")["stopped"]["limit"] == "limits.epochs"
    done = resume(
        rn50, folder, "limits.epochs=null", "--ranks", "4", "--launcher", LAUNCHERS[-1]
    )
    assert done.returncode == 1, done.stderr
    events = read_events(folder / "result_0.txt")
    (resumed,) = (event for event in events if event.key == "run_resumed")
    assert (resumed.metadata["ranks"], resumed.metadata["ranks_before"]) == (4, 2)
    ours = records(folder)
    theirs = records(uninterrupted)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    # batch norm over 5 images, not 10
    assert 0 < abs(ours[-2]["loss"] - theirs[-2]["loss"]) < 0.2
