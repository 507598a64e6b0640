"""Faults that are drawn, and what becomes of them in a room of three functions."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutants

SOURCE = '''"""1 + 1 is no code."""
from typing import Annotated

def area(width: int, height: int = 1) -> int:
    """2 * 3."""
    return width * height


def size(number: int) -> int:
    return -number if number < 0 else number


def largest(a: int, b: int) -> Annotated[str, 1]:
    note = []
    note.append(a)
    return f"{max(a, b) + 0}"
'''
TEST = """
from bench.shapes import area, largest, size

def test_all():
    assert [area(2, 3), size(-2), size(3), largest(1, 2)] == [6, 2, 3, "2"]
"""
FAST = "def pytest_addoption(parser): parser.addoption('--fast', action='store_true')"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose only room is `bench`."""
    files = {
        "bench/__init__.py": "",
        "bench/shapes.py": SOURCE,
        "tests/bench/test_shapes.py": TEST,
        "tests/cli/test_none.py": "def test_none(): pass",
        "conftest.py": FAST,
    }
    for name, text in files.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "tree", check=True)
    return tmp_path / "tree"


def test_a_seed_draws_the_same_faults_of_code_alone(tree: Path) -> None:
    every = mutants.draw(tree, ["bench"], 1000, 1)
    assert {(fault.line, fault.old, fault.new) for fault in every} == {
        (4, "1", "(2)"),
        (6, "width * height", "(width / height)"),
        (10, "number < 0", "(number <= 0)"),
        (10, "number < 0", "(not number < 0)"),
        (10, "0", "(1)"),
        (15, "note.append(a)", "pass"),
    }
    first, again, *others = (
        mutants.draw(tree, ["bench"], 3, seed) for seed in (1, 1, 2, 3, 4)
    )
    assert again == first
    assert any(faults != first for faults in others)


@pytest.mark.slow
def test_what_changes_nothing_survives_and_nothing_is_left(
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(sys, "argv", ["mutants", "--rooms", "bench", "--n", "9"])
    assert mutants.main(tree) == 0
    *lines, _, table, whole, summary = capsys.readouterr().out.splitlines()
    outcomes = [line.split()[2:4] for line in lines]
    survived = {place for tier, place in outcomes if tier == "survived"}
    assert survived == {"bench/shapes.py:4", "bench/shapes.py:10", "bench/shapes.py:15"}
    assert table.split() == ["bench", "6", "2", "4"]
    assert whole.split() == ["all", "6", "2", "4"]
    assert summary.startswith("2 of 6 noticed")
    assert not list(scratch.iterdir())
    assert (tree / "bench/shapes.py").read_text() == SOURCE
