"""What a verdict names first explains the rest; none is milder than the official checker's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.compliance.check_log import Check, check_log, no_milder
from rn50.compliance.official import Official
from rn50.config.finding import ERROR, NOTE, POLICY, Finding
from tests.compliance.log_text import Edit, Record, Run, drop, find, good_run, last, write


def judged(folder: Path, edit: Edit, ruleset: str = "4.0.0") -> Check:
    run = good_run(ruleset)
    edit(run)
    return check_log(write(folder / "result_0.txt", run, ruleset), ruleset, official=False)


def explained(found: Check) -> dict[str, str]:
    names = {finding.id: finding.name for finding in found.findings}
    return {finding.name: names.get(finding.caused_by, "") for finding in found.findings}


def test_a_run_without_start_names_the_start(tmp_path: Path) -> None:
    found = judged(tmp_path, drop("run_start"))
    assert found.cause.startswith("no run_start")
    assert (
        explained(found)["misplaced-run-stop"]
        == explained(found)["missing-epoch-metadata"]
        == "misplaced-run-start"
    )
    assert explained(found)["misplaced-run-start"] == ""


def test_a_key_that_looks_like_another_explains_what_is_missing(tmp_path: Path) -> None:
    def edit(run: Run) -> None:
        find(run, "run_stop").key = "run_st\u043ep"

    found = judged(tmp_path, edit)
    assert found.verdict == "FAIL"
    assert explained(found)["no-run-stop"] == "look-alike-name"
    assert "key 'run_st\\u043ep' (has U+043E" in found.cause
    assert found.cause.isascii()


def an_hour_back(run: Run) -> None:
    for record in run[run.index(find(run, "run_start")) + 1 :]:
        record.time_ms -= 3.6e6


def test_a_clock_that_is_set_back_explains_epochs_before_it(tmp_path: Path) -> None:
    found = judged(tmp_path, an_hour_back)
    assert explained(found)["epoch-before-run-start"] == "run-time-not-positive"
    assert found.cause.startswith("run_stop")


@pytest.mark.parametrize("key", ["init_start", "init_stop"])
def test_init_in_seconds_is_named_before_its_length(tmp_path: Path, key: str) -> None:
    def edit(run: Run) -> None:
        find(run, key).time_ms /= 1000

    found = judged(tmp_path, edit)
    assert f"{key} (line" in found.cause and "seconds where milliseconds" in found.cause
    assert explained(found).get("init-too-long", "zero-stamp") == "zero-stamp"


def copies_and_ten_minutes_back(run: Run) -> None:
    run[:] = [copy for r in run for copy in (r, Record(r.key, r.value, r.time_ms, **r.metadata))]
    for record in run[run.index(last(run, "eval_accuracy")) :]:
        record.time_ms -= 10_000


def test_copies_explain_no_step_of_seconds(tmp_path: Path) -> None:
    found = judged(tmp_path, copies_and_ten_minutes_back)
    back = next(f for f in found.findings if f.name == "time-goes-back")
    assert (back.severity, back.caused_by) == (POLICY, "")
    assert "copied-records" in explained(found)


def test_a_spread_is_a_plain_number(tmp_path: Path) -> None:
    def edit(run: Run) -> None:
        at = run.index(find(run, "init_stop"))
        run.insert(at, Record("init_stop", None, run[at].time_ms))
        for record in run[at + 1 :]:
            record.time_ms += 1.2e6

    found = judged(tmp_path, edit)
    assert "spread 1200000 ms" in next(
        f.message for f in found.findings if f.name == "copied-records"
    )


@pytest.mark.parametrize("value", [None, "0.75", True])
def test_one_accuracy_that_is_none_hides_no_failure(tmp_path: Path, value: object) -> None:
    def edit(run: Run) -> None:
        find(run, "eval_accuracy").value = value
        last(run, "eval_accuracy").value = 0.7401

    found = judged(tmp_path, edit, "0.6.0")
    assert found.verdict == "POLICY"
    assert any("best 0.7401" in finding.message for finding in found.findings)
    assert "converged" not in found.cause


def test_stamps_in_whole_seconds_are_no_epochs_in_no_time(tmp_path: Path) -> None:
    """Evaluations 0.7 s apart, after training: in whole seconds some stamps are the same."""

    def edit(run: Run) -> None:
        begin_ms = find(run, "run_start").time_ms
        seen = 0
        for record in run:
            if record.key == "eval_accuracy":
                seen += 1
                record.time_ms = begin_ms + 36_000 + 700 * seen
        run.sort(key=lambda r: r.time_ms)
        run.append(run.pop(run.index(find(run, "run_stop"))))
        for record in run:
            record.time_ms = record.time_ms // 1000 * 1000

    found = judged(tmp_path, edit)
    assert "impossible-rate" not in explained(found)


REASONS = (
    "WARNING -  Required EXACTLY_ONE occurrence of 'x' but found 2",
    "CHECK for 'init_stop' failed in line 26: :::MLLOG {}",
)


def test_no_verdict_is_milder_than_the_official_one() -> None:
    note = Finding("MLP203", NOTE, 1, "", "", "copies", name="copied-records")
    failed = Official("FAIL", "4.1.68", "4.0.0", REASONS)
    first, second = no_milder((note,), failed)
    assert (first.name, first.severity, second) == ("official-checker-fails", ERROR, note)
    assert first.message.endswith("CHECK for 'init_stop' failed in line 26")

    error = Finding("MLP304", ERROR, 1, "", "", "did not converge", name="target-not-reached")
    joined = Finding("MLP006", NOTE, 1, "", "", "two records", name="joined-records")
    for findings in ((error, note), (joined,)):
        assert no_milder(findings, failed) == findings
    for other in (None, failed._replace(verdict="PASS"), failed._replace(verdict="NOT_RUN")):
        assert no_milder((note,), other) == (note,)
