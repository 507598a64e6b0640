"""One judgement for one subject, whoever reads it; several subjects as a round."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rn50.compliance.check_log import Check
from rn50.compliance.round import Round, judge_all
from rn50.compliance.submission import judge_path
from rn50.config.load import load
from rn50.host.finding import ERROR, POLICY
from rn50.launch.run import check_run
from rn50.logging.run_folder import RunFolder
from rn50.report.html import write_report
from tests.cli.test_check import log
from tests.compliance.log_text import Edit, Run, all_of, drop, last, meta, put, shift
from tests.compliance.test_submission import (
    an_hour_apart,
    every,
    lost,
    package,
    submission,
)
from tests.conftest import invoke, write_json
from tests.logging.test_jobs import make_job, printed
from tests.report.conftest import write_config

# --- one judgement --------------------------------------------------------------------------------


def a_run(top: Path, edit: Edit = lambda run: None) -> Path:
    """The folder of a run of `smoke`."""
    write_config(top)
    write_json(top / "result.json", {"status": "success"})
    return log(top, edit).parent


def an_entry_with_a_result_of_ours(top: Path) -> Path:
    logs = package(top, runs=1)
    write_json(logs / "result.json", {})
    return logs


def a_job_beside_a_broken_description(top: Path) -> Path:
    job = make_job(top / "job", 1)
    write_json(job / "systems/local_n1.json", {})
    return job


ABORTED = meta("run_stop", "status", "aborted")
SUBJECTS: dict[str, Callable[[Path], Path]] = {
    "log": log,
    "log that fails": lambda top: log(top, ABORTED, "some.log"),
    "run": a_run,
    "run that cannot be read": lambda top: a_run(top, list.clear),
    "run without a seed": lambda top: a_run(top, drop("seed")),
    "bare folder of one": lambda top: log(top).parent,
    "entry of one": lambda top: package(top, runs=1),
    "entry with a result of ours": an_entry_with_a_result_of_ours,
    "entry of two": lambda top: package(top, runs=2).parents[2],
    "entry without a description": lambda top: package(top, None),
    "submission": submission,
    "submission that fails": lambda top: submission(top, {0: lost, 1: lost}),
    "job": lambda top: make_job(top / "job", 5),
    "job of one": lambda top: make_job(top / "job", 1),
    "job beside a broken description": a_job_beside_a_broken_description,
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_reader_has_one_verdict_on_a_subject(
    tmp_path: Path, subject: str
) -> None:
    path = SUBJECTS[subject](tmp_path)
    checked = printed("check", path, "--no-official")
    judged = checked[-1] if isinstance(checked, list) else checked
    assert judged["kind"] == ("folder" if path.is_dir() else "log")
    verdict = judged["verdict"]
    page = write_report(path, tmp_path / "page.html").read_text()
    assert f">{verdict.replace('_', ' ')}</span>" in page
    if verdict != "CANNOT_READ":
        (row,) = printed("compare", path)
        assert row["log_check"] == verdict
    if path.is_dir():
        score = printed("score", path)
        assert (score["verdict"], score["cause"]) == (verdict, judged["cause"])
        assert score["path"] == judged["path"]


def test_a_run_is_recorded_with_the_verdict_on_its_folder(tmp_path: Path) -> None:
    """Which `rn50 runs` shows."""
    a_run(tmp_path, drop("seed"))
    *_, folder_check = judge_path(tmp_path, official=False)
    check = check_run(load("smoke").run, RunFolder(tmp_path))
    assert (check.verdict, check.cause) == (folder_check.verdict, folder_check.cause)


# --- results --------------------------------------------------------------------------------------


def test_what_fails_has_no_place_among_results(tmp_path: Path) -> None:
    fails = log(tmp_path, put("lars_epsilon", 1e-9), "fast")
    logs = [fails, log(tmp_path, shift("run_stop", 60_000), "slow")]
    done = invoke("log", "compare", "--json", "--sort", "time_to_train_s", *logs)
    first, second = json.loads(done.stdout)
    assert first["path"] == str(logs[1])
    assert second["log_check"] == "FAIL"
    assert second["time_to_train_s"] is None
    table = invoke("log", "compare", "--sort", "-time_to_train_s", *logs).stdout
    rows = [line for line in table.splitlines() if "FAIL" in line or "PASS" in line]
    assert "(39.57)" in rows[1]


# --- the target -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.759, 0.8])
def test_a_run_goes_on_to_its_own_target(tmp_path: Path, target: float) -> None:
    """0.795 at epoch 31, 0.8775 at epoch 35."""

    def ended_above(run: Run) -> None:
        all_of(run, "eval_accuracy")[-2].value = 0.795
        last(run, "eval_accuracy").value = 0.8775

    a_run(tmp_path, ended_above)
    write_config(tmp_path, "division=closed", f"eval.target={target}")
    page = write_report(tmp_path, tmp_path / "page.html").read_text()
    for path in (tmp_path / "result_0.txt", tmp_path):
        output = invoke("log", "check", "--no-official", path).stdout
        is_accused = target < 0.8
        assert ("MLP307" in output) == ("MLP307" in page) == is_accused
        assert ("0.8775 at epoch 35" in output) != is_accused


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ([], "MISSED"),
        (["division=closed"], "FAIL"),
        (["schedule.length=40 epochs"], "FAIL"),  # it was stopped before
        (["eval.target=0.7"], "FAIL"),
    ],
)
def test_an_open_run_that_ended_below_its_own_target_is_complete(
    tmp_path: Path, changes: list[str], verdict: str
) -> None:

    def ended_below(run: Run) -> None:
        division = "closed" if "division=closed" in changes else "open"
        put("submission_division", division)(run)
        last(run, "eval_accuracy").value = 0.7712
        ABORTED(run)

    a_run(tmp_path, ended_below)
    overrides = ["division=open", "eval.target=0.8", "schedule.length=35 epochs"]
    overrides.append("eval.offset=2")  # the log has epochs 3, 7, ... 35
    write_config(tmp_path, *overrides, *changes)
    path_of_log = tmp_path / "result_0.txt"
    for path in (path_of_log, tmp_path):
        done = invoke("log", "check", "--no-official", path)
        assert done.stdout.startswith(f"{verdict} {path}: ")
        assert done.exit_code == 1
    (check,) = judge_path(path_of_log, official=False)
    assert check.verdict == "FAIL"
    said = "complete, target 0.8 missed: accuracy 0.7712 after epoch 35"
    assert check.cause.startswith(said) == (verdict == "MISSED")
    (row,) = json.loads(invoke("log", "compare", "--json", tmp_path).stdout)
    assert row["log_check"] == verdict
    assert f" {verdict}: " in invoke("log", "show", tmp_path).stdout
    assert f"{verdict} {tmp_path}: " in invoke("log", "score", tmp_path).stdout


# --- a round --------------------------------------------------------------------------------------


@pytest.fixture
def round_of(tmp_path: Path) -> Path:
    """Two entries that pass, one that fails, and four without logs."""
    top = tmp_path / "training_results_v4.0"
    package(top, org="alpha")
    package(top, org="beta", first=5)
    package(top, org="gamma", first=20, runs=2)
    for org, name in (("packed", "result_0.txt.gz"), ("misnamed", "results_0.txt")):
        logs = package(top, org=org, first=30, runs=1)
        (logs / "result_0.txt").rename(logs / name)
    packed = top / "packed/results/box/resnet/result_0.txt.gz"
    packed.write_bytes(gzip.compress(packed.read_bytes()))
    (top / "bare/results/box/resnet").mkdir(parents=True)
    (top / "nothing").mkdir()
    return top


def test_a_round_counts_a_missed_target_apart(tmp_path: Path) -> None:
    missed = Check(tmp_path, "FAIL", "", "", "", None, (), is_miss=True)
    entries = Round(tmp_path)
    entries.add([missed])
    entries.add([missed._replace(is_miss=False)])
    assert entries.summary == "2 entries: 1 MISSED, 1 FAIL"
    assert entries.judge().verdict == "FAIL"


def test_a_round_names_entries_without_logs_and_is_summed_up(round_of: Path) -> None:
    summary = "7 entries: 2 PASS, 1 FAIL, 4 CANNOT_READ"
    done = invoke("log", "check", "--no-official", round_of)
    assert done.exit_code == 2
    *_, last_line = done.stdout.splitlines()
    assert last_line == f"CANNOT_READ {round_of}: {summary}"
    compared = invoke("log", "compare", round_of)
    assert summary in compared.stdout
    for name in ("packed/", "misnamed/", "bare/", "nothing"):
        for output in (
            done.stdout,
            compared.output,
            invoke("log", "score", round_of).output,
        ):
            (line,) = {
                x for x in output.splitlines() if name in x and "expected in it" in x
            }
            assert "result_*.txt" in line
    objects = printed("check", round_of, "--no-official")
    kinds = [check["kind"] for check in objects]
    assert kinds.count("log") == 12
    assert kinds.count("folder") == 7
    assert kinds[-1] == "round"
    assert objects[-1]["cause"] == summary


def later(run: Run) -> None:
    an_hour_apart(1, run)


@pytest.mark.parametrize(
    ("edit", "severity"), [(lambda run: None, POLICY), (later, ERROR)]
)
def test_the_runs_of_one_entry_are_not_those_of_another(
    tmp_path: Path, edit: Edit, severity: str
) -> None:
    """Unedited they may be of a system that was submitted again with its power."""
    package(tmp_path, org="alpha")
    package(tmp_path, org="beta", first=3, edits=every(edit))
    *entries, of_round = printed("check", tmp_path, "--no-official")
    assert all(check["verdict"] == "PASS" for check in entries)
    assert of_round["verdict"] == {POLICY: "POLICY", ERROR: "FAIL"}[severity]
    messages = []
    for finding in of_round["findings"]:
        assert finding["severity"] == severity
        messages.append(finding["message"])
    for number in (3, 4):
        box = "results/box/resnet"
        twin = f"beta/{box}/result_{number - 3}.txt"
        names = f"alpha/{box}/result_{number}.txt and {twin}"
        assert sum(message.startswith(names) for message in messages) == 1
    assert len(messages) == 2
    assert names in invoke("log", "compare", tmp_path).output


def test_one_entry_that_is_named_twice_is_no_copy(tmp_path: Path) -> None:
    folder = package(tmp_path)
    *_, judged = judge_all([folder, folder], official=False)
    (of_round,) = judged
    assert of_round.findings == ()


def test_runs_of_ours_may_repeat_each_other(tmp_path: Path) -> None:
    """Two runs of one seed do, bit for bit."""
    runs = [a_run(tmp_path / name) for name in ("first", "second")]
    *_, judged = judge_all(runs, official=False)
    (of_round,) = judged
    assert of_round.verdict == "PASS"
