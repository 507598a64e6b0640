"""The folder of `rn50 submit` is understood by every command on logs, with its config's target."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rn50.logging.places import config_of, log_folders
from rn50.logging.records import Result
from rn50.logging.run_folder import JobFolder
from rn50.report.compare import name_of
from rn50.report.export import read_runs
from rn50.report.html import write_report
from rn50.report.run_records import read_run_records, read_subjects
from tests.compliance.log_text import good_run, last, put, vary, write
from tests.compliance.test_submission import SYSTEM, package
from tests.conftest import invoke, write_json, write_metrics
from tests.report.conftest import write_config

TARGET = 0.4


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Five runs of an open config whose target is far below the benchmark's."""
    return make_job(tmp_path / "results/smoke/20261122T105236Z", 5)


def make_job(folder: Path, runs: int) -> Path:
    """The folder of a job and of its runs."""
    overrides = ["division=open", f"eval.target={TARGET}", "ruleset=3.1"]
    write_json(folder / "systems/local_n1.json", SYSTEM)
    write_config(folder, *overrides)
    (folder / "job.sh").touch()
    for number in range(runs):
        run = folder / f"run_{number}"
        log = vary(good_run(division="open"), number)
        put("eval_accuracy", 0.2)(log)
        last(log, "eval_accuracy").value = round(0.45 + number / 100, 2)
        write(run / "result_0.txt", log)
        write(folder / f"results/local_n1/resnet/result_{number}.txt", log)
        write_config(run, *overrides, f"seed={number}")
        write_json(run / "result.json", {"status": "success", "ranks": 2})
    return folder


def printed(command: str, path: Path, *options: str) -> Any:
    done = invoke("log", command, "--json", *options, path)
    return json.loads(done.stdout)


def test_where_things_lie(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = job / "results/local_n1/resnet"
    assert log_folders(job) == [logs]
    assert log_folders(logs) == [logs]
    runs = [run.path for run in JobFolder(job).runs]
    assert runs == [job / f"run_{number}" for number in range(5)]
    assert config_of(logs) == job / "run_0/config.yaml"
    assert config_of(job / "run_3") == job / "run_3/config.yaml"
    monkeypatch.chdir(logs)
    assert config_of(Path()).resolve() == job / "run_0/config.yaml"
    shutil.rmtree(job / "results")  # killed before its first run was at its end
    assert log_folders(job) == runs


def test_every_command_takes_it(job: Path) -> None:
    """The target is that of the config: against 0.759, none of the five would have reached it."""
    score = printed("score", job)
    assert score["path"] == str(job / "results/local_n1/resnet")
    assert score["ruleset"] == "4.0.0"  # of the dates in the log, not of the config
    assert [run["converged"] for run in score["runs"]] == [True] * 5
    runs = printed("show", job)
    accuracies = [run["eval_accuracy"] for run in runs]
    assert accuracies == [0.45, 0.46, 0.47, 0.48, 0.49]
    assert {run["target"] for run in runs} == {TARGET}
    path = write_report(job)
    assert path == job / "report.html"
    page = path.read_text()
    assert "5 of 5 runs reached the target" in page
    assert f"rn50 launch {job}/run_0/config.yaml" in page
    for log in (
        job / "run_2/result_0.txt",
        job / "results/local_n1/resnet/result_2.txt",
    ):
        (subject,) = read_subjects(log)
        assert subject.runs[0].target == TARGET


def test_a_job_of_one_run_is_that_run(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", 1)
    (subject,) = read_subjects(job)
    assert subject.path == job / "run_0"
    assert subject.folder is not None
    assert subject.folder.result == Result("success", ranks=2)
    assert "Reached 0.45 top-1" in write_report(job).read_text()
    *_, folder_check = printed("check", job, "--no-official")
    assert folder_check["verdict"] != "FAIL"
    severities = {f["name"]: f["severity"] for f in folder_check["findings"]}
    assert severities["five-runs"] == "note"


def test_a_job_without_a_log_says_how_its_run_ended(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", 1)
    (job / "results/local_n1/resnet/result_0.txt").unlink()
    (job / "run_0/result_0.txt").unlink()
    failed = {"status": "failed", "reason": "rank 1 on node7 failed in start-up"}
    write_json(job / "run_0/result.json", failed)
    assert "rank 1 on node7 failed in start-up" in write_report(job).read_text()


def test_compare_takes_a_job_once(tmp_path: Path) -> None:
    make_job(tmp_path / "results/first", 5)
    make_job(tmp_path / "results/second", 2)
    done = invoke("log", "compare", tmp_path / "results")
    assert done.exit_code == 0, done.output
    named = re.findall(r"^[A-Z] +(results/\w+)", done.stdout, re.MULTILINE)
    assert named == ["results/first", "results/second"]


def test_a_submission_of_others_is_no_job(tmp_path: Path) -> None:
    """ORG/results/box/resnet without a config: the benchmark's target."""
    package(tmp_path, org="ORG")
    (subject,) = read_subjects(tmp_path / "ORG")
    assert subject.folder.config is None
    assert subject.runs[0].target == 0.759
    assert name_of(subject) == "ORG/box"


def test_a_folder_above_runs_means_the_runs(tmp_path: Path, job: Path) -> None:
    """One rule for all commands: a sweep's folder, whose trials lie two levels below, too."""
    study = tmp_path / "study"
    for number in range(2):
        run = study / f"trials/trial_{number}/20261122T105236Z"
        shutil.copytree(job / f"run_{number}", run)
        write_metrics(run, [{"kind": "train", "step": 1, "loss": 2.0}])
    assert not read_run_records(run / "nothing").notes
    (run / "attempt_1").mkdir()  # as resuming a run leaves it
    shutil.copy(run / "metrics.jsonl", run / "attempt_1")
    trials = [study / f"trials/trial_{n}/20261122T105236Z" for n in range(2)]
    assert log_folders(study) == trials
    for path, runs in ((study, trials), (trials[0], trials[:1])):
        exported = read_runs([path]).runs
        assert [run.folder.path for run in exported] == runs
    assert [subject.path for subject in read_subjects(study)] == trials
    # no run twice
    assert log_folders(tmp_path) == [job / "results/local_n1/resnet", *trials]
    assert invoke("log", "show", study).output.count("result_0.txt") == 2


@pytest.mark.parametrize(
    "command",
    ["log check", "log compare", "log show", "log report", "export csv", "runs"],
)
@pytest.mark.parametrize("wrong", ["quikc", "quikc/20261122T105236Z"])
def test_a_misspelt_folder_has_a_suggestion(
    tmp_path: Path, command: str, wrong: str
) -> None:
    (tmp_path / "quick").mkdir()
    error = invoke(*command.split(), tmp_path / wrong).exception
    assert str(error).endswith(
        f"{wrong}: a log or a folder expected, found none; did you mean {tmp_path / 'quick'}?"
    )
