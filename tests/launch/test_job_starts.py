"""A job that goes on in its folder, after an interruption. For real."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from rn50.logging.parse import read_events
from rn50.train.checkpoint.folder import checkpoints_in
from tests.conftest import Rn50, read_json
from tests.waiting import finished, leave_nothing, wait_until

SHORT = (
    "system.nodes=1",
    "seed=1",  # of half of all seeds every image is right, which the checkers refuse
    "schedule.length=40 epochs",
    "eval.period=10",
    "eval.offset=9",
    "eval.target=0.3",
    "division=open",
    "log.every=5 steps",
    "checkpoint.every=20 steps",
    "watchdog.silence_s=60",
)


def keys_of(run: Path) -> tuple[int, int]:
    """How often its log begins, and goes on."""
    keys = [event.key for event in read_events(run / "result_0.txt")]
    return keys.count("run_start"), keys.count("run_resumed")


@pytest.mark.slow
def test_a_job_that_is_stopped_closes_its_log_and_goes_on_when_started_again(
    rn50: Rn50, smoke_data: Path
) -> None:
    out = rn50.output(
        "submit",
        "smoke",
        "--scheduler",
        "local",
        *SHORT,
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
    )
    match = re.match(r"local job (\d+) in (\S+) \(to stop it: kill \1\)", out)
    assert match, out
    folder = Path(match[2])
    run = folder / "run_0"
    log = folder / "job.log"
    wait_until(lambda: checkpoints_in(run / "checkpoint"))
    os.kill(int(match[1]), signal.SIGTERM)
    wait_until(lambda: (folder / "exit_code").read_text() == "143\n")
    leave_nothing(run)
    result = read_json(run / "result.json")
    assert (result["status"], result["stopped"]["by"]) == ("aborted", "SIGTERM")
    last = read_events(run / "result_0.txt")[-1]
    assert (last.key, last.metadata["status"]) == ("run_stop", "aborted")
    first_log = log.read_text()
    onward = f"rn50 submit --resume {folder} data.path={smoke_data}"
    assert first_log.endswith(f"{onward}\n")

    again = finished(["bash", folder / "job.sh"], timeout=600)
    assert again.returncode == 0, log.read_text()
    assert (folder / "job.1.log").read_text() == first_log
    assert (folder / "exit_code").read_text() == "0\n"
    assert (folder / "exit_code.1").read_text() == "143\n"
    told = rf"^{run}: the start before: stopped by SIGTERM at step"
    assert re.search(told, log.read_text(), re.M)
    assert keys_of(run) == (1, 1)
    kept = folder / "results/local_n1/resnet/result_0.txt"
    assert kept.read_bytes() == (run / "result_0.txt").read_bytes()


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_as_a_job_in_its_folder(
    rn50: Rn50, smoke_data: Path
) -> None:
    results = (f"data.path={smoke_data}", f"system.results={rn50.results}")
    short = (
        "system.ranks_per_node=1",
        "eval.period=1",
        "eval.offset=0",
        "eval.target=0.2",
    )
    process = rn50.start("launch", "smoke", *SHORT, *short, *results)
    wait_until(lambda: list(rn50.results.glob("*/*/checkpoint/step_*.ckpt")))
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    assert "rn50: stopped by SIGUSR1 at step " in err, err
    run = rn50.run_folder()
    done = rn50("submit", "--resume", "latest", "--wait", *results)
    assert done.returncode == 0, (
        done.stdout + done.stderr + (run / "job.log").read_text()
    )
    assert re.match(rf"local job \d+ in {run} ", done.stdout)
    assert f"{run}: going on after step " in (run / "job.log").read_text()
    assert keys_of(run) == (1, 1)
    assert f"{run} has ended" in rn50.error("submit", "--resume", str(run), results[0])
