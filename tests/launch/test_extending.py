"""A launcher and a scheduler are each a row of `config/choices.py` and a class in `launch/`."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config import choices
from rn50.config.load import load
from rn50.config.schema import Run
from rn50.launch.ending import Failed
from rn50.launch.launchers import LAUNCHERS, Job, Launcher
from rn50.launch.run import Options, launch
from rn50.launch.schedulers import SCHEDULERS, Scheduler
from tests.conftest import RUN, read_json


class DummyLauncher(Launcher):
    name = "dummy"
    program = "dummyrun"
    product = "Dummy"

    def command(self, job: Job) -> list[str]:
        return ["dummyrun", str(job.ranks), *job.command]

    def is_installed(self) -> bool:
        return True


class AbsentLauncher(DummyLauncher):
    def command(self, _: Job) -> list[str]:
        return ["/nowhere/run"]


class UnlockedLauncher(DummyLauncher):
    def command(self, _: Job) -> list[str]:
        raise OSError(errno.ENOLCK, "No locks available")


class DummyScheduler(Scheduler):
    name = "dummy"
    command = ("dummysub",)
    launcher = "dummy"
    cancel_command = "dummydel"

    def directives(self, run: Run) -> Iterator[str]:
        yield f"#DUMMY nodes={run.system.nodes}"


def output(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments).output


def test_the_classes_are_those_of_the_table() -> None:
    assert list(LAUNCHERS) == list(choices.LAUNCHERS)
    assert list(SCHEDULERS) == list(choices.SCHEDULERS)


def test_a_launcher_and_a_scheduler_are_a_row_and_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, one in ((LAUNCHERS, DummyLauncher()), (SCHEDULERS, DummyScheduler())):
        monkeypatch.setitem(table, "dummy", one)
    monkeypatch.setitem(choices.LAUNCHERS, "dummy", "a test's")
    monkeypatch.setitem(choices.SCHEDULERS, "dummy", "a test's")
    found = json.loads(output("launch", "smoke", "--launcher", "dummy", "--dry-run", "--json"))
    assert found["ranks"] == "2 by dummy" and found["command"][:2] == ["dummyrun", "2"]
    assert load("smoke", ["system.scheduler=dummy"]).run.system.scheduler == "dummy"
    script = output("submit", "smoke", "--scheduler", "dummy", "--dry-run")
    assert "#DUMMY nodes=1" in script and "--launcher dummy" in script


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [
        (AbsentLauncher(), "/nowhere/run: No such file or directory"),
        (UnlockedLauncher(), "launch: No locks available"),
    ],
)
def test_an_error_of_the_launcher_is_not_one_of_the_standard_output(
    launcher: Launcher,
    reason: str,
    small_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LAUNCHERS, "dummy", launcher)
    name, *overrides = RUN
    overrides += [f"data.path={small_data}", f"system.results={tmp_path}"]
    with pytest.raises(Failed) as failed:
        launch(load(name, overrides), lambda _: lambda done, total: None, Options("dummy"))
    assert failed.value.ending.reason == reason
    (result,) = tmp_path.rglob("result.json")
    assert read_json(result)["reason"] == reason
