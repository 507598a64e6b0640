"""RunSummary of logs, comparisons of them, and `rn50 log compare`."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.logging.parse import read_log
from rn50.report.compare import amount, compare, read_all
from rn50.report.compare_view import divergence_lines, to_json
from rn50.report.divergence import Divergence, diverge, first_bit
from rn50.report.run_folder import Subject, read_figures, read_folder, read_subjects
from rn50.report.run_summary import RunSummary, show, summarise
from tests.compliance.log_text import Run, drop, find, good_run, last, meta, put, write

SHARED = Path(os.environ.get("RN50_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
LOGS = SHARED / "data/mlperf_logs"
TABLE = LOGS / "EXPECTED.tsv"
ROWS = [
    row.split("\t")
    for row in (TABLE.read_text().splitlines() if TABLE.is_file() else [])
    if row.startswith("logs/")
]
RULESETS = ("0.6.0", "0.7.0", "1.1.0", "4.0.0")
EPOCHS = range(3, 36, 4)


def of(tmp_path: Path, *edits: Callable[[Run], object], ruleset: str = "4.0.0") -> RunSummary:
    run = good_run(ruleset)
    for edit in edits:
        edit(run)
    return summarise(read_log(write(tmp_path / "log.txt", run, ruleset)).events)


def with_curve(curve: Callable[[int], float]) -> Run:
    run = good_run()
    for record in run:
        if record.key == "eval_accuracy":
            record.value = curve(record.metadata["epoch_num"])
    return run


def submission(folder: Path, *runs: Run) -> Subject:
    folder.mkdir()
    for number, run in enumerate(runs):
        write(folder / f"result_{number}.txt", run)
    return read_folder(folder)


def invoke(*arguments: str) -> tuple[int, str, str]:
    """The commands in this process: exit code, stdout, stderr; a UserError is exit 2 in main."""
    result = CliRunner().invoke(app, ["log", *arguments])
    if isinstance(result.exception, UserError):
        return 2, result.stdout, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


# --- the figures of one log -----------------------------------------------------------------------


@pytest.mark.parametrize("ruleset", RULESETS)
def test_clocks_are_seconds_in_every_format(tmp_path: Path, ruleset: str) -> None:
    run = of(tmp_path, ruleset=ruleset)
    assert run.init_s == pytest.approx(60, abs=0.3)
    assert run.start_gap_s == pytest.approx(0.010)
    assert run.epoch_s == pytest.approx(1.0)
    assert run.eval_s == pytest.approx(0.5)
    assert run.run_s is not None
    assert run.run_s == pytest.approx(35 * 1.0 + 9 * 0.5, abs=0.2)
    assert run.reached is not None
    assert (run.reached.epoch, run.reached.accuracy) == (35, 0.7592)
    assert run.reached.time_s == pytest.approx(run.run_s, abs=0.01)
    assert [one.epoch for one in run.evaluations] == list(EPOCHS)


def test_throughput_leaves_out_evaluations(tmp_path: Path) -> None:
    assert of(tmp_path).images_per_s == pytest.approx(1_281_167)


def test_optimizers_share_the_names_of_their_parameters(tmp_path: Path) -> None:
    names = []
    for optimizer in ("lars", "sgd"):
        path = write(tmp_path / "log.txt", good_run(optimizer=optimizer))
        names.append(set(summarise(read_log(path).events).parameters))
    assert names[0] - names[1] == {"epsilon"}
    assert names[1] - names[0] == {"model_bn_span"}
    assert {"base_learning_rate", "momentum", "weight_decay", "optimizer"} <= names[0] & names[1]


def test_the_old_format_names_the_same_parameters(tmp_path: Path) -> None:
    old, new = of(tmp_path, ruleset="0.6.0").parameters, of(tmp_path).parameters
    assert old["base_learning_rate"] == new["base_learning_rate"] == 10.5
    assert old["learning_rate_warmup_epochs"] == new["learning_rate_warmup_epochs"] == 2


def test_copies_by_other_ranks_change_nothing(tmp_path: Path) -> None:
    single = of(tmp_path)

    def by_four_ranks(run: Run) -> None:
        run[:] = [record for record in run for _ in range(4)]

    assert of(tmp_path, by_four_ranks) == single


def test_ranks_that_disagree_are_all_shown(tmp_path: Path) -> None:
    def disagree(run: Run) -> None:
        at = run.index(find(run, "global_batch_size"))
        run.insert(at, type(run[at])("global_batch_size", 1536, run[at].time_ms))

    assert of(tmp_path, disagree).parameters["global_batch_size"] == [1536, 3264]


@pytest.mark.parametrize("value", [None, "0.7", float("nan"), 75.9, -0.1, True, {}, 10**30])
def test_an_accuracy_that_is_no_fraction_is_no_evaluation(tmp_path: Path, value: object) -> None:
    run = of(tmp_path, put("eval_accuracy", value))
    assert run.evaluations == ()
    assert run.reached is None and run.best is None


def test_an_evaluation_after_run_stop_does_not_count(tmp_path: Path) -> None:
    def late(run: Run) -> None:
        record = last(run, "eval_accuracy")
        run.remove(record)
        run.append(record)

    run = of(tmp_path, late)
    assert run.evaluations[-1].accuracy == 0.7592
    assert run.reached is None


@pytest.mark.parametrize("unit", ["epochs", "blocks", "evaluations"])
def test_time_per_epoch_from_what_the_log_has(tmp_path: Path, unit: str) -> None:
    gone = {
        "epochs": ("block_start", "block_stop"),
        "blocks": ("epoch_start", "epoch_stop"),
        "evaluations": ("epoch_start", "epoch_stop", "block_start", "block_stop"),
    }[unit]
    run = of(tmp_path, drop(*gone))
    assert sum(one.epochs for one in run.epochs) == 35
    assert run.epoch_s == pytest.approx(1.0 if unit == "epochs" else 1.125, abs=0.01)


def test_no_epoch_numbers_at_all(tmp_path: Path) -> None:
    run = of(
        tmp_path, meta("eval_accuracy", "epoch_num", ...), meta("eval_start", "epoch_num", ...)
    )
    assert len(run.evaluations) == 9
    assert all(one.epoch is None for one in run.evaluations)


def test_zero_stamps_are_no_times(tmp_path: Path) -> None:
    def unstamped(run: Run) -> None:
        find(run, "init_start").time_ms = 0

    assert of(tmp_path, unstamped).init_s is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (38.0, "38"),
        (5e-05, "5e-05"),
        (True, "true"),
        (None, "null"),
        ("a\x1b[31mb\u202ec\nd", "a\\x1b[31mb\\u202ec\\nd"),
        ("x" * 500, "x" * 199 + "…"),
        (float("nan"), "NaN"),
        ({"a": [1]}, '{"a": [1]}'),
    ],
)
def test_values_for_people(value: object, text: str) -> None:
    assert show(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "-"),
        (7336.0, "s", "7,336.0 s"),
        (70.4, "s", "70.40 s"),
        (0.0014, "s", "0.001 s"),
        (3389123.4, "images/s", "3,389,123 images/s"),
        (0.75922, "", "0.75922"),
    ],
)
def test_amounts(value: float | None, unit: str, text: str) -> None:
    assert amount(value, unit) == text


# --- which logs a path means ----------------------------------------------------------------------


def test_a_tree_of_submissions_is_a_subject_each(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        for number in (0, 10, 2):
            write(tmp_path / name / f"result_{number}.txt", good_run())
    subjects = read_subjects(tmp_path)
    assert [s.path.name for s in subjects] == ["a", "b"]
    assert [log.path.name for log in subjects[0].logs] == [
        "result_0.txt",
        "result_2.txt",
        "result_10.txt",
    ]


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere.txt", good_run())
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "result_0.txt").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"result_0\.txt expected"):
        read_subjects(folder)


def test_a_log_that_cannot_be_read_among_others_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "result_1.txt").write_text("nothing\n")
    write(tmp_path / "result_0.txt", good_run())
    (subject,) = read_subjects(tmp_path)
    assert len(subject.logs) == 1 and len(subject.files) == 2
    assert "result_1.txt" in subject.notes[0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", '{"kind": "train", "loss": 1}\n{"torn'),
        ("metrics.jsonl", "[" * 100_000),
        ("timeline.json", '{"traceEvents": 7}'),
        ("timeline.json", '{"traceEvents": [{"ph": "X", "ts": "now", "dur": 1}, 5, null]}'),
        ("timeline.json", "no JSON"),
        ("environment.json", "[]"),
        ("result.json", '{"target": "high"}'),
        ("origins.json", '{"seed": {"a": 1}}'),
        ("config.yaml", "no: config"),
        ("config.yaml", "!!python/object/apply:os.system [ls]"),
    ],
)
def test_broken_files_beside_a_log_do_not_stop_a_comparison(
    tmp_path: Path, name: str, content: str
) -> None:
    write(tmp_path / "result_0.txt", good_run())
    (tmp_path / "config.yaml").write_text(load("smoke").to_yaml())
    (tmp_path / name).write_text(content)
    subjects = read_all([tmp_path, tmp_path])
    assert json.dumps(to_json(compare(subjects)), allow_nan=False)


# --- side by side ---------------------------------------------------------------------------------


def test_differences_are_marked(tmp_path: Path) -> None:
    other = good_run()
    find(other, "lars_opt_base_learning_rate").value = 9.0
    find(other, "seed").value = 1
    paths = [write(tmp_path / "a", good_run()), write(tmp_path / "b", other)]
    comparison = compare(read_all(paths))
    assert {row.name for row in comparison.parameters if row.differs} == {
        "base_learning_rate",
        "seed",
    }
    (rate,) = [row for row in comparison.parameters if row.name == "base_learning_rate"]
    assert rate.cells == ("10.5", "9")


def test_what_one_log_lacks_is_no_difference(tmp_path: Path) -> None:
    run = good_run()
    drop("gradient_accumulation_steps")(run)
    comparison = compare(read_all([write(tmp_path / "a", good_run()), write(tmp_path / "b", run)]))
    (row,) = [r for r in comparison.parameters if r.name == "gradient_accumulation_steps"]
    assert row.cells == ("1", "-") and not row.differs


def test_the_unit_of_decay_steps_is_not_known(tmp_path: Path) -> None:
    comparison = compare(read_all([write(tmp_path / "a", good_run())]))
    assert any("decay_steps (unit not logged)" in row.name for row in comparison.parameters)


def test_configs_of_run_folders_are_compared(tmp_path: Path) -> None:
    for name, override in (("a", "seed=1"), ("b", "seed=2")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "result_0.txt", good_run())
        (tmp_path / name / "config.yaml").write_text(load("smoke", [override]).to_yaml())
    comparison = compare(read_all([tmp_path / "a", tmp_path / "b"]))
    assert [(row.name, row.cells) for row in comparison.config] == [("seed", ("1", "2"))]
    assert comparison.subjects[0].runs[0].target == load("smoke").run.eval.target


def test_the_same_file_is_called_the_same_run(tmp_path: Path) -> None:
    one = write(tmp_path / "a", good_run())
    other = Path(shutil.copy(one, tmp_path / "b"))
    (line,) = compare(read_all([one, other])).same_files
    assert "A and B" in line and "the same run" in line


def test_too_many(tmp_path: Path) -> None:
    path = write(tmp_path / "a", good_run())
    with pytest.raises(UserError, match="1 to 100"):
        compare(read_all([path]) * 101)


# --- where curves part ----------------------------------------------------------------------------


def flat(epoch: int) -> float:
    return 0.5


def found(tmp_path: Path, left: list[Run], right: list[Run]) -> Divergence:
    return diverge(submission(tmp_path / "l", *left), submission(tmp_path / "r", *right))


def test_one_run_each_is_held_against_the_sampling_error(tmp_path: Path) -> None:
    limit = 3 * math.sqrt(0.25 / 50_000) * math.sqrt(2)

    def just_over(epoch: int) -> float:
        return 0.5 + limit * (1.01 if epoch >= 11 else 0.99)

    result = found(tmp_path, [with_curve(flat)], [with_curve(just_over)])
    assert result.parting is not None
    assert result.parting.epoch == 11
    assert result.parting.limit == pytest.approx(limit, rel=1e-3)
    assert result.basis == "sampling error alone: one run each"
    assert result.compared == 9 and result.interpolated == 0


def test_runs_that_scatter_hide_a_difference(tmp_path: Path) -> None:
    runs = [with_curve(lambda e, shift=shift: 0.5 + shift) for shift in (-0.01, 0.0, 0.01)]
    near, far = with_curve(lambda e: 0.53), with_curve(lambda e: 0.54)
    limit = 3 * 0.01 * math.sqrt(1 / 3 + 1)
    assert 0.03 < limit < 0.04
    assert found(tmp_path, runs, [near]).parting is None
    shutil.rmtree(tmp_path / "l")
    shutil.rmtree(tmp_path / "r")
    result = found(tmp_path, runs, [far])
    assert result.parting is not None and result.parting.epoch == 3
    assert result.parting.limit == pytest.approx(limit)
    assert result.basis == "run-to-run spread"


def test_other_cadences_are_interpolated(tmp_path: Path) -> None:
    def shifted(run: Run) -> Run:
        for record in run:
            if record.key == "eval_accuracy":
                record.metadata["epoch_num"] += 1
        return run

    def line(epoch: int) -> float:
        return 0.2 + epoch / 100

    result = found(tmp_path, [with_curve(line)], [shifted(with_curve(lambda e: line(e + 1)))])
    assert result.parting is None
    assert result.compared == result.interpolated == 8


def test_no_common_epoch(tmp_path: Path) -> None:
    run = good_run()
    drop("eval_accuracy")(run)
    result = found(tmp_path, [good_run()], [run])
    assert result.compared == 0 and result.parting is None


# --- the first bit --------------------------------------------------------------------------------


def run_folder(folder: Path, losses: list[float], seed: int = 1) -> Subject:
    folder.mkdir()
    write(folder / "result_0.txt", good_run())
    (folder / "config.yaml").write_text(load("smoke", [f"seed={seed}"]).to_yaml())
    records = [
        {"kind": "train", "step": 20 * (i + 1), "loss": loss} for i, loss in enumerate(losses)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return read_folder(folder)


def test_the_first_loss_that_differs_in_a_bit(tmp_path: Path) -> None:
    next_up = math.nextafter(2.0, 3)
    left = run_folder(tmp_path / "l", [3.0, 2.0, 1.0])
    bit = first_bit(left, run_folder(tmp_path / "r", [3.0, next_up, 1.0]))
    assert bit is not None
    assert (bit.where, bit.left, bit.right) == ("loss at step 40", 2.0, next_up)


def test_all_bits_alike(tmp_path: Path) -> None:
    left = run_folder(tmp_path / "l", [3.0, 2.0])
    bit = first_bit(left, run_folder(tmp_path / "r", [3.0, 2.0, 1.0]))
    assert bit is not None and bit.where is None and bit.compared == 2


def test_other_seeds_are_not_compared_bit_by_bit(tmp_path: Path) -> None:
    left = run_folder(tmp_path / "l", [3.0])
    assert first_bit(left, run_folder(tmp_path / "r", [3.0], seed=2)) is None


def test_bare_logs_of_one_config_are_compared_by_their_accuracies(tmp_path: Path) -> None:
    other = good_run()
    last(other, "eval_accuracy").value = math.nextafter(0.7592, 1)
    one = Subject(tmp_path, (), (read_figures(write(tmp_path / "a", good_run()), None),), None, ())
    two = Subject(tmp_path, (), (read_figures(write(tmp_path / "b", other), None),), None, ())
    bit = first_bit(one, two)
    assert bit is not None and bit.where == "accuracy of epoch 35"


# --- the command ----------------------------------------------------------------------------------


def test_the_table(tmp_path: Path) -> None:
    other = good_run()
    find(other, "lars_opt_base_learning_rate").value = 9.0
    code, out, err = invoke(
        "compare", str(write(tmp_path / "a", good_run())), str(write(tmp_path / "b", other))
    )
    assert code == 0 and not err
    (line,) = [line for line in out.splitlines() if "base_learning_rate" in line]
    assert line.split() == ["*", "base_learning_rate", "10.5", "9"]
    assert "epoch 35" in out and "0.75920 at 39." in out
    assert "the curves agree within 3 standard deviations" in out


def test_json(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a", good_run()))
    code, out, _ = invoke("compare", "--json", path, path)
    content = json.loads(out)
    assert code == 0
    assert [s["letter"] for s in content["subjects"]] == ["A", "B"]
    (run,) = content["subjects"][0]["runs"]
    assert run["epochs_to_target"] == 35 and run["best_accuracy"] == 0.7592
    assert run["parameters"]["global_batch_size"] == 3264
    assert len(run["evaluations"]) == 9 and len(run["epoch_times_s"]) == 35
    assert content["divergences"][0]["parting"] is None
    assert "same run" in content["same_files"][0]


@pytest.mark.parametrize("as_json", [True, False])
def test_hostile_values_reach_no_terminal(tmp_path: Path, as_json: bool) -> None:
    run = good_run()
    hostile = "\x1b]0;owned\x07[bold]x[/bold]\r\u202e"
    for key in ("submission_org", "seed", "opt_name", "lars_opt_momentum"):
        find(run, key).value = hostile
    find(run, "eval_accuracy").metadata["epoch_num"] = hostile
    last(run, "run_stop").metadata["status"] = hostile
    path = str(write(tmp_path / "a", run))
    code, out, err = invoke("compare", path, path, *(["--json"] if as_json else []))
    assert code == 0
    assert not [c for c in out + err if not c.isprintable() and c != "\n"]
    assert "[bold]x[/bold]" in out


@pytest.mark.parametrize("content", ["", "nothing\n", ":::MLPv0.5.0 resnet\n"])
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(content)
    code, out, err = invoke("compare", str(path))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and str(path) in err


def test_a_missing_path_is_exit_2(tmp_path: Path) -> None:
    code, _, err = invoke("compare", str(tmp_path / "none"))
    assert code == 2 and "No such file" in err


def test_a_folder_without_logs_is_exit_2(tmp_path: Path) -> None:
    code, _, err = invoke("compare", str(tmp_path))
    assert code == 2 and "result_0.txt expected" in err


# --- published logs, read in place ----------------------------------------------------------------


@pytest.mark.skipif(not ROWS, reason="no published logs beside this checkout")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_figures_of_published_logs(row: list[str]) -> None:
    path = LOGS / row[0]
    if "NO_RECORDS" in row[12]:
        with pytest.raises(UserError):
            read_figures(path, None)
        return
    run = read_figures(path, None).figures
    assert (run.status or "-") == row[6]
    if row[9] != "-":
        assert run.run_s == pytest.approx(float(row[9]), abs=0.01)
        assert run.evaluations[-1].epoch == pytest.approx(float(row[8]))
    if row[7] != "-":
        assert run.evaluations[-1].accuracy == pytest.approx(float(row[7]), abs=1e-5)
    assert run.epoch_s is not None and run.epoch_s > 0.05
    if row[10] != "-":
        assert run.parameters["global_batch_size"] == int(row[10])


@pytest.mark.skipif(not ROWS, reason="no published logs beside this checkout")
def test_published_logs_of_all_rounds_side_by_side() -> None:
    subjects = read_subjects(LOGS / "logs")
    assert len(subjects) > 15
    assert any("Alibaba" in note for note in subjects[0].notes)
    comparison = compare(subjects)
    assert len(comparison.divergences) == len(subjects) - 1
    assert divergence_lines(comparison)
    assert json.dumps(to_json(comparison), allow_nan=False)


def test_what_the_check_fails_is_said_beside_its_times(tmp_path: Path) -> None:
    good, bad = good_run(), good_run()
    last(bad, "run_stop").metadata["status"] = "aborted"
    paths = [str(write(tmp_path / name, run)) for name, run in (("good", good), ("bad", bad))]
    code, out, _ = invoke("compare", *paths)
    assert code == 0
    row = next(line for line in out.splitlines() if "log check" in line)
    assert row.split()[-2:] == ["PASS", "FAIL"]
    _, out, _ = invoke("compare", "--json", *paths)
    assert [subject["verdict"] for subject in json.loads(out)["subjects"]] == ["PASS", "FAIL"]
    shown = [invoke("show", path)[1] for path in paths]
    assert "log check" not in shown[0]
    assert "FAIL: run_stop (line" in shown[1]
    assert json.loads(invoke("show", "--json", paths[1])[1])["verdict"] == "FAIL"
