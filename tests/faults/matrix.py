"""Faults x launchers x phases, done for real, held to their bounds.

python -m tests.faults.matrix [--only TEXT ...]
"""

import argparse
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

from rn50.host.reading import read_text
from rn50.logging.parse import read_events
from rn50.logging.records import Result, read
from rn50.logging.run_folder import RunFolder
from rn50.train.checkpoint.folder import newest_checkpoint
from tests.waiting import finished, mentioning

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = ("mpirun", "gloo")
PHASES = ("start-up", "first step", "mid-epoch", "evaluation", "checkpoint")
SILENCE_S = 4.0
STALL_S = 6.0
START_UP_S = 30.0
"""The watchdog's patience in these cases; the defaults are 10, 300 and 300."""
GRACE_S = 10.0
"""Ranks that stand still but answer may write a checkpoint in so long."""
DEATH_BOUND_S = 10.0
"""From the death of a rank to the end of `rn50 launch`; for one that is silent or stands still,
after `silence_s`, `start_s`, or `stall_s` with `grace_s`."""
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
    message: str
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
    stop_s: float
    code: int
    message: str
    problems: Sequence[str]


WORDS = {
    "SIGKILL": "killed by SIGKILL",
    "SIGSEGV": r"killed by SIGSEGV|(SIGABRT|process is gone) \(.*[Ss]egmentation fault",
    "SIGSTOP": r"silent for \d+ s",
    "exception": "ZeroDivisionError: the disk is on fire",
    "no memory": "out of memory|Resource temporarily unavailable|memory was short"
    "|MPI_INIT failed",
    "silent exit": "its process is gone",
    "data never comes": r"no progress for \d+ s",
}
"""Faults of every phase, and what is said of them."""
WAITS_S = {"SIGSTOP": SILENCE_S, "data never comes": STALL_S + GRACE_S}
HEALTHY = (
    ("slow library", "start-up"),
    ("slow steps", "mid-epoch"),
    ("slow steps", "evaluation"),
)
"""What takes longer than `silence_s` or `stall_s`, and is no fault."""
SHORT_START = (f"watchdog.start_s={START_UP_S}",)
NO_SPACE = "cannot write: No space left on device"
NO_CHECKPOINT = f"no checkpoint of step 20: .* {NO_SPACE}"
NO_FOLDER = r"the run's folder is gone, removed or renamed .*: rank 0 on"
STOPPED = r"asked to stop by SIGTERM to rank 1 on \S+ at step"
NO_SHARED = (
    r"its process is gone \(PMIX ERROR: OUT-OF-RESOURCE; /dev/shm: \S+ kB free, "
    "64 kB in all"
)
EITHER = r"rank 0 on \S+ or rank 1 on \S+ in weights: which one cannot be told from two"
FAR = (
    r"rn50: warning: batch norm's statistics: rank 0 on \S+ or rank 1 on \S+ in values"
)
SHORT_SPACE = r"rank \d on \S+ failed in .* \(.*ulimit -v 900000"


def cases() -> Iterator[Case]:
    """All of them."""
    for fault in WORDS:
        for number, phase in enumerate(PHASES):
            for launcher in LAUNCHERS:
                victim = (number + (launcher == "gloo")) % 2
                # rank 0 writes, in a thread: an error there costs a line
                if phase == "checkpoint":
                    victim = int(
                        fault in ("exception", "no memory", "data never comes")
                    )
                wait_s = WAITS_S.get(fault, 0.0)
                more: tuple[str, ...] = ()
                if (fault, phase) == ("data never comes", "start-up"):
                    wait_s = START_UP_S
                    more = SHORT_START
                yield Case(
                    fault, launcher, phase, victim, WORDS[fault], wait_s, more=more
                )
    for number, (fault, phase) in enumerate(HEALTHY):
        yield Case(
            fault,
            LAUNCHERS[number % 2],
            phase,
            1,
            "target 0.999 missed",
            math.inf,
            code=1,
            more=(
                "log.every=1000 steps",
                "schedule.length=2 epochs",
                "limits.min_accuracy_by=off",
            ),
        )
    yield Case(
        "data comes late",
        "mpirun",
        "mid-epoch",
        1,
        r"no progress for .*; details: .*/failure_1.json; go on with: ",
        WAITS_S["data never comes"],
        more=("checkpoint.every=100 epochs",),  # that of the end is the first
    )
    for launcher in LAUNCHERS:
        for victim in (0, 1):
            # at the next evaluation
            yield Case("bit flip", launcher, "mid-epoch", victim, EITHER, START_S)
            first = f"first on 1 of 2 ranks, rank {victim} on "
            yield Case("NaN", launcher, "mid-epoch", victim, first, STALL_S)
            yield Case(
                "far statistics",
                launcher,
                "mid-epoch",
                victim,
                FAR,
                math.inf,
                code=1,
                more=("eval.period=1", "eval.offset=0"),  # it fades away
            )
        # Half a checkpoint that is given up would make room again.
        none = ("checkpoint.every=100 epochs",)
        yield Case("disk full", launcher, "mid-epoch", 0, NO_SPACE, more=none)
        yield Case("disk full", launcher, "evaluation", 0, NO_SPACE, more=none)
        yield Case("disk full", launcher, "checkpoint", 0, NO_SPACE)
        # A checkpoint that finds no place costs a warning; log and metrics still have theirs.
        yield Case(
            "disk nearly full",
            launcher,
            "checkpoint",
            0,
            NO_CHECKPOINT,
            math.inf,
            code=1,
        )
        for phase in PHASES[1:]:
            yield Case("SIGTERM", launcher, phase, 1, STOPPED, code=1)
        yield Case("folder removed", launcher, "mid-epoch", 0, NO_FOLDER)
        yield Case(
            "ulimit -v 900000",
            launcher,
            "before",
            None,
            SHORT_SPACE,
            START_S,
            shell="ulimit -v 900000",
        )
    yield Case(
        "/dev/shm full",
        "mpirun",
        "before",
        None,
        NO_SHARED,
        START_S,
        # in a mount namespace of its own
        shell="mount -t tmpfs -o size=64k tmpfs /dev/shm",
    )
    for phase in PHASES:
        yield Case(
            "network cut",
            "mpirun",
            phase,
            1,
            r"rank 1 on h2 .* silent for \d+ s",
            START_UP_S if phase == "start-up" else SILENCE_S,
            more=("system.nodes=2", "system.ranks_per_node=1", *SHORT_START),
        )


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


def command_of(case: Case, folder: Path, data: Path, mark: Path) -> list[str]:
    """The command line of a case, whose run goes into `folder`."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.job",
        case.launcher,
        case.fault,
        case.phase,
        case.rank,
        str(mark),
        *RUN,
        *case.more,
        f"system.results={folder / 'results'}",
        f"data.path={data}",
    ]
    if case.shell:
        command = ["bash", "-c", f'{case.shell} && exec "$@"', "-", *command]
        if case.needs_root:  # its mounts stay in a namespace of its own
            command = ["unshare", "-m", *command]
    if case.fault == "network cut":
        lab = str(ROOT / "tests/lab/netlab.sh")
        command = [lab, "run", "2", "0", "0", "--", *command]
    return command


def run_case(case: Case, data: Path, bound_s: float = DEATH_BOUND_S) -> Outcome:
    """Do it, measure, and look for what should not be there."""
    with place_for(case) as folder, tempfile.TemporaryDirectory() as scratch:
        mark = Path(scratch) / "mark"
        begun_s = time.time()
        try:
            done = finished(
                command_of(case, folder, data, mark),
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                timeout=120,
            )
        except subprocess.TimeoutExpired:
            return Outcome(120.0, -1, "", ["still running after 120 s"])
        ended_s = time.time()
        memory: list[str] = []
        if case.victim is not None:
            struck, *memory = read_text(mark).splitlines() or ["nan"]
            begun_s = float(struck)
        stop_s = ended_s - begun_s
        messages = re.findall(r"^rn50: error:.*", done.stderr, re.M)
        problems = list(_problems(case, folder, done, messages))
        if not stop_s <= case.wait_s + bound_s:
            problems.append(f"{stop_s:.1f} s to stop")
        problems += [f"{path} left" for path in memory if Path(path).exists()]
        if problems:
            for path in folder.rglob("stderr.log"):
                problems += [line[:200] for line in path.read_text().splitlines()[-80:]]
        message = "".join(messages[:1]).partition("; details:")[0]
        return Outcome(stop_s, done.returncode, message, problems)


def _problems(
    case: Case,
    folder: Path,
    done: subprocess.CompletedProcess[str],
    messages: Sequence[str],
) -> Iterator[str]:
    code = done.returncode
    if code != case.code:
        yield f"exit code {case.code} expected, found {code}: {done.stderr[-300:]}"
    if case.code == 1:
        said = f"{_why_stopped(folder)}\n{done.stdout}{done.stderr}"
        if messages or not re.search(case.message, said):
            yield f"{case.message!r} expected, found {messages} {said[-300:]}"
    elif len(messages) != 1 or not re.search(case.message, messages[0]):
        yield f"one line with {case.message!r} expected, found {messages}"
    elif case.victim is not None and not re.search(
        rf"\brank {case.victim}\b|ranks", messages[0]
    ):
        yield f"rank {case.rank} not named"
    if "Traceback" in done.stderr:
        yield "a traceback"
    runs = list(folder.glob("results/*/*"))
    if case.victim is not None and case.fault != "folder removed" and not runs:
        yield "no folder of a run"
    for run in runs:
        log = run / "result_0.txt"
        events = read_events(log) if log.is_file() and log.stat().st_size else []
        started = any(event.key == "run_start" for event in events)
        if started and events[-1].metadata.get("status") != "aborted":
            yield "no run_stop aborted at the end of the log"
        # The last one may lack the part of a rank that was killed while it wrote it.
        yield from newest_checkpoint(run / "checkpoint")[1][1:]
        for path in (*run.rglob(".*.partial-*"), *run.glob(".*")):
            # another host's rank 0 may still hold it: the launcher leaves it to expire
            if case.fault != "network cut" or path != RunFolder(path.parent).rank_lock:
                yield f"{path.name} left"
        if not RunFolder(run).result.is_file():
            yield "no result.json"
    for line in mentioning(folder):
        if "netlab.sh" not in line:
            yield f"process left: {line}"


def _why_stopped(folder: Path) -> object:
    """Why a run stopped in order, by its result.json."""
    path = next(folder.glob("results/*/*/result.json"), None)
    result = read(path, Result) if path else None
    return result and result.stopped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--data", type=Path, default=ROOT / "datasets/smoke")
    options = parser.parse_args()
    chosen = [
        case for case in cases() if any(part in case.name for part in options.only)
    ]
    bad = 0
    for case in chosen:
        stop_s, code, message, problems = run_case(case, options.data)
        print(f"{case.name}: {stop_s:.1f} s, {code}, {message}", flush=True)
        for problem in problems:
            print(f"  BAD {problem}", flush=True)
        bad += bool(problems)
    print(f"{len(chosen)} cases, {bad} bad")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
