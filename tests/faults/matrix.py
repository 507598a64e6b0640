"""Faults x launchers x phases, done for real, held to their bounds.

python -m tests.faults.matrix [--only TEXT ...]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from rn50.launch.launchers import HOROVODRUN
from rn50.logging.parse import read_events
from rn50.logging.records import RESULT, Result, read
from rn50.train.checkpoint.folder import newest_checkpoint
from tests.conftest import read_json

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ("mpirun", "gloo")
PHASES = ("start-up", "first step", "mid-epoch", "evaluation", "checkpoint")
SILENCE_S = 4.0
STALL_S = 6.0
"""Of the watchdog in these cases; the defaults are 10 and 300."""
DEATH_BOUND_S = 10.0
"""From the death of a rank to the end of `rn50 launch`; for one that is silent or stands still,
after `silence_s` or `stall_s`."""
START_S = 30.0
"""For a job to reach what was wrong before it began: those cases count from the command on."""
BUSY_BOUND_S = 60.0
"""For tests, which run beside anything: still tells a watched job from one that hangs."""
RUN = (
    "schedule.length=4 epochs",
    "eval.period=2",
    "eval.offset=1",
    "eval.target=0.999",
    "log.every=5 steps",
    "checkpoint.every=20 steps",
    f"watchdog.silence_s={SILENCE_S}",
    f"watchdog.stall_s={STALL_S}",
)


class Case(NamedTuple):
    """A fault and what has to come of it.

    `victim`: the rank to which it is done, None where it is there before any rank is. `wait_s`:
    patience of the watchdog before the bound. `shell`: runs before `rn50 launch`, in its shell.
    """

    fault: str
    launcher: str
    phase: str
    victim: int | None
    words: str
    wait_s: float = 0.0
    code: int = 2
    more: tuple[str, ...] = ()
    shell: str = ""

    @property
    def rank(self) -> str:
        return "-" if self.victim is None else str(self.victim)

    @property
    def needs_root(self) -> bool:
        return self.fault.startswith("disk") or self.shell.startswith("mount")

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.launcher}, {self.phase}, rank {self.rank}"


class Outcome(NamedTuple):
    case: Case
    stop_s: float
    code: int
    message: str
    problems: tuple[str, ...]


def cases() -> Iterator[Case]:
    """All of them."""
    words = {
        "SIGKILL": "killed by SIGKILL",
        "SIGSEGV": r"killed by SIGSEGV|(SIGABRT|process is gone) \(.*[Ss]egmentation fault",
        "SIGSTOP": f"silent for {SILENCE_S:g} s",
        "exception": "ZeroDivisionError: the disk is on fire",
        "no memory": "out of memory|Resource temporarily unavailable|memory was short"
        "|MPI_INIT failed",
        "silent exit": "its process is gone",
        "data never comes": f"no progress for {STALL_S:g} s",
    }
    waits = {"SIGSTOP": SILENCE_S, "data never comes": STALL_S}
    for fault, said in words.items():
        for number, phase in enumerate(PHASES):
            for launcher in LAUNCHERS:
                victim = (number + (launcher == "gloo")) % 2
                # rank 0 writes, in a thread: an error there costs a line
                if phase == "checkpoint":
                    victim = int(
                        fault in ("exception", "no memory", "data never comes")
                    )
                yield Case(fault, launcher, phase, victim, said, waits.get(fault, 0.0))
    for launcher in LAUNCHERS:
        yield Case("NaN", launcher, "mid-epoch", 1, "a finite loss expected, found nan")
        full = "cannot write: No space left on device"
        # Half a checkpoint that is given up would make room again.
        none = ("checkpoint.every=100 epochs",)
        yield Case("disk full", launcher, "mid-epoch", 0, full, more=none)
        yield Case("disk full", launcher, "evaluation", 0, full, more=none)
        yield Case("disk full", launcher, "checkpoint", 0, full)
        # A checkpoint that finds no place costs a warning; log and metrics still have theirs.
        warning = "no checkpoint of step 20: .* cannot write: No space left on device"
        yield Case(
            "disk nearly full", launcher, "checkpoint", 0, warning, math.inf, code=1
        )
        for phase in PHASES[1:]:
            asked = r"asked to stop by SIGTERM to rank 1 on \S+ at step"
            yield Case("SIGTERM", launcher, phase, 1, asked, code=1)
    for launcher, sign in zip(LAUNCHERS, "+-", strict=True):
        jumped = (
            rf"rn50: warning: the wall clock jumped by \{sign}3600\.0 s by step \d+"
        )
        fault = f"wall clock {sign}1 h"
        yield Case(fault, launcher, "mid-epoch", 0, jumped, math.inf, code=1)
    for launcher in LAUNCHERS:
        gone = r"the run's folder is gone, removed or renamed .*: rank 0 on"
        yield Case("folder removed", launcher, "mid-epoch", 0, gone)
    few = r"ulimit -n: at least 64 open files a process expected, found 20: too many open files"
    yield Case(
        "ulimit -n 20", "mpirun", "before", None, few, START_S, shell="ulimit -n 20"
    )
    for launcher in LAUNCHERS:
        small = r"rank \d on \S+ failed in .* \(.*ulimit -v 900000"
        limit = "ulimit -v 900000"
        yield Case(limit, launcher, "before", None, small, START_S, shell=limit)
    full = r"its process is gone \(PMIX ERROR: OUT-OF-RESOURCE; /dev/shm: \S+ kB free, 64 kB in all"
    shell = (
        "mount -t tmpfs -o size=64k tmpfs /dev/shm"  # in a mount namespace of its own
    )
    yield Case("/dev/shm full", "mpirun", "before", None, full, START_S, shell=shell)
    for phase in PHASES:
        more = ("system.nodes=2", "system.ranks_per_node=1")
        silent = f"rank 1 on h2 .* silent for {SILENCE_S:g} s"
        yield Case("network cut", "mpirun", phase, 1, silent, SILENCE_S, more=more)


@contextmanager
def place_for(case: Case) -> Iterator[Path]:
    """A folder; for a full disk a small file system of its own."""
    folder = Path(tempfile.mkdtemp(prefix="rn50-fault-"))
    small = case.fault.startswith("disk")
    if small:
        command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
        subprocess.run(command, check=True)
    try:
        yield folder
    finally:
        if small:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder)


def run_case(case: Case, data: Path, bound_s: float = DEATH_BOUND_S) -> Outcome:
    """Do it, measure, and look for what should not be there."""
    before = shared_memory()
    with place_for(case) as folder, tempfile.TemporaryDirectory() as scratch:
        mark = Path(scratch) / "mark"
        settings = (
            *RUN,
            *case.more,
            f"system.results={folder / 'results'}",
            f"data.path={data}",
        )
        command = [
            sys.executable,
            "-m",
            "tests.faults.job",
            case.launcher,
            case.fault,
            case.phase,
            case.rank,
            str(mark),
            *settings,
        ]
        if case.shell:
            command = ["bash", "-c", f'{case.shell} && exec "$@"', "-", *command]
            if case.needs_root:  # nobody else sees what it mounts
                command = ["unshare", "-m", *command]
        if case.fault == "network cut":
            command = [
                str(ROOT / "tests/lab/netlab.sh"),
                "run",
                "2",
                "0",
                "0",
                "--",
                *command,
            ]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        begun_s = time.time()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=-1, stderr=-1, text=True
        )
        try:
            out, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            return Outcome(
                case,
                120.0,
                -1,
                "",
                ("still running after 120 s",),
            )
        ended_s = time.time()
        struck, _, memory = (
            mark.read_text().partition(" ") if mark.exists() else ("nan", "", "")
        )
        stop_s = ended_s - (begun_s if case.victim is None else float(struck))
        messages = [
            line for line in err.splitlines() if line.startswith("rn50: error:")
        ]
        message = messages[0].partition("; details:")[0] if messages else ""
        said = out + err
        problems = list(
            _problems(case, folder, process.returncode, messages, said, err)
        )
        if not stop_s <= case.wait_s + bound_s:
            problems.append(f"{stop_s:.1f} s to stop")
        if memory and Path(memory).exists():
            problems.append(f"{memory} left")
        if not other_jobs():
            # Not rn50-*: this job's own is `memory`; another may have come no further than to it.
            more = [
                path for path in shared_memory() - before if path.name[:5] != "rn50-"
            ]
            problems += [f"{path} left" for path in more]
        if problems:
            for path in folder.rglob("stderr.log"):
                problems += [line[:200] for line in path.read_text().splitlines()[-80:]]
        return Outcome(
            case,
            stop_s,
            process.returncode,
            message,
            tuple(problems),
        )


def _problems(
    case: Case, folder: Path, code: int, messages: Sequence[str], said: str, err: str
) -> Iterator[str]:
    if code != case.code:
        yield f"exit code {case.code} expected, found {code}: {err[-300:]}"
    if case.code == 1:
        if messages or not re.search(case.words, _in_order(folder) + said):
            yield f"{case.words!r} expected, found {_in_order(folder)} {messages} {said[-300:]}"
    elif len(messages) != 1 or not re.search(case.words, messages[0]):
        yield f"one line with {case.words!r} expected, found {messages}"
    elif (
        case.victim is not None
        and case.fault != "NaN"
        and not re.search(rf"\brank {case.victim}\b|ranks", messages[0])
    ):
        yield f"rank {case.victim} not named"
    if "Traceback" in err:
        yield "a traceback"
    for run in folder.glob("results/*/*"):
        log = run / "result_0.txt"
        events = read_events(log) if log.is_file() and log.stat().st_size else []
        started = any(event.key == "run_start" for event in events)
        if started and events[-1].metadata.get("status") != "aborted":
            yield "no run_stop aborted at the end of the log"
        # The last one may lack the part of a rank that was killed while it wrote it.
        yield from newest_checkpoint(run / "checkpoint")[1][1:]
        left = [*run.rglob(".*.partial-*"), *run.glob(".*")]
        yield from (f"{path.name} left" for path in left)
        if not (run / "result.json").is_file():
            yield "no result.json"
        elif case.code == 1:
            yield from _clock_problems(run)
    yield from (f"process {pid} left" for pid in processes(folder))


def _in_order(folder: Path) -> str:
    """Why a run stopped that stopped in order: of its result.json."""
    result = read(next(folder.glob(f"results/*/*/{RESULT}")), Result)
    return f"{result.stopped if result else ''}\n"


def _clock_problems(run: Path) -> Iterator[str]:
    """Log, metrics and result.json have to agree on the time, whatever the wall clock did."""
    events = read_events(run / "result_0.txt")
    stamps = [event.time_ms for event in events]
    if stamps != sorted(stamps):
        yield "stamps of the log run back"
    begin = next((event.time_ms for event in events if event.key == "run_start"), 0)
    result = read_json(run / "result.json")
    records = [
        json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    log_s = (stamps[-1] - begin) / 1000
    result_s = result.get("time_to_train_s", math.nan)
    if abs(log_s - result_s) > 1 or not 0 < records[-1]["time_s"] <= result_s:
        yield f"the log took {log_s:.1f} s, result.json says {result_s:.1f} s"


def other_jobs() -> bool:
    """Does anybody else on this machine run ranks, whose shared memory is not ours?"""
    names = ("mpirun", "mpiexec.hydra", HOROVODRUN[-1])
    lines = [
        process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])
    ]
    return any(Path(word).name in names for line in lines for word in line[:3])


def shared_memory() -> set[Path]:
    """What lies in /dev/shm."""
    return set(Path("/dev/shm").iterdir())


def processes(folder: Path) -> list[int]:
    """Those that still mention the folder of a case."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and "netlab.sh" not in line:
            found.append(process.pid)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", default=[""], help="parts of names of cases"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=ROOT / "datasets/smoke",
    )
    options = parser.parse_args()
    outcomes = []
    for case in cases():
        if any(text in case.name for text in options.only):
            outcome = run_case(case, options.data)
            outcomes.append(outcome)
            shown = f"{outcome.stop_s:.1f} s, {outcome.code}, {outcome.message}"
            print(
                f"{case.name}: {shown}", *outcome.problems, sep="\n  BAD ", flush=True
            )
    bad = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"{len(outcomes)} cases, {bad} bad")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
