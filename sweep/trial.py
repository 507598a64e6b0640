"""One trial of a sweep as processes and files: started, watched, stopped, read.

A trial is a `rn50 launch` of its own. Its folder stands in the
environment of all of its processes, so that a later driver finds what a killed one has left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ..config.reading import read_ends, read_object

MARK = "RN50_SWEEP_TRIAL"
OUTPUT = "output.log"
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


def trial_command(config: Path) -> list[str]:
    """What runs a trial's config."""
    return [sys.executable, "-m", "rn50.cli.entry", "launch", str(config)]


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


def clean_up(folder: Path, grace_s: float = _GRACE_S) -> None:
    """Leave no process of a trial: ask, wait, kill."""
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
    """The file of that name of the newest run below a trial's folder."""
    return max(folder.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime_ns, default=None)
