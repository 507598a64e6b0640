"""Every kind of case with fixed seeds; `make fuzz` takes others for as long as one likes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import runner
from tests.fuzz.kinds import KINDS, warm_up
from tests.fuzz.runner import run_case
from tests.fuzz.values import Case


@pytest.fixture(autouse=True)
def warm() -> Iterator[None]:
    warm_up()
    yield
    logging.disable(logging.NOTSET)  # tests after these look at what is logged


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_nothing_is_found_with_fixed_seeds(kind: str) -> None:
    generate, count = KINDS[kind]
    found = [run_case(kind, generate, seed) for seed in range(count)]
    assert not any(found), "\n".join(failure.text() for failure in found if failure)


# --- the runner finds what it is there for ------------------------------------------------------


def _traceback(folder: Path) -> None:
    raise RuntimeError("a bug")


def _waiting(folder: Path) -> None:
    time.sleep(60)


def _killed(folder: Path) -> None:
    os.kill(os.getpid(), 9)


def _outside(folder: Path) -> None:
    (folder.parent / "outside/secret.txt").write_text("x")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_traceback, "RuntimeError: a bug"),
        (_waiting, "no end in time"),
        (_killed, "ended the process"),
        (_outside, "outside of its folder"),
    ],
)
def test_a_fault_is_found(
    fault: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MOST_WALL_S", 2)
    found = run_case("kind", lambda seed, folder: Case("", (lambda: fault(folder),)), 1)
    assert found, found
    assert words in found.problem, found
