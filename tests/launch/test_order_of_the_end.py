"""The result first, then signals: what comes after a run's end changes nothing."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from rn50.cli.console import track
from rn50.config.load import load
from rn50.host.errors import RankFailed
from rn50.host.stop_signals import StopSignals
from rn50.launch import run
from rn50.launch.ending import RunError, StoppedBySignal
from rn50.launch.job import Request, run_all
from rn50.launch.job_folder import OpenJob
from rn50.launch.launch_plan import Options, plan_launch
from rn50.logging.records import Result
from rn50.logging.run_folder import RunFolder
from tests.conftest import read_json, write_json

MISSED = {"status": "aborted"}
STOPPED = MISSED | {"stopped": {"by": "SIGTERM", "step": 20}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run whose ranks are not started."""
    monkeypatch.setattr(run, "prepare", lambda *_: (RunFolder(tmp_path), Mock()))
    monkeypatch.setattr(run, "begin_run", lambda *_: None)
    monkeypatch.setattr(run, "try_report", lambda *_: None)
    monkeypatch.setattr(run, "conclude", conclude)
    with StopSignals():  # gives back what the run keeps to its process's end
        yield tmp_path


def conclude(*_: object) -> Result:
    os.kill(os.getpid(), signal.SIGTERM)
    return Result("concluded")


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (KeyboardInterrupt("SIGTERM"), StoppedBySignal),
        (RankFailed("x", Path("stderr.log")), RunError),
    ],
)
@pytest.mark.parametrize("result", [MISSED, STOPPED, None])
def test_a_signal_or_a_failure_after_the_last_step_and_a_signal_during_the_conclusion(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    result: dict[str, Any] | None,
    end: BaseException,
    error: type[BaseException],
) -> None:
    def ranks(*_: object) -> None:
        if result is not None:
            write_json(folder / "result.json", result)
        raise end

    monkeypatch.setattr(run, "run_job", ranks)
    plan = plan_launch(load("smoke"), Options("gloo"))
    if result != MISSED:
        with pytest.raises(error):
            run.run_plan(plan, track)
        return
    concluded, late = run.run_plan(plan, track)
    os.kill(os.getpid(), signal.SIGINT)  # behind it as well
    assert concluded == Result("concluded")
    assert late.forced
    assert "next" not in read_json(folder / "result.json")


@pytest.mark.parametrize(("runs", "code", "stop"), [(1, 1, ""), (2, 143, "SIGTERM")])
def test_a_signal_during_a_conclusion_keeps_a_job_from_its_next_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runs: int, code: int, stop: str
) -> None:
    monkeypatch.setattr(run, "run_job", lambda *_: None)
    write_json(folder / "result.json", MISSED)
    job = OpenJob(folder / "job")
    outcome = run_all(job, Request("smoke", (), runs, "gloo"), track)
    assert outcome.exit_code == job.code == code
    assert outcome.stopped_by == stop
    (run_folder,) = job.path.iterdir()
    assert run_folder.name == "run_0"
