"""Runs each case in a forked child, within limits of memory and time.

What a case must not do is in `_run_steps`, `judge_output` and `_leftovers`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rn50.config.errors import UserError
from tests.fuzz.values import Case, Generator, Step

MOST_BYTES = 1000 << 20
"""Of address space above the process's own; a case that takes more ends in a MemoryError."""
MOST_S = 10
"""Of CPU time that a step may take, however busy the machine is."""
MOST_WALL_S = 300
"""After which a child that waits for something is killed."""
SECRET = "canary-7f3a1c"
"""Lies in a file outside of the case's folder; must not come out anywhere."""


class Failure(NamedTuple):
    """What was wrong with a case."""

    kind: str
    seed: int
    description: str
    problem: str

    def text(self) -> str:
        command = f"python -m tests.fuzz {self.kind} {self.seed}"
        return f"{command}\n  {self.description[:500]}\n  {self.problem[:4000]}"


class TooLong(BaseException):
    """The alarm of a case."""


def run_case(kind: str, generator: Generator, seed: int) -> Failure | None:
    """Run one case in a child; None: nothing was wrong."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _be_child(generator, seed, writer)
    os.close(writer)
    said = b""
    try:
        with os.fdopen(reader, "rb", buffering=0) as file:
            while select.select([file], [], [], MOST_WALL_S)[0]:
                part = file.read(1 << 16)
                if not part:
                    break
                said += part
    finally:
        for end in (os.killpg, os.kill):  # what it started is in its session
            with contextlib.suppress(ProcessLookupError):
                end(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not said:
        problem = "ended the process: killed, out of memory, or no end in time"
        return Failure(kind, seed, "", problem)
    description, problem = json.loads(said)
    return Failure(kind, seed, description, problem) if problem else None


def _be_child(generator: Generator, seed: int, writer: int) -> NoReturn:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        size = resource.getpagesize() * int(
            Path("/proc/self/statm").read_text().split()[0]
        )
        resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, size + MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.freeze()
        os.write(writer, json.dumps(_in_a_folder(generator, seed)).encode())
    finally:
        os._exit(0)


def _in_a_folder(generator: Generator, seed: int) -> tuple[str, str | None]:
    """(description, what was wrong or None) of one case."""
    place = Path(tempfile.mkdtemp(prefix="rn50-fuzz-"))
    try:
        for name in ("case", "outside", "tmp", "home"):
            (place / name).mkdir()
        (place / "outside/secret.txt").write_text(f"{SECRET}: 1\n")
        (place / "outside/secret.json").write_text(json.dumps({SECRET: SECRET}))
        os.environ.update(
            HOME=str(place / "home"), TMPDIR=str(place / "tmp"), COLUMNS="200"
        )
        tempfile.tempdir = None
        os.chdir(place / "case")
        case = generator(seed, place / "case")
        return case.description, _run_steps(case, place)
    except Exception:
        return "", "the generator itself: " + traceback.format_exc()
    finally:
        for folder, names, _ in os.walk(place):
            for below in (Path(folder, name) for name in names):
                if not below.is_symlink():  # chmod would follow it, out of the case
                    below.chmod(0o700)
        shutil.rmtree(place, ignore_errors=True)


def _run_steps(case: Case, place: Path) -> str | None:
    seen = _outside(place)
    for step in case.steps:
        shown = repr(step) if callable(step) else "rn50 " + " ".join(map(repr, step))
        gc.collect()
        signal.signal(signal.SIGPROF, _ring)
        signal.setitimer(signal.ITIMER_PROF, MOST_S)
        try:
            problem = _take(step)
        except TooLong:
            problem = f"more than {MOST_S} s of CPU time"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if problem is None and seen != (now := _outside(place)):
            problem = f"touched what is outside of its folder: {seen} -> {now}"
        problem = problem or _leftovers(place)
        if problem is not None:
            return f"{shown}: {problem}"
    return None


def _ring(number: int, _: object) -> NoReturn:
    raise TooLong


def _take(step: Step) -> str | None:
    """Take a step; returns what is wrong with how it ended."""
    try:
        if callable(step):
            with contextlib.suppress(UserError):
                step()
            return None
        return judge_output(step, *_run_command(step))
    except Exception:
        return traceback.format_exc()


def _run_command(words: Iterable[str]) -> tuple[object, str, str]:
    """(exit code, stdout, stderr) of `rn50 WORDS...` in this process, as a terminal has them.

    Raises whatever would have been a traceback.
    """
    from rn50.cli import entry

    out = io.TextIOWrapper(
        io.BytesIO(),
        "utf-8",
        errors="strict",
        newline="\n",
    )
    err = io.TextIOWrapper(
        io.BytesIO(), "utf-8", errors="backslashreplace", newline="\n"
    )
    sys.argv = ["rn50", *words]
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            entry.main()
        except SystemExit as done:
            code = done.code
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return code, texts[0], texts[1]


def judge_output(
    words: Iterable[str],
    code: object,
    out: str,
    err: str,
) -> str | None:
    """What is wrong with an exit code and what was printed, or None."""
    if code not in (0, 1, 2):
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
    content = {
        path.name: (path.read_bytes(), path.stat().st_mode)
        for path in (place / "outside").iterdir()
    }
    return sorted(place.iterdir()), content, sorted((place / "tmp").iterdir())


def _leftovers(place: Path) -> str | None:
    """Half a file, or a report with what lies elsewhere."""
    for path in (place / "case").rglob("*.partial*"):
        return f"left {path.name}"
    for path in (place / "case").rglob("*.html"):
        content = b"" if path.is_symlink() or not path.is_file() else path.read_bytes()
        if SECRET.encode() in content:
            return f"{path.name} has what lies outside of the folder"
        if b"<script" in content.lower():
            return f"{path.name} has a script"
    return None
