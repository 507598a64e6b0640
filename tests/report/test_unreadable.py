"""What cannot be read is not absent: who touches such a file of a run says its name."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rn50.logging.records import Failure, write
from tests.conftest import GOLDEN_LOG, in_this_process
from tests.report.test_runs import STOPPED, make_run, only

FILES = (
    "result.json",
    "config.yaml",
    "environment.json",
    "metrics.jsonl",
    "result_0.txt",
    "failure_0.json",
    "origins.json",
    "timeline.json",
    "ranks.json",
    "confusions.json",
)
COMMANDS = (
    "runs --json RUN",
    "export csv RUN",
    "log show RUN",
    "log compare RUN RUN",
    "log report RUN",
    "log check RUN",
    "launch --dry-run --resume RUN",
    "launch --dry-run --resume latest system.results=ABOVE",
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_run(tmp_path / "smoke/20261122T125959Z", STOPPED)
    shutil.copy(GOLDEN_LOG, folder / "result_0.txt")
    write(folder / "failure_0.json", Failure(0, "h", "start", 0, "why"))
    for name in ("origins.json", "timeline.json", "ranks.json", "confusions.json"):
        (folder / name).write_text("{}")
    return folder


def refuse(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no file of this name be opened any more; returns the list of those who tried."""
    touched: list[str] = []
    real = os.open

    def opened(path: Any, *more: Any, **options: Any) -> int:
        if Path(path).name == name:
            touched.append(name)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *more, **options)

    monkeypatch.setattr(os, "open", opened)
    return touched


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", FILES)
def test_who_cannot_read_a_file_of_a_run_names_it(
    run: Path, name: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line = command.replace("RUN", str(run)).replace(
        "ABOVE", str(run.parents[1])
    )
    touched = refuse(name, monkeypatch)
    done = in_this_process(tuple(command_line.split()))
    said = done.stdout + done.stderr
    if (page := run / "report.html").exists():
        said += page.read_text()
    assert "Traceback" not in said
    if touched:
        assert name in said
        assert done.returncode or command.startswith(("runs", "log"))


def test_a_run_whose_end_cannot_be_read_is_neither_failed_nor_resumable(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse("result.json", monkeypatch)
    row = only(run)
    assert (row.status, row.resumable) == ("unknown", False)
    assert row.reason == f"{run}/result.json: cannot read: Input/output error"
