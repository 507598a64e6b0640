"""A launcher and a scheduler are each a row of `config/choices.py` and a class in `launch/`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config import choices
from rn50.config.load import load
from rn50.config.schema import Run
from rn50.launch.launchers import LAUNCHERS, Job, Launcher
from rn50.launch.schedulers import SCHEDULERS, Scheduler


class DummyLauncher(Launcher):
    name, program, product = "dummy", "dummyrun", "Dummy"

    def command(self, job: Job) -> list[str]:
        return ["dummyrun", str(job.ranks), *job.command]

    def is_installed(self) -> bool:
        return True


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
