"""One trial of a sweep as processes and files: started, found again, watched, stopped, read.

A trial is a `rn50 launch` (or `rn50 submit --wait`) of its own, which outlives a driver that is
killed. What it belongs to stands in its environment; so a later driver finds it and its ranks, and
nothing is left when one of them was killed.
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

from ..config.finding import number
from ..config.reading import open_file, read_ends, read_object
from ..launch.schedulers import SCHEDULERS
from ..logging.metrics_read import MOST_BYTES, newest_records
from .definition import Sweep

MARK = "RN50_SWEEP_TRIAL"
OUTPUT = "output.log"
ENTRY = "rn50.cli.entry"
_CANCEL = re.compile(
    r"(?P<scheduler>\w+) job (?P<job>\d[\w.\[\]-]*) in .* "
    r"\(to stop it: (?P<command>\w+) (?P=job)\)"
)
"""What `rn50 submit` says of its job; an id begins with a digit at every scheduler."""
_LINE_BYTES = 1 << 16
_MOST_EVALUATIONS = 10_000
"""Of a trial: one an epoch."""
_NO_RECORD = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""What a line raises that is no record, or one of another shape."""
_GRACE_S = 15.0  # the launcher itself takes 10 s to kill what does not stop


class Evaluation(NamedTuple):
    epoch: int
    accuracy: float


class Place(NamedTuple):
    """How far a trial has come: None where it has not said."""

    epoch: float
    accuracy: float | None

    def text(self, last_epoch: int) -> str:
        """`epoch 2.4 of 8, accuracy 0.7123`."""
        reached = "" if self.accuracy is None else f", accuracy {self.accuracy:.4f}"
        return f"epoch {self.epoch:.1f} of {last_epoch}{reached}"


class Ended(NamedTuple):
    """What a trial's own files say: `status` of result.json, or `failed` with the reason."""

    status: str
    reason: str
    result: dict[str, Any]


def trial_command(sweep: Sweep, config: Path) -> list[str]:
    """What runs a trial's config."""
    rn50 = [sys.executable, "-m", ENTRY]
    if sweep.scheduler != "local":
        return [*rn50, "submit", str(config), "--scheduler", sweep.scheduler, "--wait"]
    launcher = [] if sweep.launcher is None else ["--launcher", sweep.launcher]
    return [*rn50, "launch", str(config), *launcher]


def start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a trial, its output in `folder`/output.log, out of reach of a Ctrl-C for the driver.
    Raises OSError: the output cannot be written."""
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


def find(folder: Path, *verbs: str) -> psutil.Process | None:
    """The process `rn50 VERB` of a trial, of the first verb that has one."""
    alive = processes(folder)
    for verb in verbs:
        for process in alive:
            with suppress(psutil.Error):
                if process.cmdline()[1:4] == ["-m", ENTRY, verb]:
                    return process
    return None


def find_main(folder: Path) -> psutil.Process | None:
    """The process whose end is the trial's, also where a driver before this one started it."""
    return find(folder, "submit", "launch")


def ask_to_stop(folder: Path, scheduler: str) -> None:
    """Ask a trial to end: its log is closed as aborted. A job is cancelled at its scheduler."""
    if (
        not cancel_job(folder, scheduler)
        and (launch := find(folder, "launch", "submit")) is not None
    ):
        with suppress(psutil.NoSuchProcess):
            launch.send_signal(signal.SIGTERM)


def clean_up(folder: Path, scheduler: str, grace_s: float = _GRACE_S) -> None:
    """Leave no process of a trial: ask, wait, kill. Its job, if it still has one, is cancelled."""
    if find_main(folder) is None:
        cancel_job(folder, scheduler)
    alive = processes(folder)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    psutil.wait_procs(alive, timeout=grace_s)
    while alive := processes(folder):
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=grace_s)


def cancel_job(folder: Path, scheduler: str) -> bool:
    """Cancel the job that `rn50 submit` said it had submitted; False where it said none.

    A job that has ended already is the scheduler's to refuse. Of what the file says only the job's
    id is taken: what is run is the cancel command of the sweep's own scheduler.

    Args:
        scheduler: of the sweep's definition; `local`: a process here, which bears the mark itself.
    """
    if scheduler == "local":
        return False
    command = SCHEDULERS[scheduler].cancel_command
    said = next(
        (
            said
            for said in _CANCEL.finditer(_output(folder))
            if said["scheduler"] == scheduler and said["command"] == command
        ),
        None,
    )
    if said is None:
        return False
    with suppress(OSError):
        subprocess.run(
            [command, said["job"]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    return True


def evaluations(folder: Path) -> list[Evaluation]:
    """The evaluations so far of a trial's newest run, from its metrics.jsonl.

    A last line without its end is being written; it is read the next time. What no run says, such
    as an accuracy above 1 or NaN, is left out, and so is a file larger than any run's.
    """
    path = _newest(folder, "metrics.jsonl")
    if path is None:
        return []
    found: list[Evaluation] = []
    with suppress(OSError), open_file(path, MOST_BYTES, within=path.parent) as file:
        while len(found) < _MOST_EVALUATIONS and (line := file.readline(_LINE_BYTES)):
            if line.endswith(b"\n") and b'"eval"' in line:
                with suppress(*_NO_RECORD):
                    record = json.loads(line)
                    epoch, accuracy = int(record["epoch"]), float(record["accuracy"])
                    known = 0 <= epoch < _MOST_EVALUATIONS and 0 <= accuracy <= 1
                    if record["kind"] == "eval" and known:
                        found.append(Evaluation(epoch, accuracy))
    return found


def read_place(folder: Path) -> Place:
    """How far a trial's newest run is, from the end of its metrics.jsonl."""
    path = _newest(folder, "metrics.jsonl")
    last = newest_records(path, "train", "eval") if path is not None else {}
    epochs = [number(record.get("epoch")) or 0.0 for record in last.values()]
    return Place(max(epochs, default=0.0), number(last.get("eval", {}).get("accuracy")))


def read_end(folder: Path, code: int | None) -> Ended:
    """How a trial whose process has ended came out.

    Args:
        code: exit code of its process as Popen gives it, None where a driver before had started it.
    """
    if code is not None and code < 0:
        return Ended("failed", f"killed by {signal.Signals(-code).name}", {})
    path = _newest(folder, "result.json")
    if path is not None:
        result = read_object(path)
        if result:
            return Ended(str(result.get("status")), str(result.get("reason") or ""), result)
    lines = [line.strip() for line in _output(folder).splitlines() if line.strip()]
    told = [line.partition("rn50: error: ")[2] for line in lines if "rn50: error: " in line]
    if told:
        return Ended("failed", told[0][:500], {})
    last = f"; last line: {lines[-1][:300]}" if lines else ""
    exit_code = "" if code is None else f" with exit code {code}"
    return Ended("failed", f"ended{exit_code} without a result{last}", {})


def _output(folder: Path) -> str:
    return read_ends(folder / OUTPUT)


def _newest(folder: Path, name: str) -> Path | None:
    """The file of that name of the newest run below a trial's folder; a job has it in run_0."""
    found = [*folder.glob(f"*/{name}"), *folder.glob(f"*/run_0/{name}")]
    return max(found, key=lambda path: path.lstat().st_mtime_ns, default=None)
