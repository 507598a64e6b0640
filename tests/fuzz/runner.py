"""Runs cases in forked children, each within its own limits of memory and time.

A child takes a batch of cases one after the other; where one ends it, the next child goes on after
that case. What a case must not do is in `judge_step` and `judge_folder`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rn50.config.errors import UserError
from tests.fuzz.case import Case, Generator, Step, Wrong

MOST_BYTES = 500 << 20
"""Of memory that a case may take above what the process has before it."""
MOST_S = 10
"""Of CPU time, its children's included, that a step may take, however busy the machine is."""
MOST_WALL_S = 300
"""After which a step that waits for something is stopped."""
_ADDRESSES = MOST_BYTES + (500 << 20)
"""Of address space above the process's own: what maps a file without reading it is no fault."""
_GRACE_S = 20
"""After which a child that does not heed its alarm is killed."""
_MOST_SHOWN = 4000
_EXIT_CODES = (0, 1, 2)
SECRET = "canary-7f3a1c"
"""Lies in a file outside of the case's folder; must not come out anywhere."""


class Failure(NamedTuple):
    """What was wrong with a case."""

    kind: str
    seed: int
    description: str
    problem: str

    def text(self) -> str:
        return (
            f"python -m tests.fuzz {self.kind} {self.seed}\n  {self.description[:500]}\n"
            f"  {self.problem[:_MOST_SHOWN]}"
        )


class Job(NamedTuple):
    """Cases of one kind for one child."""

    kind: str
    seeds: tuple[int, ...]


class TooLong(BaseException):
    """The alarm of a case."""


def run_jobs(
    generators: Mapping[str, Generator],
    jobs: Iterator[Job],
    at_once: int = 1,
    told: Callable[[str, int, Failure | None], None] = lambda kind, seed, failure: None,
) -> None:
    """Run all cases, `at_once` children at a time; `told` is called with each case as it ends."""
    with selectors.DefaultSelector() as selector:
        children: list[_Child] = []
        jobs = iter(jobs)
        exhausted = False
        try:
            while True:
                while len(children) < at_once and not exhausted:
                    job = next(jobs, None)
                    exhausted = job is None
                    if job is not None:
                        children.append(_Child(generators[job.kind], job, selector))
                if not children:
                    return
                for key, _ in selector.select(timeout=1.0):
                    key.data.read()
                for child in list(children):
                    child.report(told)
                    if child.ended:
                        child.close()
                        children.remove(child)
                        if child.left:
                            rest = Job(child.job.kind, child.left)
                            children.append(_Child(generators[rest.kind], rest, selector))
        finally:
            for child in children:
                child.close()


class _Child:
    """A forked process over the cases of a job, and what it has said so far."""

    def __init__(self, generator: Generator, job: Job, selector: selectors.BaseSelector) -> None:
        self.job, self.left, self.ended = job, job.seeds, False
        self._selector, self._said = selector, b""
        self._reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._number = os.fork()
        if not self._number:
            os.close(self._reader)
            _be_child(generator, job, writer)
        os.close(writer)
        self._heard_s = time.monotonic()
        selector.register(self._reader, selectors.EVENT_READ, self)

    def read(self) -> None:
        part = os.read(self._reader, 1 << 16)
        self._heard_s = time.monotonic()
        self._said += part
        self.ended = not part

    def report(self, told: Callable[[str, int, Failure | None], None]) -> None:
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            description, problem = json.loads(line)
            self._tell(told, description, problem)
        if not self.ended and time.monotonic() > self._heard_s + MOST_WALL_S + _GRACE_S:
            os.kill(self._number, signal.SIGKILL)
            self.ended = True
        if self.ended and self.left:
            self._tell(told, "", "ended the process: killed, out of memory, or no end in time")

    def _tell(self, told: Callable[..., None], description: str, problem: str | None) -> None:
        seed, *rest = self.left
        self.left = tuple(rest)
        kind = self.job.kind
        told(kind, seed, Failure(kind, seed, description, problem) if problem else None)

    def close(self) -> None:
        if self._number:
            for end in (os.killpg, os.kill):  # what it started is in its session
                with contextlib.suppress(ProcessLookupError):
                    end(self._number, signal.SIGKILL)
            os.waitpid(self._number, 0)
            self._selector.unregister(self._reader)
            os.close(self._reader)
            self._number = 0


def _be_child(generator: Generator, job: Job, writer: int) -> NoReturn:
    """The cases in turn; a line of JSON for each. Ends the process."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        size = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (size + _ADDRESSES, size + _ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.freeze()
        for seed in job.seeds:
            said = json.dumps(run_case(generator, seed))
            os.write(writer, said.encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def run_case(generator: Generator, seed: int) -> tuple[str, str | None]:
    """(description, what was wrong or None) of one case, in this process."""
    place = Path(tempfile.mkdtemp(prefix="rn50-fuzz-"))
    before = Path.cwd()
    environment = dict(os.environ)
    try:
        folder, outside = place / "case", place / "outside"
        for made in (folder, outside, place / "tmp", place / "home"):
            made.mkdir()
        (outside / "secret.txt").write_text(f"{SECRET}: 1\n")
        (outside / "secret.json").write_text(json.dumps({SECRET: SECRET}))
        os.environ.update(HOME=str(place / "home"), TMPDIR=str(place / "tmp"), COLUMNS="200")
        tempfile.tempdir = None
        os.chdir(folder)
        case = generator(seed, folder)
        return case.description, _run_steps(case, place)
    except Exception:
        return "", "the generator itself: " + traceback.format_exc()
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        _remove(place)


def _remove(place: Path) -> None:
    for folder, names, _ in os.walk(place):
        for name in names:
            below = Path(folder, name)
            with contextlib.suppress(OSError):
                if not below.is_symlink():  # chmod would follow it, out of the case
                    below.chmod(0o700)
    shutil.rmtree(place, ignore_errors=True)


def _run_steps(case: Case, place: Path) -> str | None:
    seen = _outside(place)
    for step in case.steps:
        gc.collect()
        pages = _pages(place)
        Path("/proc/self/clear_refs").write_text("5")
        start_bytes, start_s = _status("VmRSS"), _cpu_s()
        try:
            problem = _alarmed(step)
        except TooLong as limit:
            problem = f"more than {limit}"
        taken_bytes = _status("VmHWM") - start_bytes
        if problem is None and taken_bytes > MOST_BYTES:
            problem = f"{taken_bytes >> 20} MB of memory"
        taken_s = _cpu_s() - start_s
        if problem is None and taken_s > MOST_S:
            problem = f"more than {MOST_S} s of CPU time: {taken_s:.1f} s"
        if problem is None and seen != (now := _outside(place)):
            problem = f"touched what is outside of its folder: {seen} -> {now}"
        if problem is None:
            problem = _leftovers(place, pages)
        if problem is not None:
            return f"{_shown(step)}: {problem}"
    return None


def _shown(step: Step) -> str:
    return repr(step) if callable(step) else "rn50 " + " ".join(map(repr, step))


def _alarmed(step: Step) -> str | None:
    def ring(number: int, _: object) -> None:
        cpu = number == signal.SIGPROF
        raise TooLong(f"{MOST_S} s of CPU time" if cpu else f"{MOST_WALL_S} s of waiting")

    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_WALL_S)
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        return _take(step)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _take(step: Step) -> str | None:
    """Take a step; returns what is wrong with how it ended."""
    try:
        if callable(step):
            with contextlib.suppress(UserError):
                step()
            return None
        return judge_output(step, *run_command(step))
    except Wrong as error:
        return f"wrong: {error}"
    except Exception:
        return traceback.format_exc()


def run_command(words: Iterable[str]) -> tuple[object, str, str]:
    """(exit code, stdout, stderr) of `rn50 WORDS...` in this process, as a terminal has them.

    Raises whatever would have been a traceback.
    """
    from rn50.cli import entry

    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", newline="\n")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", newline="\n")
    arguments = sys.argv
    sys.argv = ["rn50", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                entry.main()
                code: object = 0
            except SystemExit as done:
                code = done.code
    finally:
        sys.argv = arguments
    return code, *(_text(stream) for stream in (out, err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    data = stream.buffer
    assert isinstance(data, io.BytesIO)
    return data.getvalue().decode()


def judge_output(words: Iterable[str], code: object, out: str, err: str) -> str | None:
    """What is wrong with an exit code and what was printed, or None."""
    words = list(words)
    if code not in _EXIT_CODES:
        return f"exit code {code!r}: {err[-500:]}"
    if "Traceback" in out + err:
        return f"a traceback: {(out + err)[-2000:]}"
    for name, text in (("stdout", out), ("stderr", err)):
        bad = next((c for c in text if not c.isprintable() and c != "\n"), None)
        if bad is not None:
            at = text.index(bad)
            return f"{name} has {bad!r}: {text[max(0, at - 100) : at + 100]!r}"
        if SECRET in text:
            return f"{name} has what lies outside of the folder"
        if len(text) > 2_000_000:
            return f"{name} has {len(text):,} characters"
    if code == 2 and not (err or out):
        return "exit code 2 without a word"
    if "--json" in words and (out or code != 2):
        try:
            json.loads(out, parse_constant=_no_number)
        except ValueError as error:
            return f"no JSON: {error}: {out[:300]!r}"
    return None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _outside(place: Path) -> Any:
    """All that lies beside the case's folder, with the bytes of what is in `outside`."""
    names = sorted(entry.name for entry in os.scandir(place))
    content = {
        entry.name: (Path(entry.path).read_bytes(), entry.stat().st_mode)
        for entry in os.scandir(place / "outside")
    }
    return names, content, sorted(entry.name for entry in os.scandir(place / "tmp"))


def _pages(place: Path) -> dict[Path, int]:
    """The reports that are there, each with the time of its last change."""
    return {path: path.lstat().st_mtime_ns for path in (place / "case").rglob("*.html")}


def _leftovers(place: Path, before: dict[Path, int]) -> str | None:
    """Half a file, or a report of ours with what lies elsewhere."""
    for folder, names, files in os.walk(place / "case"):
        for name in (*names, *files):
            if ".partial-" in name and not name.startswith("planted"):
                return f"left {name}"
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink() and _pages_differ(path, before):
                content = path.read_bytes()
                if SECRET.encode() in content:
                    return f"{name} has what lies outside of the folder"
                if b"<script" in content.lower():
                    return f"{name} has a script"
    return None


def _pages_differ(path: Path, before: dict[Path, int]) -> bool:
    return path.suffix == ".html" and before.get(path) != path.lstat().st_mtime_ns


def _cpu_s() -> float:
    """CPU time of this process and of the children that have ended."""
    return sum(os.times()[:4])


def _status(name: str) -> int:
    """Bytes of an entry of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise KeyError(name)
