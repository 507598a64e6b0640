"""The result first, then signals: what comes after a run's end changes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rn50.config.errors import RankFailed
from rn50.config.load import load
from rn50.launch import run
from rn50.launch.ending import RunError, StoppedBySignal
from rn50.launch.job import Request, run_all
from rn50.launch.job_folder import OpenJob
from rn50.launch.launch_plan import Options, plan_launch
from rn50.launch.supervisor import StopSignals
from rn50.logging.records import Result
from tests.conftest import read_json, write_json

MISSED = {"status": "aborted"}
STOPPED = {"status": "aborted", "stopped": {"by": "SIGTERM", "step": 20}}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Of a run whose ranks are not started."""
    plan = plan_launch(load("smoke"), Options("gloo"))
    prepared = SimpleNamespace(folder=tmp_path, plan=plan)
    monkeypatch.setattr(run, "prepare", lambda *_: (tmp_path, None))
    monkeypatch.setattr(run, "begin_run", lambda *_: None)
    monkeypatch.setattr(run, "try_report", lambda *_: None)
    with StopSignals():  # gives back what the run keeps to its process's end
        yield prepared


def conclude(*_: object) -> Result:
    os.kill(os.getpid(), signal.SIGTERM)
    return Result("concluded")


@pytest.mark.parametrize(
    "end",
    [KeyboardInterrupt("SIGTERM"), RankFailed("x", Path("stderr.log"))],
)
@pytest.mark.parametrize("result", [MISSED, STOPPED, None])
def test_a_signal_or_a_failure_after_the_last_step_and_a_signal_during_the_conclusion(
    plan: Any,
    monkeypatch: pytest.MonkeyPatch,
    result: dict[str, Any] | None,
    end: BaseException,
) -> None:
    def ranks(*_: object) -> None:
        if result is not None:
            write_json(plan.folder / "result.json", result)
        raise end

    monkeypatch.setattr(run, "run_job", ranks)
    monkeypatch.setattr(run, "conclude", conclude)
    if result in (STOPPED, None):
        with pytest.raises(
            StoppedBySignal if isinstance(end, KeyboardInterrupt) else RunError
        ):
            run.run_plan(plan.plan, lambda _: lambda *_: None)
    else:
        concluded, late = run.run_plan(plan.plan, lambda _: lambda *_: None)
        os.kill(os.getpid(), signal.SIGINT)  # behind it as well
        assert concluded == Result("concluded")
        assert late.forced
        assert "next" not in read_json(plan.folder / "result.json")


@pytest.mark.parametrize(("runs", "code", "stop"), [(1, 1, ""), (2, 143, "SIGTERM")])
def test_a_signal_during_a_conclusion_keeps_a_job_from_its_next_run(
    plan: Any,
    monkeypatch: pytest.MonkeyPatch,
    runs: int,
    code: int,
    stop: str,
) -> None:
    monkeypatch.setattr(run, "run_job", lambda *_: None)
    monkeypatch.setattr(run, "conclude", conclude)
    write_json(plan.folder / "result.json", MISSED)
    job = OpenJob(plan.folder / "job")
    outcome = run_all(
        job, Request("smoke", (), runs, "gloo"), lambda _: lambda *_: None
    )
    assert (outcome.exit_code, outcome.stopped_by, job.exit_code) == (code, stop, code)
    assert [path.name for path in job.folder.iterdir()] == ["run_0"]
