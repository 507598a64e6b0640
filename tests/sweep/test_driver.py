"""Real sweeps: trials that run, are pruned, fail and are killed; drivers that are killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from rn50.config.errors import UserError
from rn50.launch.run_lock import hold_run
from rn50.logging.parse import read_events
from rn50.sweep.definition import load_sweep
from rn50.sweep.driver import open_study, sweep_folder
from rn50.sweep.study import JOURNAL, Study
from rn50.sweep.trial import (
    MARK,
    clean_up,
    evaluations,
    processes,
    read_end,
    start,
)
from tests.waiting import wait_until

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


def marked(folder: Path) -> list[psutil.Process]:
    return [p for trial in (folder / "trials").glob("*") for p in processes(trial)]


@pytest.mark.slow
def test_a_sweep_survives_kills_of_driver_and_trial_and_a_trial_that_fails(
    rn50, tmp_path: Path
) -> None:
    text = SWEEP.format(folder=tmp_path, epochs=2, ranks=1) + (
        "  model.dtype: {choice: [float32, float16]}\n"  # float16: refused on a CPU, by the run
        "objective: {measure: accuracy, at_epoch: 2}\nsampler: random\nseed: 11\ntrials: 6\n"
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
    assert processes(trials[good[1]])
    with (folder / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 6, "worker_id": "')  # as if it had been writing

    driver = rn50.start("sweep", str(path), "--json")
    # kill -9 of a trial: recorded, its ranks gone, the sweep goes on.
    wait_until(lambda: list(trials[good[2]].glob("*/metrics.jsonl")))
    min(processes(trials[good[2]]), key=lambda process: process.create_time()).kill()
    out, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert f"trial {good[1]}: was lost with its driver, run again" in err or (
        f"trial {good[1]}: ended while no driver was there" in err
    )
    found = json.loads(out)
    assert [trial["parameters"] for trial in found["trials"]] == drawn
    for number, trial in enumerate(found["trials"]):
        if number not in good:
            assert (trial["state"], trial["value"]) == ("fail", None)
            assert "float32 or bfloat16 expected on a cpu, found float16" in trial["reason"]
        elif number == good[2]:
            assert (trial["state"], trial["reason"]) == ("fail", "killed by SIGKILL")
        else:
            assert trial["state"] == "complete"
            assert 0 < trial["value"] < 1
    assert marked(folder) == []
    assert rn50("config", "check", str(folder / "best.yaml")).returncode == 0

    # Nothing is left to do: the same command says the same.
    again = rn50("sweep", str(path), "--json")
    assert (again.returncode, json.loads(again.stdout)) == (0, found)


@pytest.mark.slow
def test_ctrl_c_stops_the_trials_and_the_next_driver_runs_them_again(rn50, tmp_path: Path) -> None:
    text = SWEEP.format(folder=tmp_path, epochs=30, ranks=1)
    path = tmp_path / "sweep.yaml"
    path.write_text(text + "trials: 1\nlimit_s: 1000\n")
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
    assert marked(folder) == []
    assert out == "" and "Traceback" not in err
    assert "stopped by Ctrl-C; 0 of 1 trials have ended" in err.splitlines()[-1]
    (log,) = folder.glob("trials/trial_0000/*/result_0.txt")
    stop = [event for event in read_events(log) if event.key == "run_stop"]
    assert [event.metadata["status"] for event in stop] == ["aborted"]
    path.write_text(text + "trials: 1\nlimit_s: 1\n")  # and this time it may not take that long
    done = rn50("sweep", str(path), "--json")
    assert "trial 0: was lost with its driver, run again" in done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    assert (trial["state"], trial["reason"]) == ("fail", "longer than limit_s (1 s)")
    assert (folder / "trials" / "trial_0000_lost_1").is_dir()
    assert marked(folder) == []


def test_two_drivers_do_not_share_a_sweep(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP.format(folder=tmp_path, epochs=2, ranks=1))
    loaded = load_sweep(path)
    folder = sweep_folder(loaded)
    folder.mkdir(parents=True)
    (folder / JOURNAL).touch()
    mine = f"in use by process {os.getpid()} on "
    with hold_run(folder), pytest.raises(UserError, match=mine):
        open_study(loaded)
    open_study(loaded)


# --- one trial's processes and files --------------------------------------------------------------

TREE = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); {last}"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def test_nothing_of_a_trial_is_left_whatever_it_does_with_signals(tmp_path: Path) -> None:
    """Its first process has ended or been killed; what it started ignores SIGTERM."""
    import sys

    code = TREE.format(child=STUBBORN, last="time.sleep(600)")
    first = start([sys.executable, "-c", code], tmp_path)
    wait_until(lambda: len(processes(tmp_path)) == 2)
    first.kill()
    first.wait()
    (rest,) = processes(tmp_path)
    assert rest.environ()[MARK] == str(tmp_path)
    clean_up(tmp_path, grace_s=0.2)
    assert processes(tmp_path) == []
    assert not rest.is_running() or rest.status() == psutil.STATUS_ZOMBIE


def test_how_a_trial_ended_is_read_from_what_it_left(tmp_path: Path) -> None:
    assert read_end(tmp_path, -9).reason == "killed by SIGKILL"
    assert read_end(tmp_path, 2).reason == "ended with exit code 2 without a result"
    (tmp_path / "output.log").write_text("quick: 1 rank\nrn50: error: a: b expected\nmore\n")
    assert read_end(tmp_path, 2).reason == "a: b expected"
    (tmp_path / "output.log").write_text("quick: 1 rank\n\n")
    assert read_end(tmp_path, 1).reason.endswith("without a result; last line: quick: 1 rank")
    for stamp, status in (("1", "aborted"), ("2", "success")):
        (tmp_path / stamp).mkdir()
        (tmp_path / stamp / "result.json").write_text(json.dumps({"status": status}))
        os.utime(tmp_path / stamp / "result.json", (int(stamp), int(stamp)))
        assert read_end(tmp_path, 0).status == status
    (tmp_path / "2" / "result.json").write_text('{"status": "succ')
    os.utime(tmp_path / "2" / "result.json", (9, 9))
    assert read_end(tmp_path, None).status == "failed"


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
        complete = [lines[1] + "\n" in whole[:end], whole[:end].endswith(lines[2] + "\n")]
        assert found == [(1, 0.25), (2, 0.5)][: sum(complete)]
