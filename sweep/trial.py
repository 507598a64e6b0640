"""One trial of a sweep as processes and files: started, watched, stopped, read.

A trial is a `rn50 launch` (or `rn50 submit --wait`) of its own. Its folder stands in the
environment of all of its processes, so that a later driver finds what a killed one has left.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ..config.reading import read_ends, read_object
from ..launch.schedulers import SCHEDULERS
from .definition import Sweep

MARK = "RN50_SWEEP_TRIAL"
OUTPUT = "output.log"
_SUBMITTED = re.compile(r"^(\w+) job (\d[\w.\[\]-]*) in ", re.M)
"""What `rn50 submit` prints of its job; an id begins with a digit at every scheduler."""
_GRACE_S = 15.0  # the launcher itself takes 10 s to kill what does not stop


class Evaluation(NamedTuple):
    """The accuracy after an epoch."""

    epoch: int
    accuracy: float


class Ended(NamedTuple):
    """How a trial ended: `status` of result.json, or `failed` with the reason."""

    status: str
    reason: str
    result: dict[str, Any]


def trial_command(sweep: Sweep, config: Path) -> list[str]:
    """What runs a trial's config."""
    rn50 = [sys.executable, "-m", "rn50.cli.entry"]
    if sweep.scheduler != "local":
        return [*rn50, "submit", str(config), "--scheduler", sweep.scheduler, "--wait"]
    return [*rn50, "launch", str(config)]


def start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a trial, its output in `folder`/output.log, out of reach of a Ctrl-C for the driver."""
    with (folder / OUTPUT).open("wb") as output:
        return subprocess.Popen(
            command,
            env=os.environ | {MARK: str(folder.resolve())},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def processes(folder: Path) -> list[psutil.Process]:
    """All processes of a trial on this machine, its ranks among them."""
    mark, found = str(folder.resolve()), []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def ask_to_stop(process: subprocess.Popen[bytes], folder: Path, scheduler: str) -> None:
    """Ask a trial to end: its log is closed as aborted. A job is cancelled at its scheduler."""
    if not cancel_job(folder, scheduler):
        process.send_signal(signal.SIGTERM)


def clean_up(folder: Path, scheduler: str, grace_s: float = _GRACE_S) -> None:
    """Leave no process of a trial: ask, wait, kill. Its job, if it still has one, is cancelled."""
    cancel_job(folder, scheduler)
    alive = processes(folder)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(alive, timeout=grace_s)
    while alive := processes(folder):
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=grace_s)


def cancel_job(folder: Path, scheduler: str) -> bool:
    """Cancel the job that `rn50 submit` reported; False where there is none.

    A job that has ended already is the scheduler's to refuse. Only the job's id is taken from the
    trial's output: the command is the cancel command of the sweep's own scheduler.
    """
    jobs = [
        job for name, job in _SUBMITTED.findall(read_ends(folder / OUTPUT)) if name == scheduler
    ]
    if scheduler == "local" or not jobs:
        return False
    with suppress(OSError):
        subprocess.run(
            [SCHEDULERS[scheduler].cancel_command, jobs[0]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    return True


def evaluations(folder: Path) -> list[Evaluation]:
    """The evaluations so far of a trial's newest run, from its metrics.jsonl. A last line without
    its end is being written; it is read the next time."""
    path = _newest(folder, "metrics.jsonl")
    if path is None:
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    records = [json.loads(s) for s in lines if b'"kind": "eval"' in s and s.endswith(b"\n")]
    return [Evaluation(int(one["epoch"]), float(one["accuracy"])) for one in records]


def read_end(folder: Path, code: int | None) -> Ended:
    """How a trial whose process has ended came out.

    Args:
        code: exit code of its process as Popen gives it, None where an earlier driver started it.
    """
    if code is not None and code < 0:
        return Ended("failed", f"killed by {signal.Signals(-code).name}", {})
    path = _newest(folder, "result.json")
    result = {} if path is None else read_object(path)
    if result:
        return Ended(str(result.get("status")), str(result.get("reason") or ""), result)
    lines = [line.strip() for line in read_ends(folder / OUTPUT).splitlines() if line.strip()]
    errors = [line.partition("rn50: error: ")[2] for line in lines if "rn50: error: " in line]
    last = f"; last line: {lines[-1][:300]}" if lines else ""
    exit_code = "" if code is None else f" with exit code {code}"
    reason = errors[0][:500] if errors else f"ended{exit_code} without a result{last}"
    return Ended("failed", reason, {})


def _newest(folder: Path, name: str) -> Path | None:
    """The file of that name of the newest run below a trial's folder; a job has it in run_0."""
    found = [*folder.glob(f"*/{name}"), *folder.glob(f"*/run_0/{name}")]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
