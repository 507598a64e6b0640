"""The last line of a command: the reason, the folder, and what goes on from there."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from rn50.compliance.config_rules import check_config
from rn50.config.duration import Duration
from rn50.config.load import load
from rn50.launch.ending import (
    Ending,
    Standing,
    asked_by,
    callable_here,
    command_stopped,
    config_checked,
    data_stopped,
    job_ended,
    job_left,
    rank_failed,
    read_standing,
    run_ended,
    run_stopped,
    was_stopped,
)
from rn50.launch.preflight import check_whether_it_runs
from rn50.train.checkpoint import file_name

FOLDER = Path("results/quick/20261122T101112Z")
AGAIN = "rn50 launch quick seed=1"
RESUME = f"rn50 launch --resume {FOLDER}"
LENGTH = Duration(8.0, "epochs")


@pytest.fixture(autouse=True)
def _our_rn50_is_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))


def result(**values: object) -> dict[str, object]:
    return {
        "status": "aborted",
        "eval_accuracy": 0.845,
        "target": 0.9,
        "epochs": 8,
        **values,
    }


@pytest.mark.parametrize(
    ("standing", "said", "advice", "command"),
    [
        (Standing(), "in start-up, before the clock ran", "start again with", AGAIN),
        (
            Standing(clock=True),
            "at step 0, before the first checkpoint",
            "start again with",
            AGAIN,
        ),
        (Standing(120, 100, True), "at step 120 (checkpoint of step 100)", "go on with", RESUME),
        (
            Standing(0, 100),  # an attempt to go on that had not come far
            "in start-up, before the clock ran (checkpoint of step 100)",
            "go on with",
            RESUME,
        ),
    ],
)
def test_a_stopped_run_says_where_and_how_to_go_on(
    standing: Standing, said: str, advice: str, command: str
) -> None:
    found = run_stopped("Ctrl-C", standing, FOLDER, AGAIN)
    assert found.line == f"stopped by Ctrl-C {said}: {FOLDER}; {advice}: {command}"
    assert found.to_dict() == {"reason": f"stopped by Ctrl-C {said}", "next": command}


def test_the_launcher_asked_for_is_asked_for_again() -> None:
    found = run_stopped("SIGTERM", Standing(5, 5, True), FOLDER, AGAIN, "gloo")
    assert found.next == f"{RESUME} --launcher gloo"


def test_a_reached_target_has_nothing_to_go_on_with() -> None:
    found = run_ended(
        result(status="success", eval_accuracy=0.977, epochs=4),
        Standing(200, 150, True),
        FOLDER,
        AGAIN,
        length=LENGTH,
    )
    assert found.line == (
        f"target 0.9 reached: accuracy 0.9770 after epoch 4: {FOLDER}; "
        f"its report: {FOLDER}/report.html"
    )
    assert "next" not in found.to_dict()


@pytest.mark.parametrize(
    ("length", "longer"),
    [
        (LENGTH, "'schedule.length=12 epochs'"),
        (Duration(1.0, "epochs"), "'schedule.length=2 epochs'"),
        (Duration(101.0, "steps"), "'schedule.length=152 steps'"),
    ],
)
def test_a_missed_target_needs_more_epochs(length: Duration, longer: str) -> None:
    found = run_ended(result(), Standing(400, 400, True), FOLDER, AGAIN, length=length)
    assert found.line == (
        f"target 0.9 missed: accuracy 0.8450 after epoch 8, the last: {FOLDER}; it cannot be "
        f"resumed, as its schedule is over; try more epochs: {AGAIN} {longer}"
    )
    # What it says can be typed: the override is read, and it is longer.
    override = longer.strip("'")
    assert load("quick", [override]).run.schedule.length.value > length.value


@pytest.mark.parametrize(
    ("stopped", "standing", "line"),
    [
        (
            "time budget (limits.time_s) spent at step 40",
            Standing(40, 40, True),
            f"(checkpoint of step 40): {FOLDER}; go on with: {RESUME} limits.time_s=null",
        ),
        (
            "budget of 2 epochs (limits.epochs) spent at step 100",
            Standing(100, 100, True),
            f"(checkpoint of step 100): {FOLDER}; go on with: {RESUME} limits.epochs=null",
        ),
        (
            "time budget (limits.time_s) spent at step 40",
            Standing(40, None, True),
            f"(no checkpoint): {FOLDER}; start again with: {AGAIN} limits.time_s=null",
        ),
        (
            "asked to stop at step 40",  # by a scheduler that told the ranks alone
            Standing(40, 40, True),
            f"(checkpoint of step 40): {FOLDER}; go on with: {RESUME}",
        ),
    ],
)
def test_a_spent_budget_is_lifted_to_go_on(stopped: str, standing: Standing, line: str) -> None:
    ended = result(stopped=stopped, eval_accuracy=None, epochs=0)
    found = run_ended(ended, standing, FOLDER, AGAIN, length=LENGTH)
    assert found.line == f"{stopped} {line}"
    if found.next.endswith("=null"):
        load("quick", ["limits.time_s=5", found.next.split()[-1]])


def test_a_failed_rank_goes_on_from_its_checkpoint_unless_it_leads_there_again() -> None:
    why = "rank 1 on h failed in epoch 1 at step 30: no; details: x/stderr.log"
    onward = rank_failed(why, Standing(30, 20, True), FOLDER, AGAIN)
    assert f"{why}{onward.what_next}" == f"{why}; go on with: {RESUME}"
    anew = rank_failed(why, Standing(30, None, True), FOLDER, AGAIN)
    assert anew.what_next == f"; start again with: {AGAIN}"
    hopeless = rank_failed(why, Standing(30, 20, True), FOLDER, AGAIN, hopeless=True)
    assert "try a lower optimizer.base_lr" in hopeless.what_next
    assert hopeless.to_dict() == {"reason": why}


def test_who_asked() -> None:
    assert asked_by(KeyboardInterrupt()) == asked_by(KeyboardInterrupt("SIGINT")) == "Ctrl-C"
    assert asked_by(KeyboardInterrupt("SIGTERM")) == "SIGTERM"


def test_a_job_goes_on_without_who_waited() -> None:
    found = job_left("Ctrl-C", "slurm", "42", FOLDER, "scancel 42")
    assert found.line == (
        f"stopped waiting by Ctrl-C; slurm job 42 goes on: {FOLDER}; see it with: "
        f"tail -f {FOLDER}/job.log; cancel it with: scancel 42"
    )


def test_a_job_that_has_ended_says_what_its_last_run_says() -> None:
    last = {"reason": "asked to stop at step 40 (checkpoint of step 40)", "next": RESUME}
    found = job_ended("slurm", "42", 143, FOLDER, last)
    assert found.line == (
        f"slurm job 42 ended with exit code 143, {last['reason']}: {FOLDER}; "
        f"its log: {FOLDER}/job.log; go on with: rn50 submit --resume {FOLDER}"
    )
    nothing = job_ended("slurm", "42", 0, FOLDER, {})
    assert nothing.line == (
        f"slurm job 42 ended with exit code 0: {FOLDER}; its log: {FOLDER}/job.log"
    )


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["data", "pack", "my images", "out"], "go on with: rn50 data pack 'my images' out"),
        (["sweep", "x.yaml"], "go on with: rn50 sweep x.yaml"),
        (["data", "make", "out"], "start again with: rn50 data make out"),
    ],
)
def test_other_commands_say_themselves_again(arguments: list[str], advice: str) -> None:
    assert command_stopped("Ctrl-C", arguments).line == f"stopped by Ctrl-C; {advice}"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["quick", "seed=1"], "PASS; run it with: rn50 launch quick seed=1"),
        (["quick", "eval.target=0.7"], "FAIL; what it means: rn50 config explain eval.target"),
        (
            ["dgx1_8"],
            "PASS; not on this machine; to a scheduler with: rn50 submit dgx1_8",
        ),
        (
            ["abci_2048_open"],
            "PASS; to a scheduler of 512 nodes with: rn50 submit abci_2048_open",
        ),
    ],
)
def test_a_checked_config(words: list[str], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rn50.train.gpu.read_gpus", lambda: None)
    loaded = load(words[0], words[1:])
    check = check_whether_it_runs(check_config(loaded), loaded.run)
    assert config_checked(check, words, loaded.run.system.nodes).line == line


def test_a_set_in_the_making() -> None:
    found = data_stopped("Ctrl-C", "drawing images", "datasets/quick", AGAIN)
    assert found.line == (
        f"stopped by Ctrl-C while drawing images: datasets/quick; start again with: {AGAIN}"
    )


def test_a_command_is_spelt_as_it_can_be_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert callable_here("rn50 launch") == "rn50 launch"
    assert callable_here("scancel 42") == "scancel 42"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(Path(sys.prefix).parent)
    assert callable_here("rn50 launch") == ".venv/bin/rn50 launch"
    assert Ending("r", next="rn50 x", advice="a").line == "r; a: .venv/bin/rn50 x"
    monkeypatch.chdir(tmp_path)
    program = str(Path(sys.executable).with_name("rn50"))
    assert callable_here("rn50 launch") == shlex.join([program, "launch"])


def test_was_stopped_knows_our_own_words() -> None:
    by_signal = run_stopped("SIGTERM", Standing(), FOLDER, AGAIN)
    assert was_stopped(by_signal.to_dict())
    assert was_stopped({"status": "aborted", "stopped": "asked to stop at step 7"})
    assert not was_stopped({"status": "failed", "reason": "rank 0 on h failed"})
    assert not was_stopped({"stopped": "time budget (limits.time_s) spent at step 40"})
    assert not was_stopped({})


def test_the_standing_of_a_folder(tmp_path: Path) -> None:
    assert read_standing(tmp_path) == Standing()
    (tmp_path / "result_0.txt").write_text(':::MLLOG {"key": "init_start", "value": null}\n')
    assert not read_standing(tmp_path).clock
    (tmp_path / "result_0.txt").write_text(':::MLLOG {"key": "run_start", "value": null}\n')
    assert read_standing(tmp_path) == Standing(0, None, True)
    lines = [{"kind": "train", "step": 40}, {"kind": "train", "step": 60}, {"kind": "gaps"}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 9')
    assert read_standing(tmp_path).step == 60
    (tmp_path / "checkpoint").mkdir()
    for step in (20, 40):
        (tmp_path / "checkpoint" / file_name(step)).touch()
    (tmp_path / "checkpoint" / "best.ckpt").touch()
    assert read_standing(tmp_path) == Standing(60, 40, True)
    (tmp_path / "result.json").write_text(json.dumps({"stopped": "asked to stop at step 65"}))
    assert read_standing(tmp_path).step == 65
    (tmp_path / "result.json").write_text("[")
    assert read_standing(tmp_path).step == 60
