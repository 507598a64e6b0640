"""Every kind of case with fixed seeds; `make fuzz` takes others for as long as one likes."""

import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import runner
from tests.fuzz.cases import CASES, Commands
from tests.fuzz.runner import judge, run_case


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_nothing_is_found_with_fixed_seeds(kind: str) -> None:
    problems = [run_case(kind, seed) for seed in range(15)]
    assert not any(problems), "\n".join(filter(None, problems))


# --- the runner finds what it is there for ------------------------------------------------------


def _traceback(folder: Path) -> None:
    raise RuntimeError("a bug")


def _no_end(folder: Path) -> None:
    signal.pause()


def _end(folder: Path) -> None:
    os._exit(0)


def _outside(folder: Path) -> None:
    (folder.parent / "outside/new").touch()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_traceback, "RuntimeError: a bug"),
        (_no_end, "terminated abruptly"),
        (_end, "terminated abruptly"),
        (_outside, "outside of its folder"),
    ],
)
def test_a_fault_is_found(
    fault: Callable[[Path], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def case(rng: random.Random, folder: Path) -> Commands:
        fault(folder)
        return [("--version",)]

    monkeypatch.setattr(runner, "MOST_WALL_S", 2)
    monkeypatch.setitem(CASES, "logs", case)
    assert words in str(run_case("logs", 1))


@pytest.mark.parametrize(
    ("code", "out", "problem"),
    [
        (-9, "killed", "exit code"),
        (2, "", "exit code"),
        (1, "Traceback (most recent", "Traceback"),
        (0, "\x1b[2J", "control"),
        (0, runner.SECRET, "outside"),
        (0, '{"a": NaN}', "no JSON"),
    ],
)
def test_what_a_command_printed_is_judged(code: int, out: str, problem: str) -> None:
    done = subprocess.CompletedProcess(["log", "show", "--json"], code, out, "")
    assert problem in str(judge(done))
