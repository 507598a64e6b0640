"""Real sweeps: trials that run, are pruned, fail and are killed; drivers that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from optuna.trial import TrialState

from rn50.data.lock import LOCK, hold
from rn50.logging.parse import read_events
from rn50.sweep.definition import load_sweep
from rn50.sweep.driver import Active, Driver, run_sweep, sweep_folder
from rn50.sweep.study import JOURNAL, Study
from rn50.sweep.trial import evaluations, launchers, read_end
from tests.conftest import Rn50, refused, write_json
from tests.waiting import leave_nothing, wait_until

# The main job with few images; the network is its own.
SWEEP = """
name: small
config: quick
overrides:
  data:
    path: {folder}/data
    synthetic: {{train_samples: 240, eval_samples: 100}}
    train_samples: 240
    eval_samples: 100
  eval: {{period: 1, offset: 0, target: 0.999}}
  log.every: 1 steps
  limits.min_accuracy_by: 1000 epochs  # so few images teach nothing by half of two epochs
  schedule.length: {epochs} epochs
  system: {{results: {folder}/results, ranks_per_node: {ranks}}}
parameters:
  optimizer.base_lr: {{log: [0.01, 0.4]}}
  schedule.warmup: {{linear: [0.5, 1.5], step: 0.5, unit: epochs}}
  batch.per_rank: {{choice: [20, 40]}}
"""


@pytest.mark.slow
def test_a_sweep_survives_kills_of_driver_and_trial_and_a_trial_that_fails(
    rn50: Rn50, tmp_path: Path
) -> None:
    text = (
        SWEEP.format(folder=tmp_path, epochs=2, ranks=1)
        + (
            "  model.dtype: {choice: [float32, float16]}\n"  # float16: refused on a CPU, by the run
            "objective: accuracy\nsampler: random\nseed: 11\ntrials: 6\n"
        )
    )
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    folder = tmp_path / "results" / "small"
    loaded = load_sweep(path)
    plan = Study(loaded.sweep, tmp_path, {})
    drawn = [plan.ask().params for _ in range(6)]
    good = [n for n, values in enumerate(drawn) if values["model.dtype"] == "float32"]
    assert 3 <= len(good) < 6, "choose another seed"

    # Killed while a trial trains: the next driver stops what is left of it and runs it again.
    driver = rn50.start("sweep", str(path))
    trials = [folder / "trials" / f"trial_{number:04d}" for number in range(6)]
    wait_until(lambda: list(trials[good[1]].glob("*/metrics.jsonl")))
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    os.utime(folder / LOCK, (0, 0))  # instead of a wait of STALE_S
    assert launchers(trials[good[1]])
    with (folder / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 6, "worker_id": "')  # as if it had been writing

    driver = rn50.start("sweep", str(path), "--json")
    # kill -9 of a trial: recorded, its ranks gone, the sweep goes on.
    wait_until(lambda: list(trials[good[2]].glob("*/metrics.jsonl")))
    (launcher,) = launchers(trials[good[2]])
    launcher.kill()
    out, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert f"trial {good[1]}: did not end while its driver ran, run again" in err
    found = json.loads(out)
    assert [trial["parameters"] for trial in found["trials"]] == drawn
    for number, trial in enumerate(found["trials"]):
        if number not in good:
            assert (trial["state"], trial["value"]) == ("fail", None)
            assert (
                "float32 or bfloat16 expected on a cpu, found float16"
                in trial["reason"]
            )
        elif number == good[2]:
            assert (trial["state"], trial["reason"]) == ("fail", "killed by SIGKILL")
        else:
            assert trial["state"] == "complete"
            assert 0 < trial["value"] < 1
    leave_nothing(folder)
    assert rn50("config", "check", str(folder / "best.yaml")).returncode == 0

    # Nothing is left to do: the same command says the same.
    again = rn50("sweep", str(path), "--json")
    assert (again.returncode, json.loads(again.stdout)) == (0, found)


@pytest.mark.slow
def test_ctrl_c_stops_the_trials(rn50: Rn50, tmp_path: Path) -> None:
    # too long to end by itself
    text = SWEEP.format(folder=tmp_path, epochs=30, ranks=1)
    path = tmp_path / "sweep.yaml"
    path.write_text(text + "trials: 1\n")
    folder = tmp_path / "results" / "small"
    driver = rn50.start("sweep", str(path))
    wait_until(
        lambda: any(
            '"train"' in path.read_text()
            for path in folder.glob("trials/trial_0000/*/metrics.jsonl")
        )
    )
    for _ in range(3):  # a second and third Ctrl-C leave no trial either
        driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 130
    leave_nothing(folder)
    assert out == ""
    assert "Traceback" not in err
    assert "stopped by Ctrl-C; 0 of 1 trials have ended" in err.splitlines()[-1]
    (log,) = folder.glob("trials/trial_0000/*/result_0.txt")
    stop = [event for event in read_events(log) if event.key == "run_stop"]
    assert [event.metadata["status"] for event in stop] == ["aborted"]


def test_two_drivers_do_not_share_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(folder=tmp_path, epochs=2, ranks=1))
    loaded = load_sweep(path)
    folder = sweep_folder(loaded)
    folder.mkdir(parents=True)
    mine = f"in use by process {os.getpid()} on "
    silent = lambda *_: None  # noqa: E731
    with hold(folder / LOCK), refused(mine):
        run_sweep(loaded, lambda _: silent, silent, "")


# --- one trial's processes and files --------------------------------------------------------------


def test_how_a_trial_ended_is_read_from_what_it_left(tmp_path: Path) -> None:
    assert read_end(tmp_path, -9).reason == "killed by SIGKILL"
    assert read_end(tmp_path, 2).reason == "exit code 2: no output"
    (tmp_path / "output.log").write_text(
        "quick: 1 rank\nrn50: error: a: b expected\nmore\n"
    )
    assert read_end(tmp_path, 2).reason == "exit code 2: a: b expected"
    (tmp_path / "output.log").write_text("quick: 1 rank\n\n")
    assert read_end(tmp_path, 1).reason == "exit code 1: quick: 1 rank"
    (tmp_path / "1").mkdir()
    (tmp_path / "1/result.json").write_text('{"status": "succ')
    assert read_end(tmp_path, 0).status == "failed"
    write_json(tmp_path / "1/result.json", {"status": "success"})
    assert read_end(tmp_path, 0).status == "success"


def test_evaluations_are_read_while_they_are_written(tmp_path: Path) -> None:
    assert evaluations(tmp_path) == []
    (tmp_path / "1").mkdir()
    lines = [
        '{"kind": "train", "step": 1, "loss": 2.0}',
        '{"kind": "eval", "epoch": 1, "accuracy": 0.25}',
        '{"kind": "eval", "epoch": 2, "accuracy": 0.5}',
    ]
    whole = "\n".join(lines) + "\n"
    for end in range(len(whole) + 1):
        (tmp_path / "1" / "metrics.jsonl").write_text(whole[:end])
        found = evaluations(tmp_path)
        complete = [
            lines[1] + "\n" in whole[:end],
            whole[:end].endswith(lines[2] + "\n"),
        ]
        assert found == [(1, 0.25), (2, 0.5)][: sum(complete)]


def test_a_trial_at_the_target_is_not_pruned(tmp_path: Path) -> None:
    """Though it is the worst of all so far."""
    path = tmp_path / "sweep.yaml"
    text = SWEEP.format(folder=tmp_path, epochs=2, ranks=1).replace("0.999", "0.5")
    path.write_text(f"prune_from: 1\n{text}")
    loaded = load_sweep(path)
    study = Study(loaded.sweep, tmp_path, {})
    for _ in range(6):
        number = study.ask().number
        study.report(number, 2, 0.9)
        study.end(number, TrialState.COMPLETE, 0.9)
    driver = Driver(loaded, study, lambda *_: None, lambda _: None)
    for accuracy, state in ((0.5, TrialState.COMPLETE), (0.49, TrialState.PRUNED)):
        number = study.ask().number
        folder = tmp_path / str(number)
        (folder / "1").mkdir(parents=True)
        result = {
            "status": "success",
            "eval_accuracy": accuracy,
            "time_to_train_s": 1.0,
        }
        write_json(folder / "1/result.json", result)
        line = json.dumps({"kind": "eval", "epoch": 2, "accuracy": accuracy})
        (folder / "1/metrics.jsonl").write_text(f"{line}\n")
        process = subprocess.Popen(["true"])
        process.wait()
        assert driver._has_ended(Active(number, folder, process))
        assert study.trials[number].state == state
