"""The last line of a command: the reason, the folder, and what goes on from there."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rn50.compliance.config_rules import check_config
from rn50.config.duration import Duration
from rn50.config.load import load
from rn50.launch.ending import (
    STOPS,
    Ending,
    Standing,
    asked_by,
    callable_here,
    config_checked,
    job_ended,
    rank_failed,
    read_standing,
    run_ended,
    run_stopped,
    stopped,
    was_stopped,
)
from rn50.launch.preflight import check_whether_it_runs
from rn50.train.checkpoint import file_name

FOLDER = Path("results/quick/20261122T101112Z")
AGAIN = "rn50 launch quick seed=1"
RESUME = f"rn50 launch --resume {FOLDER}"
START, GO_ON = f"; start again with: {AGAIN}", f"; go on with: {RESUME}"
AT_40, LOST_40 = Standing(40, 40), Standing(40, None)
TIME, EPOCHS = "time budget (limits.time_s) spent", "budget of 2 epochs (limits.epochs) spent"


@pytest.fixture(autouse=True)
def _our_rn50_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> Callable[[Standing], None]:
    """Tell where the run in FOLDER stands."""

    def set_to(standing: Standing) -> None:
        monkeypatch.setattr("rn50.launch.ending.read_standing", lambda _: standing)

    return set_to


@pytest.mark.parametrize(
    ("standing", "launcher", "place", "onward"),
    [
        (Standing(), None, "at step 0 (no checkpoint)", START),
        (Standing(120, 100), None, "at step 120 (checkpoint of step 100)", GO_ON),
        (AT_40, "gloo", "at step 40", f"{GO_ON} --launcher gloo"),
    ],
)
def test_a_run_that_was_stopped_or_failed_goes_on_from_its_checkpoint(
    stands: Any, standing: Standing, launcher: str | None, place: str, onward: str
) -> None:
    stands(standing)
    found = run_stopped("Ctrl-C", FOLDER, AGAIN, launcher)
    assert found.line.startswith("stopped by Ctrl-C ") and place in found.line
    assert found.line.endswith(f": {FOLDER}{onward}")
    assert found.to_dict() == {"reason": found.reason, "next": onward.partition(": ")[2]}
    assert was_stopped(found.to_dict())
    assert rank_failed("why", FOLDER, AGAIN, launcher).what_next == onward
    hopeless = rank_failed("why", FOLDER, AGAIN, hopeless=True)
    assert "optimizer.base_lr" in hopeless.what_next and hopeless.to_dict() == {"reason": "why"}


@pytest.mark.parametrize(
    ("result", "standing", "length", "words", "override"),
    [
        ({"status": "success"}, AT_40, "8 epochs", "target 0.9 reached: accuracy 0.8450", None),
        ({}, AT_40, "8 epochs", "target 0.9 missed", "schedule.length=12 epochs"),
        ({}, AT_40, "1 epochs", "target 0.9 missed", "schedule.length=2 epochs"),
        ({}, AT_40, "101 steps", "target 0.9 missed", "schedule.length=152 steps"),
        ({"stopped": TIME}, AT_40, "8 epochs", GO_ON, "limits.time_s=null"),
        ({"stopped": EPOCHS}, AT_40, "8 epochs", GO_ON, "limits.epochs=null"),
        ({"stopped": TIME}, LOST_40, "8 epochs", START, "limits.time_s=null"),
        ({"stopped": "asked to stop at step 40"}, AT_40, "8 epochs", GO_ON, None),
    ],
)
def test_a_run_that_ended_in_order_says_what_would_take_it_further(
    stands: Any,
    result: dict[str, Any],
    standing: Standing,
    length: str,
    words: str,
    override: str | None,
) -> None:
    stands(standing)
    result = {"status": "aborted", "eval_accuracy": 0.845, "target": 0.9, "epochs": 8} | result
    number, _, unit = length.partition(" ")
    duration = Duration(float(number), "epochs" if unit == "epochs" else "steps")
    found = run_ended(result, FOLDER, AGAIN, length=duration)
    assert words in found.line
    assert ("next" in found.to_dict()) == (result["status"] != "success")
    if override is not None:  # what it says can be typed
        assert shlex.split(found.next)[-1] == override
        load("quick", ["limits.time_s=5", override])


def test_what_stopped_a_command() -> None:
    assert asked_by(KeyboardInterrupt()) == asked_by(KeyboardInterrupt("SIGINT")) == "Ctrl-C"
    assert asked_by(KeyboardInterrupt("SIGTERM")) == "SIGTERM"
    assert was_stopped({"status": "aborted", "stopped": "asked to stop at step 7"})
    assert not was_stopped({"status": "failed", "reason": "rank 0 on h failed"})
    assert not was_stopped({"stopped": TIME}) and not was_stopped({})


@pytest.mark.parametrize("what", STOPS)
def test_every_stop_names_the_signal_the_folder_and_the_command(what: str) -> None:
    details = dict.fromkeys(("doing", "scheduler", "job", "log", "ended", "wanted", "ran"), "x")
    found = stopped(what, "SIGTERM", AGAIN, FOLDER, **details)
    assert "by SIGTERM" in found.reason and found.line.endswith(f": {AGAIN}")
    assert str(FOLDER) in found.line
    assert stopped(what, "SIGTERM", "", **details).what_next == ""


def test_a_job_that_has_ended_says_what_its_last_run_says() -> None:
    found = job_ended("slurm", "42", 143, FOLDER, {"reason": "asked to stop", "next": RESUME})
    assert "slurm job 42 ended with exit code 143, asked to stop" in found.reason
    assert found.next == f"rn50 submit --resume {FOLDER}" and f"{FOLDER}/job.log" in found.line
    assert job_ended("slurm", "42", 0, FOLDER, {}).next == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["quick", "seed=1"], "PASS; run it with: rn50 launch quick seed=1"),
        (["quick", "eval.target=0.7"], "FAIL; what it means: rn50 config explain eval.target"),
        (["dgx1_8"], "PASS; to a scheduler (nodes: 1) with: rn50 submit dgx1_8"),
        (["abci_2048_open"], "PASS; to a scheduler (nodes: 512) with: rn50 submit abci_2048_open"),
    ],
)
def test_a_checked_config(words: list[str], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rn50.train.gpu.read_gpus", lambda: None)
    loaded = load(words[0], words[1:])
    check = check_whether_it_runs(check_config(loaded), loaded.run)
    assert config_checked(check, words, loaded.run.system.nodes).line == line


def test_a_command_is_spelt_as_it_can_be_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert callable_here("rn50 launch") == "rn50 launch"
    assert callable_here("scancel 42") == "scancel 42"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(Path(sys.prefix).parent)
    assert Ending("r", next="rn50 x", advice="a").line == "r; a: .venv/bin/rn50 x"
    monkeypatch.chdir(tmp_path)
    program = str(Path(sys.executable).with_name("rn50"))
    assert callable_here("rn50 launch") == shlex.join([program, "launch"])


def test_the_standing_of_a_folder(tmp_path: Path) -> None:
    assert read_standing(tmp_path) == Standing()
    lines = [{"kind": "train", "step": 40}, {"kind": "train", "step": 60}, {"kind": "gaps"}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 9')
    (tmp_path / "checkpoint").mkdir()
    for name in (file_name(20), file_name(40), "best.ckpt"):
        (tmp_path / "checkpoint" / name).touch()
    assert read_standing(tmp_path) == Standing(60, 40)
    (tmp_path / "result.json").write_text(json.dumps({"stopped": "asked to stop at step 65"}))
    assert read_standing(tmp_path).step == 65
