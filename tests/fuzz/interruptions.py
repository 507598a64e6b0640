"""Runs that are interrupted at random moments and resumed, as their last lines say, to their end.

A seed decides the launcher, the target, and of each interruption signal, victim and moment: a share
of the time that the whole run took here, so that another machine's load moves it.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import psutil

from rn50.logging.parse import read_events
from tests.conftest import RUN, Rn50, packed
from tests.faults.matrix import shared_memory
from tests.faults.test_resume import LAUNCHERS, bits, records
from tests.fuzz.runner import Failure
from tests.fuzz.values import rng_of
from tests.waiting import rank_process

KIND = "interruptions"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
VICTIMS = ("launcher", "rank 0", "rank 1", "engine", "all")
"""`engine`: mpirun or horovodrun. Where a victim is not there yet, it is the launcher."""
TARGETS = (0.999, 0.01)
"""Out of reach; reached at the first evaluation."""
A_CONCLUDED_RUN_STAYS_CONCLUDED = False
"""Whether a signal after rank 0 has written the result is expected to change nothing."""
MOST_S = 600.0
"""Of an attempt, however busy the machine is."""
_MOST_ATTEMPTS = 12
_LOG_EVERY = 5
_NEXT = re.compile(r"; (?:go on|start again) with: .*?rn50 (launch .*)")


class Wrong(Exception):
    """What a run must not do."""


class Blow(NamedTuple):
    """One interruption. `moment`: of the time of a whole run."""

    number: signal.Signals
    victim: str
    moment: float

    def __str__(self) -> str:
        return f"{self.number.name} to {self.victim} at {self.moment:.4f}"


class Ended(NamedTuple):
    """An attempt. `blow`: the one that struck while it ran."""

    code: int
    out: str
    err: str
    blow: Blow | None
    was_concluded: bool


class Lab:
    """What all cases share: an image set, the runs that nobody interrupts, a /dev/shm of its own
    (without root, nobody else may run ranks here), the care for processes of killed parents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = packed(folder / "set", "{train_samples: 400, eval_samples: 200}")
        self.whole = lru_cache(self._whole)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        if os.geteuid() == 0 and not libc.unshare(0x00020000):  # CLONE_NEWNS
            mount = "mount --make-rprivate / && mount -t tmpfs -o size=1g tmpfs /dev/shm"
            subprocess.run(["sh", "-c", mount], check=True)

    def words(self, results: Path, launcher: str, target: float) -> list[str]:
        """The command of a new run."""
        more = [f"data.path={self.data}", f"system.results={results}", f"eval.target={target}"]
        return ["launch", *RUN, "--launcher", launcher, "watchdog.silence_s=60", *more]

    def _whole(self, target: float) -> tuple[Path, int, float]:
        """The folder, the exit code and the time of a run that nobody interrupts."""
        results = self.folder / f"whole_{target}"
        begun_s = time.monotonic()
        done = Rn50(results)(*self.words(results, LAUNCHERS[0], target))
        folder = newest_run(results)
        if folder is None or not is_concluded(folder):
            raise RuntimeError(f"no whole run to compare with: {done.stderr}")
        return folder, done.returncode, time.monotonic() - begun_s


def run_case(lab: Lab, seed: int) -> tuple[Failure | None, int]:
    """What was wrong with the run of a seed, and how often it was interrupted."""
    rng = rng_of(KIND, seed)
    launcher, target = LAUNCHERS[seed % len(LAUNCHERS)], rng.choice(TARGETS)
    whole, code, whole_s = lab.whole(target)
    blows = [draw(rng, whole_s) for _ in range(rng.randint(1, 4))]
    results = Path(tempfile.mkdtemp(prefix="rn50-interruptions-"))
    before = shared_memory()
    excused = set(before)
    story = [f"{launcher}, target {target}, in {results}"]
    words, odd_steps, struck = lab.words(results, launcher, target), set[int](), 0
    try:
        for number in range(_MOST_ATTEMPTS):
            blow = blows[number] if number < len(blows) else None
            ended = attempt(words, results, blow, whole_s)
            struck += ended.blow is not None
            story.append(f"{ended.blow or 'left alone'}: exit {ended.code}")
            judge(ended, code)
            left = what_is_left(results)
            if ended.code == -signal.SIGKILL:
                for path in (left - excused) & shared_memory():
                    os.utime(path, (time.time() - 120,) * 2)  # the next attempt takes it, if old
                excused |= left
            elif left - excused:
                raise Wrong(f"left: {left - excused}")
            odd_steps |= {int(step) for step in re.findall(r"on after step (\d+)", ended.out)}
            folder = newest_run(results)
            if folder is not None and is_concluded(folder):
                is_as_if_uninterrupted(folder, whole, odd_steps)
                if ended.code != -signal.SIGKILL and (left := what_is_left(folder) - before):
                    raise Wrong(f"left by a killed one: {left}")
                shutil.rmtree(results)
                return None, struck
            words = next_words(ended)
            if words is None and folder is not None:  # nobody was left to say it
                words = ["launch", "--resume", str(folder), f"data.path={lab.data}"]
            words = words or lab.words(results, launcher, target)
        raise Wrong(f"not at its end after {_MOST_ATTEMPTS} attempts")
    except Wrong as wrong:
        return Failure(KIND, seed, "; ".join(story), str(wrong)), struck


def draw(rng: random.Random, whole_s: float) -> Blow:
    """One in three within the first seconds, from 10 ms on."""
    early, late = 0.01 * 300 ** rng.random() / whole_s, rng.random()
    moment = early if rng.random() < 1 / 3 else late
    return Blow(rng.choice(SIGNALS), rng.choice(VICTIMS), moment)


def attempt(words: list[str], results: Path, blow: Blow | None, whole_s: float) -> Ended:
    """Run the command and strike."""
    process = Rn50(results).start(*words)
    struck = was_concluded = False
    if blow is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(blow.moment * whole_s)
        folder = newest_run(results)
        was_concluded = folder is not None and is_concluded(folder)
        struck = process.poll() is None and strike(process.pid, blow)
    try:
        out, err = process.communicate(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        raise Wrong(f"{blow}: no end within {MOST_S:g} s of {shlex.join(words)}") from None
    return Ended(process.returncode, out, err, blow if struck else None, was_concluded)


def strike(launcher: int, blow: Blow) -> bool:
    """Send the signal; whether there was a process to take it."""
    command = psutil.Process(launcher)
    victims = [command]
    with suppress(psutil.NoSuchProcess):
        if blow.victim == "all":
            victims += command.children(recursive=True)
        elif blow.victim == "engine":
            victims = command.children() or victims
        elif blow.victim != "launcher":
            victims = [rank_process(launcher, int(blow.victim[-1])) or command]
    taken = False
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(blow.number)
            taken = True
    return taken


def judge(ended: Ended, end_code: int) -> None:
    """Raise Wrong unless exit code and lines are those of the documented ends. `end_code`: of a run
    that nobody interrupts."""
    code, out, err, blow, was_concluded = ended
    texts = f"exit {code}\n{out[-3000:]}\n{err[-3000:]}"
    if "Traceback" in out + err:
        raise Wrong(f"a traceback: {texts}")
    if code < 0:
        # Before Python runs, a signal ends a process without a word.
        if blow is None or code != -blow.number or (code != -signal.SIGKILL and out + err):
            raise Wrong(f"ended by a signal: {texts}")
        return
    expected = {end_code}
    if blow is None or (was_concluded and A_CONCLUDED_RUN_STAYS_CONCLUDED):
        expected |= {2} if blow is None and _NEXT.search(err) else set()
    elif blow.number != signal.SIGKILL and blow.victim in ("launcher", "all"):
        expected |= {130}
    else:  # a rank that is asked to stop stops all in order; in start-up it fails
        expected |= {1, 2, 130}
    if code not in expected:
        raise Wrong(f"exit code of {expected} expected: {texts}")
    said = re.findall(r"^rn50: (?!warning|stopping).*", err, re.MULTILINE)
    results = re.findall(r"^RESULT ", out, re.MULTILINE)
    if code in (0, 1) and (len(results) != 1 or said):
        raise Wrong(f"one RESULT and no error expected: {texts}")
    if code in (2, 130) and (len(said) != 1 or err.splitlines()[-1] != said[0] or results):
        raise Wrong(f"one last line expected: {texts}")


def what_is_left(folder: Path) -> set[Path]:
    """Files in memory, locks, halves of files. Raises Wrong where processes are left."""
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=60)
    if alive:
        lines = [" ".join(process.cmdline())[:200] for process in alive]
        for process in alive:
            process.kill()
        raise Wrong(f"processes left: {lines}")
    return {*shared_memory(), *folder.rglob(".*")}


def newest_run(results: Path) -> Path | None:
    """The folder of the last run, which another may have replaced."""
    folders = [path for path in results.glob("*/*") if (path / "config.yaml").is_file()]
    return max(folders, key=lambda path: path.stat().st_ctime_ns, default=None)


def is_concluded(folder: Path) -> bool:
    """Whether rank 0 has left the result of a run that came to its end."""
    with suppress(OSError, ValueError):
        result = json.loads((folder / "result.json").read_text())
        return result["status"] in ("success", "aborted") and "stopped" not in result
    return False


def next_words(ended: Ended) -> list[str] | None:
    """The words of the command in the last line; None: there is none."""
    found = _NEXT.search(ended.err) or _NEXT.search(ended.out)
    return shlex.split(found[1]) if found else None


def is_as_if_uninterrupted(folder: Path, whole: Path, odd_steps: set[int]) -> None:
    """Raise Wrong unless result, metrics and log are those of `whole`. `odd_steps`: after which it
    went on; between two log points the next loss is the mean since then."""
    if bits(folder) != bits(whole):
        raise Wrong(f"{folder}: {bits(folder)} expected as in {whole}, found {bits(whole)}")
    both = records(folder), records(whole)
    for step in (step for step in odd_steps if step % _LOG_EVERY):
        for of_run in both:
            next(record for record in of_run if record["step"] > step).pop("loss", None)
    if both[0] != both[1]:
        raise Wrong(f"{folder}: other metrics than in {whole}")
    keys = [[event.key for event in read_events(run / "result_0.txt")] for run in (folder, whole)]
    if [key for key in keys[0] if key != "run_resumed"] != keys[1]:
        raise Wrong(f"{folder}: other events in result_0.txt than in {whole}")
