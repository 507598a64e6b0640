"""Runs each case in a forked child, within limits of memory and time, and judges what it did."""

import json
import os
import random
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.conftest import in_this_process
from tests.fuzz.cases import CASES

MOST_BYTES = 1000 << 20
"""Of address space above the process's own; a case that takes more ends in a MemoryError."""
MOST_CPU_S = 30
"""The CPU time that a case of two or three commands may take, however busy the machine is."""
MOST_WALL_S = 300
"""After which a child that waits for something is killed."""
SECRET = "canary-7f3a1c"
"""Lies in a file outside of the case's folder; must not come out anywhere."""


def run_case(kind: str, seed: int) -> str | None:
    """What was wrong, after the command that shows it again; None: nothing."""
    with ProcessPoolExecutor(1, get_context("fork"), _limit) as child:
        try:
            problem = child.submit(_problem_of, kind, seed).result()
        except Exception as error:
            problem = "".join(traceback.format_exception(error))
    if problem is None:
        return None
    return f"python -m tests.fuzz {kind} {seed}\n  {problem}"


def _limit() -> None:
    pages, *_ = Path("/proc/self/statm").read_text().split()
    most_bytes = int(pages) * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    signal.alarm(MOST_WALL_S)


def _problem_of(kind: str, seed: int) -> str | None:
    with tempfile.TemporaryDirectory(prefix="rn50-fuzz-") as place:
        folder = Path(place, "case")
        secret = Path(place, "outside/secret.txt")
        for made in (folder, secret.parent):
            made.mkdir()
        secret.write_text(f"{SECRET}: 1\n")
        os.environ.update(HOME=place, COLUMNS="200")
        os.chdir(folder)
        for words in CASES[kind](random.Random(f"{kind} {seed}"), folder):
            problem = judge(in_this_process(words, folder))
            beside = [*secret.parent.iterdir()]
            if beside != [secret] or SECRET not in secret.read_text():
                problem = "touched what is outside of its folder"
            if [*folder.rglob("*.partial*"), *folder.rglob("*.staging")]:
                problem = "left half a file"
            for page in folder.rglob("*.html"):
                if re.search(f"<script|{SECRET}", page.read_text()):
                    problem = f"{page.name} has a script, or what lies outside"
            if problem:
                return f"rn50 {shlex.join(words)}: {problem}"
    return None


def judge(done: subprocess.CompletedProcess[str]) -> str | None:
    """What is wrong with how a command ended and what it printed."""
    text = done.stdout + done.stderr
    if done.returncode not in (0, 1, 2) or not text:
        return f"exit code {done.returncode!r}: {text[-500:]}"
    if "Traceback" in text:
        return text[-2000:]
    if not text.replace("\n", "").isprintable():
        return f"control characters: {text[-2000:]!r}"
    if SECRET in text:
        return "prints what lies outside of the folder"
    if len(text) > 2_000_000:
        return f"{len(text):,} characters"
    if "--json" in done.args and done.stdout:
        try:
            json.loads(done.stdout, parse_constant=int)  # NaN is no number in JSON
        except ValueError as error:
            return f"no JSON: {error}: {done.stdout[:300]!r}"
    return None
