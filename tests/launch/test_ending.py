"""The last line of a command: the reason, the folder, and what goes on from there."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from rn50.config import recorded
from rn50.config.load import load
from rn50.config.recorded import load_recorded
from rn50.launch.ending import (
    Ending,
    asked_by,
    callable_here,
    job_ended,
    rank_failed,
    run_ended,
    run_stopped,
    sweep_ended,
)
from rn50.logging.records import (
    LAUNCH,
    RESUME,
    RESUME_JOB,
    Failure,
    Next,
    Result,
    Stopped,
    write,
)
from rn50.train.checkpoint.file import file_name
from tests.conftest import PROGRAM

TIME = Stopped(limit="limits.time_s", step=40)
GIVEN_UP = "none at the stop: it took longer than limits.grace_s or was given up"


@pytest.fixture(autouse=True)
def _our_rn50_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def standing(folder: Path, step: int, checkpoint: int | None) -> str:
    """Leave what a run leaves; returns the end of its last line without `--launcher`."""
    lines = [{"kind": "train", "step": step}, {"kind": "gaps"}]
    (folder / "metrics.jsonl").write_text(
        "\n".join(map(json.dumps, lines)) + '\n{"step": 9'
    )
    (folder / "config.yaml").touch()
    if checkpoint is None:
        return f"; start again with: rn50 launch {folder}/config.yaml"
    (folder / "checkpoint").mkdir()
    for name in (file_name(20), file_name(checkpoint), "best.ckpt"):
        (folder / "checkpoint" / name).touch()
    return f"; go on with: rn50 launch --resume {folder}"


@pytest.mark.parametrize(
    ("step", "checkpoint", "launcher", "position"),
    [
        (0, None, None, "at step 0 (no checkpoint)"),
        (120, 100, None, f"at step 120 (checkpoint of step 100, {GIVEN_UP})"),
        (40, 40, "gloo", "at step 40 (checkpoint of step 40)"),
    ],
)
def test_a_run_that_was_stopped_or_failed_goes_on_from_its_checkpoint(
    tmp_path: Path,
    step: int,
    checkpoint: int | None,
    launcher: str | None,
    position: str,
) -> None:
    onward = standing(tmp_path, step, checkpoint)
    onward += f" --launcher {launcher}" if launcher else ""
    ending = run_stopped("Ctrl-C", tmp_path, launcher)
    assert ending.line == f"stopped by Ctrl-C {position}: {tmp_path}{onward}"
    assert rank_failed("why", tmp_path, launcher).what_next == onward
    verb = LAUNCH if checkpoint is None else RESUME
    options = ("--launcher", launcher) if launcher else ()
    assert ending.recorded(Result("failed", seed=1)) == Result(
        "failed",
        ending.reason,
        Stopped("Ctrl-C", step),
        Next(verb, str(tmp_path), options),
        seed=1,
    )


def test_a_run_without_a_config_names_none(tmp_path: Path) -> None:
    """The disk was full before it began."""
    assert rank_failed("why", tmp_path).what_next == ""


def test_a_run_that_would_fail_again_is_not_to_go_on(tmp_path: Path) -> None:
    failure = Failure(0, "h", "epoch 1", 7, "no number", retryable=False)
    write(tmp_path / failure.file_name, failure)
    hopeless = rank_failed("why", tmp_path)
    assert "optimizer.base_lr" in hopeless.what_next
    assert hopeless.next == ""


def test_the_step_of_a_stop_is_that_which_the_ranks_recorded(tmp_path: Path) -> None:
    write(tmp_path / "result.json", Result("aborted", stopped=Stopped("x", 125)))
    assert run_stopped("Ctrl-C", tmp_path).stopped == Stopped("Ctrl-C", 125)


@pytest.mark.parametrize(
    ("result", "checkpoint", "phrase", "override"),
    [
        ({"status": "success"}, 40, "target 0.9 reached: accuracy 0.8450", None),
        ({}, 40, "target 0.9 missed", None),
        (
            {"stopped": TIME},
            40,
            "go on with: rn50 launch --resume",
            "limits.time_s=null",
        ),
        (
            {"stopped": TIME},
            None,
            "start again with: rn50 launch /",
            "limits.time_s=null",
        ),
        (
            {"stopped": Stopped("SIGTERM", 40)},
            40,
            "go on with: rn50 launch --resume",
            None,
        ),
    ],
)
def test_a_run_that_ended_in_order_says_what_would_take_it_further(
    tmp_path: Path,
    result: dict[str, Any],
    checkpoint: int | None,
    phrase: str,
    override: str | None,
) -> None:
    standing(tmp_path, 40, checkpoint)
    fields: dict[str, Any] = {
        "status": "aborted",
        "eval_accuracy": 0.845,
        "target": 0.9,
        "epochs": 8,
    } | result
    ending = run_ended(Result(**fields), tmp_path)
    assert phrase in ending.line
    assert isinstance(ending.next, Next) == ("stopped" in result)
    if override is not None:  # what it says can be typed
        assert shlex.split(str(ending.next))[-1] == override
        load("quick", ["limits.time_s=5", override])


def test_what_stopped_a_command() -> None:
    assert asked_by(KeyboardInterrupt()) == "Ctrl-C"
    assert asked_by(KeyboardInterrupt("SIGINT")) == "Ctrl-C"
    assert asked_by(KeyboardInterrupt("SIGTERM")) == "SIGTERM"


@pytest.mark.parametrize("name", [".", "run_1"])
def test_a_run_of_a_job_goes_on_with_the_job(tmp_path: Path, name: str) -> None:
    (tmp_path / "job.sh").touch()
    run = tmp_path / name
    run.mkdir(exist_ok=True)
    standing(run, 40, None)
    command = Next(RESUME_JOB, str(tmp_path))
    assert str(command) == f"rn50 submit --resume {tmp_path}"
    assert rank_failed("why", run).next == command
    last = run_stopped("SIGTERM", run).recorded(Result("failed"))
    ending = job_ended("slurm", "42", 143, tmp_path, last)
    assert last.reason in ending.reason
    assert "143" in ending.reason
    assert ending.next == command
    assert f"{tmp_path}/job.log" in ending.line
    assert job_ended("slurm", "42", 0, tmp_path, None).next == ""


def test_a_folder_that_was_moved_goes_on_by_the_command_that_is_told(
    tmp_path: Path,
) -> None:
    outside = ["data.path=/scratch/a set", "system.job.environment=[A=/b]"]
    loaded = load("smoke", ["seed=1", *outside])
    onward = rank_failed("why", tmp_path / "run", "gloo", loaded).next
    assert isinstance(onward, Next)
    (tmp_path / "config.yaml").write_text(loaded.to_yaml())
    overrides = [override for override in onward.options if "=" in override]
    assert (onward.verb, onward.folder) == (RESUME, "FOLDER")
    reloaded = load_recorded(tmp_path / "config.yaml", overrides, recorded.RESUME)
    assert reloaded.to_dict() == loaded.to_dict()


def test_each_command_of_an_ending_is_understood(tmp_path: Path) -> None:
    """The folder is that of a run, of a job, of one that is gone, with and without a checkpoint."""
    from tests.cli.test_pages import leaf  # which skips without git

    folders = [tmp_path / name for name in ("a run", "a job", "begun", "gone")]
    for folder in folders[:3]:
        folder.mkdir()
        standing(folder, 40, None if folder.name == "begun" else 40)
    (tmp_path / "a job/job.sh").touch()
    loaded = load("smoke", ["seed=1", "data.path=/scratch/a set"])
    best = sweep_ended({}, tmp_path, "optimizer.base_lr")
    commands = {str(best.next)}
    for folder in folders:
        stopped_result = Result("aborted", stopped=TIME)
        for ending in (
            run_stopped("Ctrl-C", folder, "gloo", loaded),
            rank_failed("why", folder, "gloo", loaded),
            run_ended(stopped_result, folder, "gloo"),
        ):
            last = ending.recorded(stopped_result)
            commands |= {
                str(ending.next),
                str(job_ended("pbs", "1", 1, folder, last).next),
            }
    assert len(commands) > 6
    for command in commands:
        leaf(shlex.split(command)[1:])


def test_a_command_is_spelt_as_it_can_be_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert callable_here("rn50 launch") == "rn50 launch"
    assert callable_here("scancel 42") == "scancel 42"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(Path(sys.prefix).parent)
    assert Ending("r", next="rn50 x", advice="a").line == "r; a: .venv/bin/rn50 x"
    monkeypatch.chdir(tmp_path)
    assert callable_here("rn50 launch") == shlex.join([str(PROGRAM), "launch"])
