"""A job that goes on in its folder, after an interruption. For real."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.conftest import Rn50, logged_keys, read_json, stop_of
from tests.waiting import finished, leave_nothing, wait_until

SHORT = (
    "system.nodes=1",
    "seed=1",
    "schedule.length=40 epochs",
    "eval.period=4",  # after ten epochs every image may be right, which the checkers refuse
    "eval.offset=3",
    "eval.target=0.3",
    "division=open",
    "log.every=5 steps",
    "checkpoint.every=20 steps",
)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_goes_on_as_a_job_which_is_stopped_and_started_again(
    rn50: Rn50, smoke_data: Path
) -> None:
    results = (f"data.path={smoke_data}", f"system.results={rn50.results}")
    process = rn50.start("launch", "smoke", *SHORT, *results)
    wait_until(lambda: list(rn50.results.glob("*/*/checkpoint/step_*.ckpt")))
    process.send_signal(signal.SIGUSR1)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 130, err
    run = rn50.run_folder()

    out = rn50.output("submit", "--resume", "latest", *results)
    match = re.match(rf"local job (\d+) in {run} \(to stop it: kill \1\)", out)
    assert match, out
    log = run / "job.log"
    wait_until(lambda: log.is_file() and "images/s" in log.read_text())
    os.kill(int(match[1]), signal.SIGTERM)
    wait_until(lambda: (run / "exit_code").read_text() == "143\n")
    leave_nothing(run)
    result = read_json(run / "result.json")
    assert result["status"] == "aborted"
    assert result["stopped"]["by"] == "SIGTERM"
    assert stop_of(run) == "aborted"
    first_log = log.read_text()
    assert "the start before: stopped by SIGUSR1 at step" in first_log
    onward = f"rn50 submit --resume {run} data.path={smoke_data}"
    assert first_log.endswith(f"{onward}\n")

    second_start = finished(["bash", run / "job.sh"], timeout=600)
    assert second_start.returncode == 0, log.read_text()
    assert (run / "job.1.log").read_text() == first_log
    assert (run / "exit_code").read_text() == "0\n"
    assert (run / "exit_code.1").read_text() == "143\n"
    keys = logged_keys(run)
    assert keys.count("run_start") == 1
    assert keys.count("run_resumed") == 2
    assert f"{run} has ended" in rn50.error("submit", "--resume", str(run), results[0])
