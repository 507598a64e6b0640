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


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_seed_makes_the_same_files_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing that is found could be looked at."""

    def made(folder: Path) -> tuple[str, list[tuple[str, bytes]]]:
        folder.mkdir()
        monkeypatch.chdir(folder)
        description = KINDS[kind].generate(5, folder).description
        found = (p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
        files = sorted(p for p in found if p.stat().st_size < 1 << 24)  # else an endless one
        return description.replace(str(folder), ""), [
            (str(p.relative_to(folder)), p.read_bytes().replace(bytes(folder), b"")) for p in files
        ]

    assert made(tmp_path / "one") == made(tmp_path / "two")


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
        (_waiting, "more than 2 s of waiting"),
        (_killed, "ended the process"),
        (_outside, "outside of its folder"),
    ],
)
def test_a_fault_is_found(fault: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_WALL_S", 2)
    found = run_case("kind", lambda seed, folder: Case("", (lambda: fault(folder),)), 1)
    assert found and words in found.problem, found


def test_what_a_link_leads_to_stays_as_it_is(tmp_path: Path) -> None:
    """A case is removed, and only that: `/` once became 0700 by a link to it."""
    tmp_path.chmod(0o755)

    def generator(seed: int, folder: Path) -> Case:
        (folder / "link").symlink_to(tmp_path)
        return Case("a link", (("--version",),))

    assert run_case("kind", generator, 1) is None
    assert tmp_path.stat().st_mode & 0o777 == 0o755
