"""One trial of a sweep as processes and files: started, watched, stopped, read.

A trial is a `rn50 launch` of its own, which starts and stops its ranks, and ends with its driver.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..config.reading import read_ends
from ..data.lock import LOCK, hold
from ..logging.places import METRICS
from ..logging.records import FAILED, RESULT, Result, read

CONFIG = "config.yaml"
OUTPUT = "output.log"
STOP_S = 20.0
"""The time that a trial has to end in order before its launcher is killed."""


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the trial of `folder`/config.yaml, its output in `folder`/output.log, in a session of
    its own: Ctrl-C reaches the driver alone. When this process is killed, it gets SIGTERM."""
    driver = str(os.getpid())
    program = [sys.executable, "-m", "rn50.sweep", driver]
    config = str((folder / CONFIG).resolve())
    with (folder / OUTPUT).open("wb") as output:
        return subprocess.Popen(
            [*program, "-m", "rn50.cli.entry", "launch", config],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(*trials: subprocess.Popen[bytes]) -> None:
    """End trials: ask, wait, kill. Their ranks end with them."""
    for trial in trials:
        trial.terminate()  # its log is closed as aborted
    until_s = time.monotonic() + STOP_S
    for trial in trials:
        try:
            trial.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            trial.kill()
            trial.wait()


def remove(folder: Path) -> None:
    """Remove the trial of a driver that was killed, once the process that ends with it has."""
    for run in folder.glob("*/"):
        with hold(run / LOCK, wait_s=math.inf):
            pass
    shutil.rmtree(folder, ignore_errors=True)


def evaluations(folder: Path) -> list[tuple[int, float]]:
    """(epoch, accuracy) of the evaluations so far of a trial, from its metrics.jsonl. A last line
    without its end is being written; it is read the next time."""
    evaluated = []
    for path in folder.glob(f"*/{METRICS}"):
        *lines, _ = path.read_bytes().split(b"\n")
        for line in lines:
            if b'"kind": "eval"' in line:
                record = json.loads(line)
                evaluated.append((record["epoch"], record["accuracy"]))
    return evaluated


def read_end(
    folder: Path,
    code: int,
) -> Result:
    """How a trial whose process has ended came out. `code`: its exit code, as Popen gives it."""
    if code < 0:
        return Result(FAILED, f"killed by {signal.Signals(-code).name}")
    for path in folder.glob(f"*/{RESULT}"):
        if result := read(path, Result):
            return result
    output = read_ends(folder / OUTPUT).strip() or "no output"
    *_, last_line = output.splitlines()
    return Result(FAILED, f"exit code {code}: {last_line[:500]}")
