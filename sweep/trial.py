"""One trial of a sweep as processes and files: started, watched, stopped, read.

A trial is a `rn50 launch` of its own, which starts and stops its ranks, and ends with its driver.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..host import programs
from ..host.errors import UserError
from ..host.inherited import LOCAL_JOB, inherited
from ..host.lock import hold
from ..host.reading import read_ends
from ..logging.metrics_read import read_metrics
from ..logging.records import FAILED, Result
from ..logging.run_folder import CONFIG, RunFolder

if TYPE_CHECKING:
    from subprocess import Popen

OUTPUT = "output.log"
STOP_S = 20.0
"""The time that a trial has to end in order before its launcher is killed."""
_POLL_S = 0.05
_LEFT_S = 600.0
"""The time that the trial of a killed driver has to end in order (`limits.grace_s`)."""


def start(folder: Path) -> Popen[str]:
    """Start the trial of `folder`/config.yaml, its output in `folder`/output.log. When this process
    is killed, it gets SIGTERM."""
    driver = str(os.getpid())
    program = [sys.executable, "-m", "rn50.sweep", driver]
    config = str((folder / CONFIG).resolve())
    environment = inherited(os.environ, LOCAL_JOB)
    with (folder / OUTPUT).open("wb") as output:
        return programs.start(
            [*program, "-m", "rn50.cli.entry", "launch", config],
            environment,
            output=output,
            errors=output,
        )


def stop(trial: Popen[str]) -> None:
    """End a trial: ask, wait, kill. Its ranks end with it."""
    trial.terminate()  # its log is closed as aborted
    until_s = time.monotonic() + STOP_S
    while trial.poll() is None and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    if trial.poll() is None:
        trial.kill()
    trial.wait()


def remove(folder: Path) -> None:
    """Remove the trial of a driver that was killed, once the process that ends with it has. Raises
    FolderInUse: it does not end."""
    for run in runs_in(folder):
        with hold(run.lock, wait_s=_LEFT_S):
            pass
    shutil.rmtree(folder, ignore_errors=True)


def evaluations(folder: Path) -> list[tuple[int, float]]:
    """(epoch, accuracy) of the evaluations so far of a trial, from its metrics.jsonl. A last line
    without its end is being written; it is read the next time."""
    return [
        (record["epoch"], record["accuracy"])
        for run in runs_in(folder)
        if run.metrics.is_file()
        for record in read_metrics(run.metrics)
        if record.get("kind") == "eval"
    ]


def runs_in(folder: Path) -> list[RunFolder]:
    """The runs of a trial: a single one, named by its start."""
    return [RunFolder(path) for path in folder.glob("*/")]


def read_end(folder: Path, code: int) -> Result:
    """How a trial whose process has ended came out. `code`: its exit code, as Popen gives it."""
    if code < 0:
        return Result(FAILED, programs.ended_by(code).removeprefix("was "))
    for run in runs_in(folder):
        try:
            if result := run.read_result():
                return result
        except UserError as error:
            return Result(FAILED, str(error))
    output = read_ends(folder / OUTPUT).strip() or "no output"
    *_, last_line = output.splitlines()
    return Result(FAILED, f"exit code {code}: {last_line[:500]}")
