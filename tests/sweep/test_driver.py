"""Real sweeps: trials that run, are pruned, fail and are killed; drivers that are killed."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState

from rn50.host.lock import LOCK, hold
from rn50.sweep.definition import load_sweep
from rn50.sweep.driver import Active, Driver, run_sweep, sweep_folder
from rn50.sweep.study import JOURNAL, REASON, Study
from rn50.sweep.trial import evaluations, read_end
from tests.conftest import Rn50, read_json, refused, stop_of, write_json
from tests.waiting import leave_nothing, mentioning, wait_until

SWEEP = """
name: small
config: smoke
overrides:
  data:
    path: {folder}/data
    synthetic: {{train_samples: 240, eval_samples: 100}}
    train_samples: 240
    eval_samples: 100
  eval: {{period: 1, offset: 0, target: 0.999}}
  log.every: 1 steps
  limits.min_accuracy_by: 1000 epochs  # so few images teach nothing by half of the epochs
  schedule.length: {epochs} epochs
  system: {{results: {folder}/results, ranks_per_node: 1}}
parameters:
  optimizer.base_lr: {{log: [0.01, 0.4]}}
  schedule.warmup: {{linear: [0.5, 1.5], step: 0.5, unit: epochs}}
  batch.per_rank: {{choice: [20, 40]}}
"""


def write_sweep(folder: Path, more: str = "", *, epochs: int = 10) -> Path:
    path = folder / "sweep.yaml"
    yaml_text = SWEEP.format(folder=folder, epochs=epochs)
    path.write_text(yaml_text + more)
    return path


def trains(trial: Path) -> bool:
    records = next(map(Path.read_text, trial.glob("*/metrics.jsonl")), "")
    return "train" in records


@pytest.mark.slow
def test_a_sweep_survives_kills_of_driver_and_trial_and_a_trial_that_fails(
    rn50: Rn50, tmp_path: Path
) -> None:
    path = write_sweep(
        tmp_path,
        "  model.dtype: {choice: [float32, float16]}\n"  # float16: refused on a CPU
        "objective: accuracy\nsampler: random\nseed: 22\ntrials: 4\n",
    )
    folder = tmp_path / "results" / "small"
    plan = Study(load_sweep(path).sweep, tmp_path, {})
    draws = [plan.ask().params for _ in range(4)]
    dtypes = [values["model.dtype"] for values in draws]
    good = [number for number, dtype in enumerate(dtypes) if dtype == "float32"]
    assert len(good) == 3, "choose another seed"

    # Killed while a trial trains, which ends in order: the next driver runs it again.
    driver = rn50.start("sweep", str(path))
    _, stopped, killed = (folder / f"trials/trial_{number:04d}" for number in good)
    wait_until(lambda: trains(stopped), 300)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    os.utime(folder / LOCK, (0, 0))  # instead of a wait of STALE_S
    wait_until(lambda: not mentioning(folder), 30)
    (result,) = map(read_json, stopped.glob("*/result.json"))
    assert result["stopped"]["by"] == "SIGTERM"
    assert list(stopped.glob("*/checkpoint/step_*.ckpt"))
    with (folder / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 6, "worker_id": "')  # as if it had been writing

    driver = rn50.start("sweep", str(path), "--json")
    # kill -9 of a trial: recorded, its ranks gone, the sweep goes on.
    wait_until(lambda: list(killed.glob("*/metrics.jsonl")), 300)
    (launcher,) = psutil.Process(driver.pid).children()
    launcher.kill()
    out, err = driver.communicate(timeout=400)
    assert driver.returncode == 0, err
    assert f"trial {good[1]}: did not end while its driver ran, run again" in err
    results = json.loads(out)
    tried = [trial["parameters"] for trial in results["trials"]]
    assert tried == draws
    for number, trial in enumerate(results["trials"]):
        if number in good[:2]:
            assert trial["state"] == "complete"
            assert 0 < trial["value"] < 1
            continue
        assert (trial["state"], trial["value"]) == ("fail", None)
        reason = "killed by SIGKILL" if number in good else "model.dtype: float32 or"
        assert trial["reason"].startswith(reason)
    leave_nothing(folder)
    # Nothing is left to do: the same command says the same.
    repeated = rn50("sweep", str(path), "--json")
    assert repeated.returncode == 0
    assert json.loads(repeated.stdout) == results


@pytest.mark.slow
def test_ctrl_c_stops_the_trials(rn50: Rn50, tmp_path: Path) -> None:
    # too long to end by itself
    path = write_sweep(tmp_path, "trials: 1\n", epochs=1000)
    folder = tmp_path / "results" / "small"
    trial = folder / "trials" / "trial_0000"
    driver = rn50.start("sweep", str(path))
    wait_until(lambda: trains(trial))
    for _ in range(3):  # a second and third Ctrl-C leave no trial either
        driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 130
    leave_nothing(folder)
    assert out == ""
    assert "Traceback" not in err
    assert "stopped by Ctrl-C; 0 of 1 trials have ended" in err.splitlines()[-1]
    (run,) = trial.glob("2*")
    assert stop_of(run) == "aborted"


def test_two_drivers_do_not_share_a_sweep(tmp_path: Path) -> None:
    loaded = load_sweep(write_sweep(tmp_path))
    folder = sweep_folder(loaded)
    folder.mkdir(parents=True)
    with hold(folder / LOCK), refused(f"in use by process {os.getpid()} on "):
        run_sweep(loaded, lambda _: silent, silent, "")


# --- one trial's processes and files --------------------------------------------------------------


def test_how_a_trial_ended_is_read_from_what_it_left(tmp_path: Path) -> None:
    assert read_end(tmp_path, -9).reason == "killed by SIGKILL"
    assert read_end(tmp_path, 2).reason == "exit code 2: no output"
    (tmp_path / "output.log").write_text("quick: 1 rank\nKilled\n\n")
    assert read_end(tmp_path, 1).reason == "exit code 1: Killed"
    result = tmp_path / "1/result.json"
    write_json(result, {"status": "success"})
    assert read_end(tmp_path, 0).status == "success"
    result.write_text(result.read_text()[:15])
    assert read_end(tmp_path, 0).status == "failed"


def test_evaluations_are_read_while_they_are_written(tmp_path: Path) -> None:
    assert evaluations(tmp_path) == []
    (tmp_path / "1").mkdir()
    train = '{"kind": "train", "step": 1, "loss": 2.0}\n'
    first = '{"kind": "eval", "epoch": 1, "accuracy": 0.25}\n'
    second = '{"kind": "eval", "epoch": 2, "accuracy": 0.5}\n'
    metrics_text = train + first + second
    for end in range(len(metrics_text) + 1):
        (tmp_path / "1/metrics.jsonl").write_text(metrics_text[:end])
        whole_records = sum(
            line.strip() in metrics_text[:end] for line in (first, second)
        )
        assert len(evaluations(tmp_path)) == whole_records
    assert evaluations(tmp_path) == [(1, 0.25), (2, 0.5)]


# --- the driver -----------------------------------------------------------------------------------


def silent(*_: object, **__: object) -> None:
    """Says nothing."""


def driver_of(folder: Path, more: str) -> tuple[Driver, Study]:
    loaded = load_sweep(write_sweep(folder, more))
    study = Study(loaded.sweep, folder, {})
    return Driver(loaded, study, silent, silent), study


def ended_trial(study: Study, folder: Path, **result: object) -> Active:
    """The next trial, whose process has ended with this result."""
    number = study.ask().number
    trial = folder / str(number)
    write_json(trial / "1/result.json", result)
    process = subprocess.Popen(["true"], text=True)
    process.wait()
    return Active(number, trial, process)


def test_trials_of_an_earlier_driver_run_again_before_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, study = driver_of(tmp_path, "trials: 4\n")
    for _ in range(3):
        study.ask()
    started: list[str] = []

    def start(folder: Path) -> subprocess.Popen[bytes]:
        started.append(folder.name)
        return subprocess.Popen(["true"])

    monkeypatch.setattr("rn50.sweep.driver.start", start)
    driver.run()
    assert started == [f"trial_{number:04d}" for number in range(4)]


def test_a_trial_that_a_signal_stopped_has_failed(tmp_path: Path) -> None:
    driver, study = driver_of(tmp_path, "objective: accuracy\n")
    stopped = {"by": "SIGTERM", "step": 3}
    trial = ended_trial(
        study, tmp_path, status="aborted", stopped=stopped, eval_accuracy=0.9
    )
    assert driver._has_ended(trial)
    (ended,) = study.trials
    assert ended.state == TrialState.FAIL
    assert "SIGTERM" in ended.user_attrs[REASON]


def test_a_trial_at_the_target_is_not_pruned(tmp_path: Path) -> None:
    """Though it is the worst of all so far."""
    driver, study = driver_of(tmp_path, "prune_from: 1\nobjective: epochs_to_target\n")
    for _ in range(6):
        number = study.ask().number
        study.report(number, 2, 1.0)
        study.end(number, TrialState.COMPLETE, 1.0)
    for accuracy, status, state in (
        (0.999, "success", TrialState.COMPLETE),
        (0.998, "success", TrialState.PRUNED),
        (0.999, "aborted", TrialState.PRUNED),
    ):
        trial = ended_trial(study, tmp_path, status=status, epochs=2, eval_accuracy=0.5)
        line = f'{{"kind": "eval", "epoch": 2, "accuracy": {accuracy}}}'
        (trial.folder / "1/metrics.jsonl").write_text(f"{line}\n")
        assert driver._has_ended(trial)
        assert study.trials[trial.number].state == state
