"""Five runs as a submission, and their score."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from mlperf_logging.package_checker.power_checker import PowerChecker
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

from rn50.compliance.check_log import Check, check_log
from rn50.compliance.rcp import Verdict
from rn50.compliance.score import Score
from rn50.compliance.submission import judge_path
from rn50.config import benchmark
from rn50.host.finding import ERROR, NOTE, POLICY, Finding
from tests.compliance.log_text import (
    Edit,
    Run,
    again,
    all_of,
    drop,
    find,
    good_run,
    last,
    meta,
    put,
    score_folder,
    shift,
    vary,
    write,
)
from tests.compliance.test_rules import added, since_boot
from tests.conftest import invoke, refused, write_json

Edits = dict[int, Edit]


def every(edit: Edit) -> Edits:
    """The same edit of all five runs."""
    return dict.fromkeys(range(5), edit)


def submission(
    folder: Path,
    edits: Edits | None = None,
    *,
    runs: int = 5,
    first: int = 0,
    ruleset: str = "4.0.0",
) -> Path:
    """Runs with the numbers from `first` on: run n takes n seconds longer than run 0 and has a seed
    of its own."""
    for index in range(runs):
        run = vary(good_run(ruleset), first + index)
        shift("run_stop", 1000 * (first + index))(run)
        (edits or {}).get(index, lambda run: None)(run)
        write(folder / f"result_{index}.txt", run, ruleset)
    return folder


def whole(folder: Path) -> Check:
    *_, submission = judge_path(folder, "4.0.0", official=False)
    return submission


def broken(folder: Path, rule: str) -> Finding:
    """The finding of one rule on folders, which the folder breaks."""
    return next(f for f in whole(folder).findings if f.name == rule)


def severity(folder: Path, rule: str) -> str | None:
    """The severity of that finding; None: the folder does not break the rule."""
    return {f.name: f.severity for f in whole(folder).findings}.get(rule)


def rcp_of(scored: Score) -> Verdict:
    assert scored.rcp is not None
    return scored.rcp


def lost(run: Run) -> None:
    last(run, "eval_accuracy").value = 0.5
    meta("run_stop", "status", "aborted")(run)


SYSTEM = {
    **dict.fromkeys(benchmark.SYSTEM_FIELDS, ""),
    "division": "closed",
    "number_of_nodes": "4",
    "accelerators_per_node": "8",
    "host_processors_per_node": "2",
    "status": "Available on-premise",
}


def package(
    folder: Path,
    system: object = SYSTEM,
    org: str = "us",
    edits: Edits | None = None,
    *,
    runs: int = 5,
    first: int = 0,
) -> Path:
    """ORG/results/box/resnet with its description (None: without), of the runs of a submission."""
    if system is not None:
        write_json(folder / org / "systems/box.json", system)
    logs = folder / org / "results/box/resnet"
    return submission(logs, edits, runs=runs, first=first)


def test_a_good_submission_breaks_no_rule(tmp_path: Path) -> None:
    check = whole(package(tmp_path))
    assert check.findings == ()
    assert check.verdict == "PASS"
    assert check.cause == "5 of 5 runs pass"


@pytest.mark.parametrize(("bad", "verdict"), [([2], "PASS"), ([1, 2], "FAIL")])
def test_one_of_five_may_fail(tmp_path: Path, bad: list[int], verdict: str) -> None:
    folder = submission(tmp_path, dict.fromkeys(bad, lost))
    assert whole(folder).verdict == verdict
    finding = broken(folder, "five-runs")
    assert finding.severity == {"PASS": NOTE, "FAIL": ERROR}[verdict]
    assert all(f"result_{number}.txt" in finding.message for number in bad)
    assert (score_folder(tmp_path).score_min is None) == (verdict == "FAIL")


@pytest.mark.parametrize("runs", [1, 4, 6])
def test_any_other_number_of_runs_fails(tmp_path: Path, runs: int) -> None:
    score = score_folder(submission(tmp_path, runs=runs))
    assert (score.score_min, score.verdict) == (None, "FAIL")
    assert any(f"{runs} run" in note for note in score.notes)


def test_one_run_of_this_harness_is_no_submission(tmp_path: Path) -> None:
    (submission(tmp_path, runs=1) / "result.json").write_text("{}")
    assert whole(tmp_path).verdict == "PASS"
    assert severity(tmp_path, "five-runs") == NOTE
    submission(tmp_path, {0: drop("run_stop")}, runs=1)
    assert whole(tmp_path).verdict == "FAIL"


@pytest.mark.parametrize(
    ("edit", "severity", "phrase"),
    [
        (put("seed", 1001), ERROR, "1001, as in result_1.txt"),
        (put("seed", "1001"), ERROR, "as in result_1.txt"),
        (put("seed", "x"), ERROR, "integer"),
        (put("seed", 1.5), ERROR, "integer"),
        (put("seed", math.inf), ERROR, "integer"),
        (put("seed", None), ERROR, "integer"),
        (again("seed"), ERROR, "as in result_3.txt"),
        (drop("seed"), POLICY, "no seed"),
    ],
)
def test_seeds(tmp_path: Path, edit: Edit, severity: str, phrase: str) -> None:
    finding = broken(submission(tmp_path, {3: edit}), "seed-not-fresh")
    assert finding.severity == severity
    assert "result_3.txt" in finding.message
    assert phrase in finding.message


@pytest.mark.parametrize("first", [2**63, -(2**63) - 4, 2**64 - 4, 10**30])
def test_seeds_of_any_size_are_compared_exactly(tmp_path: Path, first: int) -> None:
    edits = {number: put("seed", first + number) for number in range(5)}
    submission(tmp_path, edits)
    assert severity(tmp_path, "seed-not-fresh") is None
    edits[3] = put("seed", str(first + 1))
    submission(tmp_path, edits)
    finding = broken(tmp_path, "seed-not-fresh")
    assert f'"{first + 1}", as in result_1.txt' in finding.message


def test_hyper_parameters_are_alike(tmp_path: Path) -> None:
    submission(tmp_path, {4: put("lars_opt_base_learning_rate", 11)})
    finding = broken(tmp_path, "different-hyperparameters")
    assert finding.severity == POLICY
    assert "10.5 in result_0.txt and 11 in result_4.txt" in finding.message
    submission(tmp_path, every(put("lars_opt_momentum", math.nan)))
    assert severity(tmp_path, "different-hyperparameters") is None


@pytest.mark.parametrize(
    ("key", "edits"),
    [
        ("submission_status", {3: put("submission_status", "cloud")}),
        ("label_smoothing", {n: added("label_smoothing", n == 3) for n in range(5)}),
    ],
)
def test_status_and_label_smoothing_are_alike(
    tmp_path: Path, key: str, edits: Edits
) -> None:
    finding = broken(submission(tmp_path, edits), "different-hyperparameters")
    assert finding.severity == POLICY
    assert finding.message.startswith(f"{key} is ")
    assert "result_3.txt" in finding.message


@pytest.mark.parametrize(
    ("system", "rule", "expected"),
    [
        ({**SYSTEM, "division": "open"}, "different-hyperparameters", POLICY),
        (None, "system-description", ERROR),
        ({}, "system-description", ERROR),
        ([], "system-description", ERROR),
        ({**SYSTEM, "accelerators_per_node": 8}, "system-description", ERROR),
        ({**SYSTEM, "framework": None}, "system-description", ERROR),
        ({**SYSTEM, "status": "available"}, "system-status", ERROR),
        (dict.fromkeys(benchmark.SYSTEM_FIELDS, ""), "system-counts", POLICY),
        ({**SYSTEM, "number_of_nodes": "0"}, "system-counts", POLICY),
        ({**SYSTEM, "accelerators_per_node": "0"}, "system-counts", None),
    ],
)
def test_the_system_description(
    tmp_path: Path, system: object, rule: str, expected: str | None
) -> None:
    assert severity(package(tmp_path, system), rule) == expected


@pytest.mark.parametrize(
    "key", ["number_of_nodes", "accelerators_per_node", "host_processors_per_node"]
)
@pytest.mark.parametrize("count", ["8 ", "-8", 8.5, None, ""])
def test_a_count_that_is_none_is_no_pass(
    tmp_path: Path, key: str, count: object
) -> None:
    folder = package(tmp_path, {**SYSTEM, key: count})
    assert severity(folder, "system-counts") == POLICY


@pytest.mark.parametrize(("repeated", "expected"), [('"8"', None), ('"4"', ERROR)])
def test_a_name_twice_in_the_system_description(
    tmp_path: Path, repeated: str, expected: str | None
) -> None:
    folder = package(tmp_path)
    path = tmp_path / "us/systems/box.json"
    path.write_text(f'{{"accelerators_per_node": {repeated}, {path.read_text()[1:]}')
    assert severity(folder, "system-description") == expected


def without_switch(power: Path) -> None:
    (power / "result_3/sw_0.txt").unlink()


def misnumbered(power: Path) -> None:
    (power / "result_3/node_1.txt").rename(power / "result_3/node_2.txt")


@pytest.mark.parametrize("edit", [without_switch, misnumbered])
@pytest.mark.parametrize(("others_lost", "expected"), [(0, NOTE), (1, ERROR)])
def test_power_is_measured_of_every_run_as_the_official_checker_wants_it(
    tmp_path: Path, edit: Callable[[Path], None], others_lost: int, expected: str
) -> None:
    edits: Edits = dict.fromkeys(range(others_lost), lost)
    folder = submission(tmp_path / "box/resnet", edits)
    power = folder / "power"
    logs = sorted(map(str, folder.glob("result_*.txt")))
    for log in logs:
        for meter in ("node_0", "node_1", "sw_0"):
            write_json(power / Path(log).stem / f"{meter}.txt", None)
    checker = PowerChecker("4.0.0")
    assert checker.check_power(str(power), logs) == (True, set())
    assert severity(folder, "incomplete-power") is None
    edit(power)
    _, failed = checker.check_power(str(power), logs)
    assert failed == {"result_3"}
    assert severity(folder, "incomplete-power") == expected


def test_the_cause_of_a_folder_counts_those_of_its_logs(tmp_path: Path) -> None:
    edits = {0: drop("run_stop"), 2: lost, 3: lost, 4: lost}
    cause = whole(submission(tmp_path, edits)).cause
    assert "3 x target-not-reached (result_2.txt" in cause
    assert "1 x no-run-stop (result_0.txt" in cause


@pytest.mark.parametrize("field", benchmark.SYSTEM_FIELDS)
def test_a_system_description_has_every_field_that_the_official_checker_asks_for(
    tmp_path: Path, field: str
) -> None:
    path = tmp_path / "box.json"
    write_json(path, SYSTEM)
    assert check_system_desc(str(path), "training", "1.0.0")[0]
    lacking = {name: value for name, value in SYSTEM.items() if name != field}
    write_json(path, lacking)
    assert not check_system_desc(str(path), "training", "1.0.0")[0]


@pytest.mark.parametrize(
    ("changes", "platform", "is_told"),
    [
        ({}, "4xDGX", False),
        ({}, "32xDGX", False),
        ({}, "8xDGX", True),
        ({"accelerators_per_node": "9"}, "DGX", True),
        ({"accelerator_model_name": "A100-SXM"}, "4xDGX A100", False),
    ],
)
def test_the_logs_are_of_the_system_that_is_described(
    tmp_path: Path, changes: dict[str, str], platform: str, is_told: bool
) -> None:
    """A batch of 3,264 images."""
    named = every(put("submission_platform", platform))
    folder = package(tmp_path, SYSTEM | changes, edits=named)
    assert severity(folder, "another-system") == (POLICY if is_told else None)


def test_a_platform_that_names_another_accelerator_is_a_note(tmp_path: Path) -> None:
    system = {**SYSTEM, "accelerator_model_name": "NVIDIA A100"}
    named = every(put("submission_platform", "4xNVIDIA DGX H100"))
    folder = package(tmp_path, system, edits=named)
    assert severity(folder, "another-system") == NOTE


def aged(run: Run) -> None:
    for record in run:
        record.time_ms -= 4 * 365 * 86_400_000


@pytest.mark.parametrize("odd_run", [None, 0, 4])
@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (aged, "mixed-rounds"),
        (put("global_batch_size", float("nan")), "different-hyperparameters"),
    ],
)
def test_one_odd_log_does_not_switch_the_rcp_test_off(
    tmp_path: Path, edit: Edit, rule: str, odd_run: int | None
) -> None:
    """Five runs of batch 32,768 that take 35 epochs, where 55 are the fewest."""
    large = put("global_batch_size", 32_768)
    edits = every(large)
    if odd_run is not None:
        edits[odd_run] = lambda run: (large(run), edit(run))
    folder = submission(tmp_path, edits)
    check = judge_path(folder, official=False)[-1]
    assert check.verdict == "FAIL"
    assert "converges in 35 epochs, less than the accepted minimum 55" in check.cause
    assert (rule in {f.name for f in check.findings}) == (odd_run is not None)
    scored = score_folder(folder)
    assert scored.ruleset == check.ruleset == "4.0.0"
    rcp = scored.to_dict()["rcp"]
    assert rcp["verdict"] == "FAIL"
    assert rcp["min"] == pytest.approx(55, abs=0.5)
    assert rcp["submission_mean"] == 35


def test_a_log_that_cannot_be_read_does_not_decide_the_round(tmp_path: Path) -> None:
    folder = submission(tmp_path, runs=4, ruleset="2.0.0")
    (folder / "result_4.txt").write_text("no log")
    assert judge_path(folder, official=False)[-1].ruleset == "2.0.0"


def test_runs_that_learn_nothing_are_not_copies(tmp_path: Path) -> None:
    submission(tmp_path, dict.fromkeys(range(2), put("eval_accuracy", 0.001)))
    assert severity(tmp_path, "copied-accuracies") is None


def an_hour_apart(number: int, run: Run) -> None:
    for record in run:
        record.time_ms += 3_600_000 * number * (record.time_ms > 0)


def touched_up(number: int, run: Run) -> None:
    for record in all_of(run, "eval_accuracy"):
        record.value += number / 300


@pytest.mark.parametrize(
    ("touched", "unit_ms", "rules"),
    [
        (False, 1, {"copied-run"}),
        (True, 1, {"copied-run"}),
        (True, 50, set()),
        (False, 1000, {"copied-accuracies"}),
    ],
)
def test_runs_that_are_one_run(
    tmp_path: Path, touched: bool, unit_ms: int, rules: set[str]
) -> None:
    """One run under five names, hours after one another: its times, its accuracies or both. Stamps
    of a coarse unit are alike in honest runs too. Each of the ten pairs is named once."""
    for number in range(5):
        run = good_run()
        an_hour_apart(number, run)
        for record in run:
            record.time_ms = record.time_ms // unit_ms * unit_ms
        if touched:
            touched_up(number, run)
        write(tmp_path / f"result_{number}.txt", run)
    copied = {"copied-run", "copied-accuracies"}
    findings = whole(tmp_path).findings
    severities = {f.name: f.severity for f in findings}
    assert ("shared-moments" in severities) == (not touched)  # they end alike
    assert severities.keys() & copied == rules
    assert {severities[name] for name in rules} <= {ERROR}
    named = [f.message.partition(" are ")[0] for f in findings if f.name in copied]
    assert len(named) == len(set(named)) == 10 * len(rules)


def some_stamps_edited(run: Run) -> None:
    touched_up(1, run)
    for record in all_of(run, "eval_accuracy")[2:4]:
        record.time_ms += 40


def without_some(run: Run) -> None:
    touched_up(1, run)
    for record in all_of(run, "eval_accuracy")[1:-1:3]:
        run.remove(record)


def slower(run: Run) -> None:
    touched_up(1, run)
    start_ms = find(run, "run_start").time_ms
    for record in run:
        record.time_ms = round(start_ms + (record.time_ms - start_ms) * 1.002)


def of_another_clock(run: Run) -> None:
    """The evaluations are neither as far apart nor in proportion."""
    for number, record in enumerate(all_of(run, "eval_accuracy")):
        record.time_ms -= 20 * number**2


def with_noise(run: Run) -> None:
    of_another_clock(run)
    for number, record in enumerate(all_of(run, "eval_accuracy")):
        record.value += (number * 7 % 19 - 9) / 50_000


def half_of_another(run: Run) -> None:
    of_another_clock(run)
    for number, record in enumerate(all_of(run, "eval_accuracy")[::2]):
        record.value = 0.2 + number / 11


EDITS = (some_stamps_edited, without_some, slower, with_noise, half_of_another)


@pytest.mark.parametrize("edit", EDITS)
def test_no_edit_clears_a_copy(tmp_path: Path, edit: Edit) -> None:
    """The copy is of the third run, an hour later and with a seed of its own."""
    folder = submission(tmp_path)
    copy = vary(good_run(), 2)
    an_hour_apart(1, copy)
    put("seed", 1004)(copy)
    edit(copy)
    write(folder / "result_4.txt", copy)
    copied = [f for f in whole(folder).findings if f.name.startswith("copied-")]
    (finding,) = copied
    assert finding.severity == ERROR
    assert "result_2.txt and result_4.txt" in finding.message


def test_runs_of_a_small_set_share_accuracies_by_chance(tmp_path: Path) -> None:
    """Fractions of 400 images, as of `smoke`."""

    def of_small_set(run: Run) -> None:
        put("eval_samples", 400)(run)
        for record in all_of(run, "eval_accuracy"):
            record.value = round(record.value * 400) / 400

    folder = submission(tmp_path, every(of_small_set))
    shared = set.intersection(
        *(
            {e.accuracy for e in check.run.evaluations}
            for check in judge_path(folder)[:2]
            if check.run
        )
    )
    assert len(shared) >= 3
    assert severity(folder, "copied-accuracies") is None


@pytest.mark.parametrize(("minutes_apart", "shared"), [(0, False), (60, True)])
def test_one_clearing_of_caches_is_of_runs_at_one_time(
    tmp_path: Path, minutes_apart: int, shared: bool
) -> None:
    def cleared_once(number: int) -> Edit:
        def edit(run: Run) -> None:
            clear_ms = find(run, "cache_clear").time_ms
            shift("init_start", 60_000 * minutes_apart * number)(run)
            find(run, "cache_clear").time_ms = clear_ms

        return edit

    submission(tmp_path, {number: cleared_once(number) for number in range(5)})
    assert bool(severity(tmp_path, "shared-moments")) == shared


@pytest.mark.parametrize(
    ("accelerator", "too_fast"),
    [
        ("NVIDIA A100-SXM4-80GB (400W TDP)", True),
        ("NVIDIA H100-SXM5-80GB", False),
        (None, False),
    ],
)
def test_no_accelerator_is_faster_than_its_data_sheet(
    tmp_path: Path, accelerator: str | None, too_fast: bool
) -> None:
    """35 epochs in 40 s on 32 of them: 35,000 images/s each; an A100 has 12,683 at its peak."""
    folder = package(tmp_path, {**SYSTEM, "accelerator_model_name": accelerator})
    expected = POLICY if too_fast else None
    assert severity(folder, "impossible-accelerator-rate") == expected


@pytest.mark.parametrize(
    ("nodes", "accelerators", "too_fast"),
    [("4", "0", True), ("256", "0", False), ("4", "2", True), ("4", "4", False)],
)
def test_a_machine_without_a_data_sheet_is_no_faster_than_ten_published_ones(
    tmp_path: Path, nodes: str, accelerators: str, too_fast: bool
) -> None:
    """1.1 million images/s."""
    counts = {"number_of_nodes": nodes, "accelerators_per_node": accelerators}
    folder = package(tmp_path, SYSTEM | counts)
    expected = POLICY if too_fast else None
    assert severity(folder, "impossible-accelerator-rate") == expected


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere.txt", good_run())
    folder = submission(tmp_path / "five", runs=4)
    (folder / "result_4.txt").symlink_to("../elsewhere.txt")
    (folder / "result_5.txt").symlink_to("result_0.txt")
    names = [check.path.name for check in judge_path(folder, "4.0.0", official=False)]
    assert names == [*(f"result_{number}.txt" for number in (0, 1, 2, 3, 5)), "five"]


def test_logs_have_any_name_that_the_package_checker_finds(tmp_path: Path) -> None:
    folder = submission(tmp_path / "five")
    for path in folder.iterdir():
        path.rename(folder / path.name.replace("_", "_4955-240510_"))
    *logs, _ = judge_path(folder, "4.0.0", official=False)
    paths = [log.path for log in logs]
    assert paths == sorted(folder.glob("result_*.txt"))  # its pattern
    assert len(paths) == 5


def test_a_folder_without_results(tmp_path: Path) -> None:
    with refused(r"result_\*\.txt expected in it, found none"):
        judge_path(tmp_path)
    with refused(r"result_\*\.txt expected in it, found none"):
        score_folder(tmp_path)
    (tmp_path / "note.txt").write_text("no log\n")
    write(tmp_path / "run_1.log", good_run())
    with refused(r"found none; \S*/run_1\.log has records"):
        judge_path(tmp_path)


# --- score --------------------------------------------------------------------------------------


def minutes(run: Run) -> float:
    start_ms = find(run, "run_start").time_ms
    return (last(run, "run_stop").time_ms - start_ms) / 60_000


@pytest.mark.parametrize(
    ("division", "factor"), [("closed", 35.15384615 / 35), ("open", 1)]
)
def test_olympic_mean_of_five_is_scaled_in_the_closed_division(
    tmp_path: Path, division: str, factor: float
) -> None:
    edits = every(put("submission_division", division))
    scored = score_folder(submission(tmp_path, edits))
    base = minutes(good_run())
    assert scored.unscaled_min == pytest.approx(base + 2 / 60)
    assert [run.dropped for run in scored.runs] == ["fastest", "", "", "", "slowest"]
    assert rcp_of(scored).passed
    assert scored.scaling_factor == pytest.approx(35.15384615 / 35)
    assert scored.score_min == pytest.approx((base + 2 / 60) * factor)
    assert scored.scaled == (division == "closed")


@pytest.mark.parametrize("number", range(5))
def test_a_run_that_the_check_fails_counts_as_the_slowest(
    tmp_path: Path, number: int
) -> None:
    """It converged, and no run was faster."""

    def edit(run: Run) -> None:
        put("lars_epsilon", 1e-9)(run)
        shift("run_stop", -1000 * number)(run)

    scored = score_folder(submission(tmp_path, {number: edit}))
    fastest, *slower_runs = (n for n in range(5) if n != number)
    marks = [run.dropped.partition(" ")[0] for run in scored.runs]
    assert {n: mark for n, mark in enumerate(marks) if mark} == {
        fastest: "fastest",
        number: "slowest:",
    }
    mean_min = minutes(good_run()) + sum(slower_runs) / 3 / 60
    assert scored.unscaled_min == pytest.approx(mean_min)
    assert rcp_of(scored).mean == 35


def test_a_score_carries_the_verdict_of_what_it_scores(tmp_path: Path) -> None:
    good = submission(tmp_path / "good")
    done = invoke("log", "score", good)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"PASS {good}: 5 of 5 runs pass")
    assert "RCP test (4.0.0): PASS" in done.stdout
    assert "dropped, fastest" in done.stdout
    bad = submission(tmp_path / "bad", every(put("lars_epsilon", 1e-9)))
    done = invoke("log", "score", bad)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"FAIL {bad}: ")
    assert "of no valid submission" in done.stdout
    scored = json.loads(invoke("log", "score", "--json", bad).stdout)
    assert (scored["verdict"], scored["cause"]) == ("FAIL", whole(bad).cause)
    assert scored["score_min"] is not None
    log = good / "result_0.txt"
    done = invoke("log", "score", log)
    assert done.exit_code == 1  # a log has no score


def test_a_submission_with_a_closed_log_is_closed(tmp_path: Path) -> None:
    edits = {0: put("submission_division", "open")}
    assert score_folder(submission(tmp_path, edits)).division == "closed"


def claim(**metadata: object) -> Edit:
    """Another epoch of the last evaluation, or its metadata without what says one."""

    def edit(run: Run) -> None:
        last(run, "eval_accuracy").metadata |= metadata

    return edit


def at_target_from_31_on(run: Run) -> None:
    all_of(run, "eval_accuracy")[-2].value = 0.75934


def without_epochs(run: Run) -> None:
    drop("epoch_start", "epoch_stop", "block_start", "block_stop")(run)
    claim(epoch_num=1e308)(run)


@pytest.mark.parametrize(
    ("edit", "epochs"),
    [
        (lambda run: None, 35),
        (claim(epoch_num=39), 35),
        (claim(epoch_num="x"), 35),
        (claim(epoch_num=31), 31),
        (drop("epoch_start", "epoch_stop"), 35),
        (at_target_from_31_on, 31),
        (without_epochs, None),
    ],
)
def test_the_score_is_of_epochs_that_were_trained_to_the_first_evaluation_at_target(
    tmp_path: Path, edit: Edit, epochs: float | None
) -> None:
    folder = submission(tmp_path, every(edit))
    scored = score_folder(folder)
    assert [run.epochs for run in scored.runs] == 5 * [epochs]
    assert rcp_of(scored).mean == epochs
    printed = json.loads(
        invoke("log", "score", "--json", folder).stdout, parse_constant=pytest.fail
    )
    assert printed["rcp"]["submission_mean"] == epochs


def test_early_rounds_are_not_scaled(tmp_path: Path) -> None:
    scored = score_folder(submission(tmp_path, ruleset="2.0.0"))
    assert scored.ruleset == "2.0.0"
    assert scored.scaling_factor > 1
    assert scored.score_min == scored.unscaled_min
    assert any("not applied" in note for note in scored.notes)


@pytest.mark.parametrize("ruleset", ["0.6.0", "0.7.0"])
def test_rounds_without_reference_points(tmp_path: Path, ruleset: str) -> None:
    scored = score_folder(submission(tmp_path, ruleset=ruleset))
    assert scored.rcp is None
    assert scored.score_min == pytest.approx(minutes(good_run(ruleset)) + 2 / 60)


def test_nothing_in_the_folder_changes(tmp_path: Path) -> None:
    folder = submission(tmp_path)
    (folder / "scaling.json").write_text('{"scaling_factor": 2.5}')
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    scored = score_folder(folder)
    assert scored.published_factor == 2.5
    assert any("scaling.json says 2.5" in note for note in scored.notes)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    (folder / "scaling.json").write_text("[" * 10_000)
    assert score_folder(folder).published_factor is None


@pytest.mark.parametrize("failed", [None, 1])
@pytest.mark.parametrize(
    ("division", "verdict"), [("closed", "FAIL"), ("open", "POLICY")]
)
def test_runs_that_count_have_one_batch(
    tmp_path: Path, division: str, verdict: str, failed: int | None
) -> None:
    """A test that cannot be made is no pass; one of another batch may be the one that failed."""
    edits = every(put("submission_division", division))

    def another_batch(run: Run) -> None:
        put("submission_division", division)(run)
        put("global_batch_size", 1632)(run)
        if failed:
            lost(run)

    folder = submission(tmp_path, edits | {1: another_batch})
    scored = score_folder(folder)
    assert scored.verdict == ("POLICY" if failed else verdict)
    assert rcp_of(scored).passed == bool(failed)
    too_fast = severity(folder, "faster-than-reference")
    assert bool(too_fast) == (scored.verdict == "FAIL")


# --- rulesets -----------------------------------------------------------------------------------


def test_where_the_ruleset_comes_from(tmp_path: Path) -> None:
    for folder, expected, source in (
        ("plain", "4.0.0", "dates in the log"),
        ("v0.7", "4.0.0", "dates in the log"),
        ("v4.0/us/results/v2.1", "4.0.0", "path"),
        ("v2.1/x", "2.1.0", "path"),
        ("training_results_v3.0/x", "3.0.0", "path"),
    ):
        run = good_run("2.0.0" if source == "path" else "4.0.0")
        path = write(tmp_path / folder / "result_0.txt", run)
        check = check_log(path, official=False)
        assert (check.ruleset, check.ruleset_source) == (expected, source)
    assert check_log(path, "1.0", official=False).ruleset == "1.0.0"
    run = good_run()
    since_boot(run)
    check = check_log(write(tmp_path / "plain/result_1.txt", run), official=False)
    assert check.ruleset == benchmark.RULESETS[-1]


def test_v11_is_judged_by_its_round_too(tmp_path: Path) -> None:
    run = good_run("1.1.0")
    drop("weights_initialization")(run)
    check = check_log(write(tmp_path / "result_0.txt", run), "1.1.0", official=False)
    assert check.verdict == "FAIL"
    assert check.round_verdict == "PASS"
