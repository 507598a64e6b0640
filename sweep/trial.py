"""One trial of a sweep as processes and files: started, watched, stopped, read.

A trial is a `rn50 launch` of its own, which starts and stops its ranks. Its command line names the
trial's config, so that a later driver finds what a killed one has left.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ..config import programs
from ..config.inherited import LOCAL_JOB, inherited
from ..config.reading import read_ends
from ..logging.places import METRICS
from ..logging.records import FAILED, RESULT, Result, read

if TYPE_CHECKING:
    from subprocess import Popen

CONFIG = "config.yaml"
OUTPUT = "output.log"
STOP_S = 20.0
"""The time that a trial has to end in order before its launcher is killed."""


def start(folder: Path) -> Popen[str]:
    """Start the trial of `folder`/config.yaml, its output in `folder`/output.log."""
    command = [sys.executable, *_arguments(folder)]
    environment = inherited(os.environ, LOCAL_JOB)
    with (folder / OUTPUT).open("wb") as output:
        return programs.start(
            command,
            environment,
            output=output,
            errors=output,
        )


def launchers(*folders: Path) -> list[psutil.Process]:
    """The processes on this machine that a driver started for the trials of `folders`: others may
    have such a config open as well."""
    started = list(map(_arguments, folders))
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[1:] in started
    ]


def _arguments(folder: Path) -> list[str]:
    """Those of the interpreter that runs the trial of `folder`."""
    config = str((folder / CONFIG).resolve())
    return ["-m", "rn50.cli.entry", "launch", config]


def stop(*folders: Path) -> None:
    """End the trials of `folders`, also those that another driver started: ask, wait, kill. Their
    ranks end with them."""
    processes = launchers(*folders)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()  # its log is closed as aborted
    _, alive = psutil.wait_procs(processes, timeout=STOP_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


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
        return Result(FAILED, programs.ended_by(code).removeprefix("was "))
    for path in folder.glob(f"*/{RESULT}"):
        if result := read(path, Result):
            return result
    output = read_ends(folder / OUTPUT).strip() or "no output"
    *_, last_line = output.splitlines()
    return Result(FAILED, f"exit code {code}: {last_line[:500]}")
