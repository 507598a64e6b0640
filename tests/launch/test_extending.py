"""A scheduler is a row of `config/choices.py` and a class in `launch/`; launchers that fail."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from rn50.cli.console import track
from rn50.config import choices
from rn50.config.load import load
from rn50.config.schema import Run
from rn50.launch.ending import RunError
from rn50.launch.launch_plan import Options
from rn50.launch.launchers import LAUNCHERS, Job, Launcher
from rn50.launch.run import launch
from rn50.launch.schedulers import SCHEDULERS, Scheduler
from tests.conftest import RUN, invoke, read_json


class AbsentLauncher(Launcher):
    def command(self, _: Job) -> list[str]:
        return ["/nowhere/run"]

    def is_installed(self) -> bool:
        return True


class UnlockedLauncher(AbsentLauncher):
    def command(self, _: Job) -> list[str]:
        raise OSError(errno.ENOLCK, "No locks available")


class DummyScheduler(Scheduler):
    name = "dummy"
    command = ("dummysub",)
    launcher = "gloo"
    cancel_command = "dummydel"

    def directives(self, run: Run) -> Iterator[str]:
        yield f"#DUMMY nodes={run.system.nodes}"


def test_the_classes_are_those_of_the_table() -> None:
    assert list(LAUNCHERS) == list(choices.LAUNCHERS)
    assert list(SCHEDULERS) == list(choices.SCHEDULERS)


def test_a_scheduler_is_a_row_and_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "dummy", DummyScheduler())
    monkeypatch.setitem(choices.SCHEDULERS, "dummy", "a test's")
    script = invoke("submit", "smoke", "--scheduler", "dummy", "--dry-run").output
    assert "#DUMMY nodes=1" in script
    assert "--launcher gloo" in script


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
    with pytest.raises(RunError) as failed:
        launch(load(name, overrides), track, Options("dummy"))
    assert failed.value.ending.reason == reason
    (result,) = tmp_path.rglob("result.json")
    assert read_json(result)["reason"] == reason
