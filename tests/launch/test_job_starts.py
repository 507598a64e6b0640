"""A job's script started again: while it runs, after an interruption, after its end. For real."""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50.logging.parse import read_events
from rn50.train.checkpoint.folder import checkpoints_in
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


def start(folder: Path) -> subprocess.CompletedProcess[str]:
    """`bash job.sh`, by hand."""
    return finished(["bash", folder / "job.sh"], timeout=600)


def content(folder: Path) -> dict[str, str]:
    """Every file of a folder by its digest."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_a_second_start_waits_its_turn_goes_on_and_overwrites_nothing(
    rn50: Any, smoke_data: Path
) -> None:
    done = rn50(
        "submit",
        "smoke",
        "--scheduler",
        "local",
        *SHORT,
        "watchdog.silence_s=60",
        f"data.path={smoke_data}",
        f"system.results={rn50.results}",
    )
    match = re.match(r"local job (\d+) in (\S+) \(to stop it: kill \1\)", done.stdout)
    assert match, done.stdout + done.stderr
    job = psutil.Process(int(match[1]))
    folder = Path(match[2])
    run = folder / "run_0"
    log = folder / "job.log"
    wait_until(lambda: checkpoints_in(run / "checkpoint"))
    for process in job.children(recursive=True):
        if "rn50.train" in process.cmdline():
            process.suspend()  # or the run could end before it is killed
    refused = start(folder)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith(
        f"rn50: error: {folder}: in use by process {job.pid} on "
    )
    assert (folder / "exit_code").read_text() == "running\n"
    assert not (folder / "job.1.log").exists()

    family = [job, *job.children(recursive=True)]
    for process in family:  # all of it, as when a node fails
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=60)
    leave_nothing(run)
    first_log = log.read_text()
    first_stop = checkpoints_in(run / "checkpoint")[-1]

    again = start(folder)
    assert again.returncode == 0, log.read_text()
    assert (folder / "job.1.log").read_text() == first_log
    assert (folder / "exit_code").read_text() == "0\n"
    assert (folder / "exit_code.1").read_text() == "running\n"
    told = log.read_text()
    before = "left no result: killed, or its node failed"
    assert re.search(rf"^{run}: the start before: {before}$", told, re.M), told
    step = int(first_stop.stem.split("_")[1])
    assert f"{run}: going on after step {step} " in told
    keys = [event.key for event in read_events(run / "result_0.txt")]
    assert (
        keys.count("run_start"),
        keys.count("run_resumed"),
        keys.count("run_stop"),
    ) == (1, 1, 1)
    assert (run / "attempt_1/interrupted_0.txt").is_file()
    assert (folder / "results/local_n1/resnet/result_0.txt").read_bytes() == (
        run / "result_0.txt"
    ).read_bytes()

    whole = content(run)
    third = start(folder)
    assert third.returncode == 0, log.read_text()
    assert content(run) == whole
    assert "has ended in a start before" in log.read_text()


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_as_a_job_in_its_folder(
    rn50: Any, smoke_data: Path
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
    keys = [event.key for event in read_events(run / "result_0.txt")]
    assert (keys.count("run_start"), keys.count("run_resumed")) == (1, 1)
    assert f"{run} has ended" in rn50.error("submit", "--resume", str(run), results[0])
