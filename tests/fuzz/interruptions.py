"""Runs that are interrupted at random moments and resumed, as their last lines say, to their end.

A seed decides launcher, target, and of each interruption signal, victim and moment: a share of the
time that a whole run takes here.
"""

import ctypes
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
from typing import NamedTuple, TypeGuard

import psutil

from rn50.host.reading import read_object
from tests.conftest import RUN, Rn50, packed
from tests.faults.test_resume import LAUNCHERS, is_as_if_uninterrupted
from tests.waiting import rank_process

KIND = "interruptions"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
VICTIMS = ("launcher", "rank 0", "rank 1", "engine", "all")
"""`engine`: mpirun or horovodrun. Where a victim is not there yet, it is the launcher."""
TARGETS = (0.999, 0.01)
"""Out of reach; reached at the first evaluation."""
MOST_S = 600.0
"""An attempt takes no longer, however busy the machine is."""
_MOST_ATTEMPTS = 12
_NEXT = re.compile(r"; (?:go on|start again) with: .*?rn50 (launch .*)")


class Blow(NamedTuple):
    """One interruption. `moment`: of the time of a whole run."""

    number: signal.Signals
    victim: str
    moment: float

    def __str__(self) -> str:
        return f"{self.number.name} to {self.victim} at {self.moment:.4f}"


class Attempt(NamedTuple):
    """A command that came to its end. `blow`: the one that struck. `was_over`: the run had its
    result by then."""

    code: int
    out: str
    err: str
    blow: Blow | None
    was_over: bool

    @property
    def next_words(self) -> list[str] | None:
        """The words of the command in the last line; None: there is none."""
        match = _NEXT.search(self.err) or _NEXT.search(self.out)
        if match is None:
            return None
        return shlex.split(match[1])


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
            mount = (
                "mount --make-rprivate / && mount -t tmpfs -o size=1g tmpfs /dev/shm"
            )
            subprocess.run(["sh", "-c", mount], check=True)

    def words(self, results: Path, launcher: str, target: float) -> list[str]:
        """The command of a new run."""
        settings = [f"data.path={self.data}", f"system.results={results}"]
        target_of_run = f"eval.target={target}"
        return ["launch", *RUN, "--launcher", launcher, target_of_run, *settings]

    def _whole(self, target: float) -> tuple[Path, int, float]:
        """The folder, the exit code and the time of a run that nobody interrupts."""
        results = self.folder / f"whole_{target}"
        begun_s = time.monotonic()
        command = self.words(results, LAUNCHERS[0], target)
        done = Rn50(results)(*command)
        folder = newest_run(results)
        assert is_over(folder), done.stderr
        return folder, done.returncode, time.monotonic() - begun_s


def run_case(lab: Lab, seed: int) -> tuple[str | None, int]:
    """What was wrong with the run of a seed, and how often it was interrupted."""
    story: list[str] = []
    problem = None
    try:
        _run_to_its_end(lab, seed, story)
    except AssertionError as wrong:
        attempts = "; ".join(story)
        problem = f"python -m tests.fuzz --seed {seed}\n  {attempts}\n  {wrong}"
    return problem, sum(" at " in part for part in story)


def _run_to_its_end(lab: Lab, seed: int, story: list[str]) -> None:
    """`story` gets a line of each attempt. Raises AssertionError: something is wrong."""
    rng = random.Random(f"{KIND} {seed}")
    launcher = LAUNCHERS[seed % len(LAUNCHERS)]
    target = rng.choice(TARGETS)
    uninterrupted, code, whole_s = lab.whole(target)
    count = rng.randint(1, 4)
    blows = [draw(rng, whole_s) for _ in range(count)]
    results = Path(tempfile.mkdtemp(prefix="rn50-interruptions-"))
    story.append(f"{launcher}, target {target}, in {results}")
    new_run = command = lab.words(results, launcher, target)
    memory_before = shared_memory()
    excused = memory_before
    odd_steps = set[int]()
    for number in range(_MOST_ATTEMPTS):
        blow = blows[number] if number < len(blows) else None
        ended = attempt(command, results, blow, whole_s)
        story.append(f"{ended.blow or 'left alone'}: exit {ended.code}")
        judge(ended, code)
        odd_steps |= set(map(int, re.findall(r"on after step (\d+)", ended.out)))
        leftovers = what_is_left(results)
        killed = ended.code == -signal.SIGKILL
        assert killed or leftovers <= excused, f"left: {leftovers - excused}"
        for path in (leftovers - excused) & shared_memory():
            # the next attempt removes it, if it is old
            old_s = time.time() - 120
            os.utime(path, (old_s, old_s))
        excused = excused | leftovers
        folder = newest_run(results)
        if is_over(folder):
            is_as_if_uninterrupted(folder, uninterrupted, odd_steps)
            leftovers = what_is_left(folder) - memory_before
            assert killed or not leftovers, f"left by one that was killed: {leftovers}"
            shutil.rmtree(results)
            return
        command = ended.next_words or new_run
        if command is new_run and folder is not None:  # nobody was left to say it
            command = ["launch", "--resume", str(folder), f"data.path={lab.data}"]
    raise AssertionError(f"not at its end after {_MOST_ATTEMPTS} attempts")


def draw(rng: random.Random, whole_s: float) -> Blow:
    """One in three within the first three seconds, from 10 ms on."""
    moment = rng.random()
    if rng.random() < 1 / 3:
        moment = 0.01 * 300 ** rng.random() / whole_s
    return Blow(rng.choice(SIGNALS), rng.choice(VICTIMS), moment)


def attempt(
    command: list[str], results: Path, blow: Blow | None, whole_s: float
) -> Attempt:
    """Run the command and strike."""
    process = Rn50(results).start(*command)
    struck = None
    was_over = False
    if blow is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(blow.moment * whole_s)
        was_over = is_over(newest_run(results))
        if process.poll() is None and strike(process.pid, blow):
            struck = blow
    out, err = process.communicate(timeout=MOST_S)
    return Attempt(process.returncode, out, err, struck, was_over)


def strike(launcher: int, blow: Blow) -> bool:
    """Send the signal; whether there was a process to take it."""
    command = psutil.Process(launcher)
    victims = [command]
    if blow.victim == "all":
        victims += command.children(recursive=True)
    elif blow.victim == "engine":
        victims = command.children() or victims
    elif blow.victim != "launcher":
        victims = [rank_process(launcher, int(blow.victim[-1])) or command]
    is_taken = False
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(blow.number)
            is_taken = True
    return is_taken


def judge(ended: Attempt, end_code: int) -> None:
    """Exit code and lines are those of the documented ends. `end_code`: of a run that nobody
    interrupts."""
    code, out, err, blow, was_over = ended
    texts = f"exit {code}\n{out[-3000:]}\n{err[-3000:]}"
    if "init_import_site" in err:  # Python's own words, before it runs any of ours
        return
    assert "Traceback" not in out + err, texts
    if code < 0:  # before Python runs, a signal ends a process without a word
        assert blow, texts
        assert code == -blow.number, texts
        assert code == -signal.SIGKILL or not out + err, texts
        return
    expected = {end_code}
    if blow is None:
        if _NEXT.search(err):
            expected.add(2)
    elif was_over:
        pass
    elif blow.number != signal.SIGKILL and blow.victim in ("launcher", "all"):
        expected |= {130}
    else:  # a rank that is asked to stop stops all in order; in start-up it fails
        expected |= {1, 2, 130}
    assert code in expected, f"exit code of {expected} expected: {texts}"
    errors = re.findall(r"^rn50: (?!warning|stopping).*", err, re.MULTILINE)
    results = len(re.findall(r"^RESULT ", out, re.MULTILINE))
    is_concluded = code in (0, 1)
    last_line = [] if is_concluded else err.splitlines()[-1:]
    assert results == is_concluded, f"one RESULT or one error expected: {texts}"
    assert errors == last_line, f"one RESULT or one error expected: {texts}"


def what_is_left(folder: Path) -> set[Path]:
    """Files in memory, locks, halves of files; processes are waited for."""
    children = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(children, timeout=60)
    lines = [" ".join(process.cmdline())[:200] for process in alive]
    for process in alive:
        process.kill()
    assert not alive, f"processes left: {lines}"
    return {*shared_memory(), *folder.rglob(".*")}


def shared_memory() -> set[Path]:
    """What lies in /dev/shm."""
    return set(Path("/dev/shm").iterdir())


def newest_run(results: Path) -> Path | None:
    """The folder of the last run, which one that starts again has replaced."""
    folders = [config.parent for config in results.glob("*/*/config.yaml")]
    return max(folders, key=lambda path: path.stat().st_ctime_ns, default=None)


def is_over(folder: Path | None) -> TypeGuard[Path]:
    """Whether rank 0 has left the result of a run that came to its end."""
    if folder is None:
        return False
    result = read_object(folder / "result.json")
    return result.get("status") in ("success", "aborted") and "stopped" not in result
