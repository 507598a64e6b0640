"""The portability test without its roots: arguments, and the verdict on what roots left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.lab.portability import main

LOG = """[setup   9 s] Python 3.13.5, g++-13 13.3.0, Open MPI 5.0.7
[setup  12 s] building Horovod 0.28.1 for MXNet in the background
[setup 233 s] ready: source .venv/bin/activate, then rn50 --help
"""


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--roots"], ["--roots", "trixie,sid"]])
def test_an_argument_that_is_wrong_is_named(root: Path, arguments: list[str]) -> None:
    script = root / "tests/lab/portability_test.sh"
    done = subprocess.run([script, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr and "expected" in done.stderr


def left(folder: Path, name: str, digest: str = "ab12", failures: int = 0, smoke: int = 0) -> None:
    """What a root leaves."""
    logs = folder / name
    logs.mkdir()
    codes = {"smoke": smoke, "smoke_s": 250, "tests": 2 * bool(failures), "tests_s": 90}
    record = {"date": "2026-11-23", "commit": "76e86d7"} | codes
    (logs / "record.json").write_text(json.dumps(record))
    (logs / "log.txt").write_text(LOG)
    if not smoke:
        (logs / "result.json").write_text(json.dumps({"weights_digest": digest}))
        suite = f'<testsuites><testsuite tests="9" failures="{failures}" skipped="1" />'
        (logs / "tests.xml").write_text(f"{suite}</testsuites>")


@pytest.mark.parametrize(
    ("second", "code", "words"),
    [
        ({}, 0, ()),
        ({"digest": "cd34"}, 1, ("smoke seed=1", "`ab12`, `cd34`")),
        ({"failures": 2}, 1, ("trixie: make test", "found 2; 6 passed, 2 failed")),
        ({"smoke": 1}, 1, ("trixie: smoke", "found 1")),
    ],
)
def test_a_root_that_fails_or_trains_other_weights_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], second: dict, code: int, words: tuple
) -> None:
    left(tmp_path, "bookworm")
    left(tmp_path, "trixie", **second)
    assert main(tmp_path, ["bookworm", "trixie"]) == code
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 4
    assert "g++-13 13.3.0" in printed.out and "233 s, Horovod built" in printed.out
    assert all(word in printed.err for word in words) and bool(printed.err) == bool(words)
