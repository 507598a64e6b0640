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
from rn50.report.compare import compare, read_all
from rn50.report.html import write_report
from tests.cli.test_check import invoke
from tests.compliance.log_text import (
    Run,
    drop,
    good_run,
    last,
    meta,
    put,
    shift,
    vary,
    write,
)
from tests.compliance.test_submission import (
    SYSTEM,
    an_hour_apart,
    lost,
    package,
    submission,
)
from tests.conftest import write_json
from tests.logging.test_jobs import make_job, printed


def entry(
    top: Path,
    org: str,
    numbers: range = range(5),
    edit: Callable[[Run], object] = lambda run: None,
) -> Path:
    """ORG/results/box/resnet with its description, of the runs of some numbers."""
    logs = top / org / "results/box/resnet"
    logs.mkdir(parents=True)
    (top / org / "systems").mkdir()
    write_json(top / org / "systems/box.json", SYSTEM)
    for index, number in enumerate(numbers):
        run = vary(good_run(), number)
        shift("run_stop", 1000 * number)(run)
        edit(run)
        write(logs / f"result_{index}.txt", run)
    return logs


# --- one judgement --------------------------------------------------------------------------------


def a_log(top: Path) -> Path:
    return write(top / "result_0.txt", good_run())


def a_log_that_fails(top: Path) -> Path:
    run = good_run()
    meta("run_stop", "status", "aborted")(run)
    return write(top / "some.log", run)


def a_run(top: Path, log: str | None = None) -> Path:
    (top / "config.yaml").write_text(load("smoke").to_yaml())
    write_json(top / "result.json", {"status": "success"})
    a_log(top)
    if log is not None:
        (top / "result_0.txt").write_text(log)
    return top


def a_run_that_cannot_be_read(top: Path) -> Path:
    return a_run(top, "nothing\n")


def a_run_without_a_seed(top: Path) -> Path:
    run = good_run()
    drop("seed")(run)
    a_run(top)
    write(top / "result_0.txt", run)
    return top


def a_bare_folder_of_one(top: Path) -> Path:
    a_log(top)
    return top


def an_entry_of_one(top: Path) -> Path:
    return entry(top, "us", range(1))


def an_entry_with_a_result_of_ours(top: Path) -> Path:
    logs = entry(top, "us", range(1))
    write_json(logs / "result.json", {})
    return logs


def an_entry_of_two(top: Path) -> Path:
    return entry(top, "us", range(2)).parents[2]


def an_entry_without_a_description(top: Path) -> Path:
    return package(top, None)


def a_submission(top: Path) -> Path:
    return submission(top)


def a_submission_that_fails(top: Path) -> Path:
    return submission(top, dict.fromkeys(range(2), lost))


def a_job(top: Path) -> Path:
    return make_job(top / "job", 5)


def a_job_of_one(top: Path) -> Path:
    return make_job(top / "job", 1)


def a_job_of_one_beside_a_broken_description(top: Path) -> Path:
    job = make_job(top / "job", 1)
    write_json(job / "systems/local_n1.json", {})
    return job


SUBJECTS = (
    a_log,
    a_log_that_fails,
    a_run,
    a_run_that_cannot_be_read,
    a_run_without_a_seed,
    a_bare_folder_of_one,
    an_entry_of_one,
    an_entry_with_a_result_of_ours,
    an_entry_of_two,
    an_entry_without_a_description,
    a_submission,
    a_submission_that_fails,
    a_job,
    a_job_of_one,
    a_job_of_one_beside_a_broken_description,
)


@pytest.mark.parametrize("make", SUBJECTS)
def test_every_reader_has_one_verdict_on_a_subject(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
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
    a_run_without_a_seed(tmp_path)
    *_, folder_check = judge_path(tmp_path, official=False)
    check = check_run(load("smoke").run, RunFolder(tmp_path))
    assert (check.verdict, check.cause) == (folder_check.verdict, folder_check.cause)


# --- results --------------------------------------------------------------------------------------


def test_what_fails_has_no_place_among_results(tmp_path: Path) -> None:
    slow = vary(good_run(), 1)
    last(slow, "run_stop").time_ms += 60_000
    fails = good_run()
    put("lars_epsilon", 1e-9)(fails)
    logs = [write(tmp_path / "fast", fails), write(tmp_path / "slow", slow)]
    done = invoke("log", "compare", "--json", "--sort", "time_to_train_s", *logs)
    first, second = json.loads(done.stdout)
    assert first["path"] == str(logs[1])
    assert second["log_check"] == "FAIL"
    assert second["time_to_train_s"] is None
    table = invoke("log", "compare", "--sort", "-time_to_train_s", *logs).stdout
    rows = [line for line in table.splitlines() if "FAIL" in line or "PASS" in line]
    assert "(39.57)" in rows[1]
    (time_s,) = [
        column
        for column in compare(read_all(logs)).columns
        if column.key == "time_to_train_s"
    ]
    assert time_s.places == (None, 0)


# --- the target -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.759, 0.8])
def test_a_run_goes_on_to_its_own_target(tmp_path: Path, target: float) -> None:
    """0.795 at epoch 31, 0.8775 at epoch 35."""
    run = good_run()
    *_, penultimate, end = [record for record in run if record.key == "eval_accuracy"]
    penultimate.value = 0.795
    end.value = 0.8775
    a_run(tmp_path)
    (tmp_path / "config.yaml").write_text(
        load("smoke", ["division=closed", f"eval.target={target}"]).to_yaml()
    )
    log = write(tmp_path / "result_0.txt", run)
    page = write_report(tmp_path, tmp_path / "page.html").read_text()
    for path in (log, tmp_path):
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
    run = good_run()
    division = "closed" if "division=closed" in changes else "open"
    put("submission_division", division)(run)
    *_, end = [record for record in run if record.key == "eval_accuracy"]
    end.value = 0.7712
    meta("run_stop", "status", "aborted")(run)
    a_run(tmp_path)
    overrides = ["division=open", "eval.target=0.8", "schedule.length=35 epochs"]
    overrides.append("eval.offset=2")  # the log has epochs 3, 7, ... 35
    config = load("smoke", [*overrides, *changes]).to_yaml()
    (tmp_path / "config.yaml").write_text(config)
    log = write(tmp_path / "result_0.txt", run)
    for path in (log, tmp_path):
        done = invoke("log", "check", "--no-official", path)
        assert done.stdout.startswith(f"{verdict} {path}: ")
        assert done.exit_code == 1
    (check,) = judge_path(log, official=False)
    assert check.verdict == "FAIL"
    said = "complete, target 0.8 missed: accuracy 0.7712 after epoch 35"
    assert check.cause.startswith(said) == (verdict == "MISSED")
    (row,) = json.loads(invoke("log", "compare", "--json", tmp_path).stdout)
    assert row["log_check"] == verdict


# --- a round --------------------------------------------------------------------------------------


@pytest.fixture
def round_of(tmp_path: Path) -> Path:
    """Two entries that pass, one that fails, and four without logs."""
    top = tmp_path / "training_results_v4.0"
    entry(top, "alpha")
    entry(top, "beta", range(5, 10))
    entry(top, "gamma", range(20, 22))
    for org, name in (("packed", "result_0.txt.gz"), ("misnamed", "results_0.txt")):
        logs = entry(top, org, range(30, 31))
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
    tmp_path: Path, edit: Callable[[Run], object], severity: str
) -> None:
    """Unedited they may be of a system that was submitted again with its power."""
    entry(tmp_path, "alpha")
    entry(tmp_path, "beta", range(3, 8), edit)
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
    folder = entry(tmp_path, "alpha")
    *_, judged = judge_all([folder, folder], official=False)
    (of_round,) = judged
    assert of_round.findings == ()


def test_runs_of_ours_may_repeat_each_other(tmp_path: Path) -> None:
    """Two runs of one seed do, bit for bit."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        a_run(tmp_path / name)
    folders = sorted(tmp_path.iterdir())
    *_, judged = judge_all(folders, official=False)
    (of_round,) = judged
    assert of_round.verdict == "PASS"
