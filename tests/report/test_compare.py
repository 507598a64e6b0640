"""Logs, runs and submissions side by side: `rn50 log compare`, its columns, its page."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rn50.cli.main import app
from rn50.compliance.score import score_folder
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.report.charts import COLOURS
from rn50.report.compare import (
    Column,
    Comparison,
    compare,
    group_by,
    letter,
    order_of,
    read_all,
)
from rn50.report.html import render_comparison
from rn50.report.plots import page_charts
from rn50.report.reproduction import are_of_one_config, first_bit
from rn50.report.run_folder import Subject, read_folder, read_subjects
from tests.compliance.log_text import Run, drop, find, good_run, last, vary, write
from tests.conftest import refused, write_metrics
from tests.report.conftest import Measure
from tests.report.test_report import LOGS, Shape, hostile_run


def compared(*paths: Path) -> Comparison:
    return compare(read_all(paths))


def column(comparison: Comparison, key: str) -> Column:
    (found,) = [one for one in comparison.columns if one.key == key]
    return found


def with_curve(curve: Callable[[int], float]) -> Run:
    run = good_run()
    for record in run:
        if record.key == "eval_accuracy":
            record.value = curve(record.metadata["epoch_num"])
    return run


def invoke(*arguments: str) -> tuple[int, str, str]:
    """The commands in this process: exit code, stdout, stderr; a UserError is exit 2 in main."""
    result = CliRunner().invoke(app, ["log", *arguments])
    if isinstance(result.exception, UserError):
        return 2, result.stdout, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), (
        result.exception
    )
    return result.exit_code, result.stdout, result.stderr


# --- which logs a path means ----------------------------------------------------------------------


def test_a_tree_of_submissions_is_a_subject_each(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        for number in (0, 10, 2):
            write(tmp_path / name / f"result_{number}.txt", good_run())
    subjects = read_subjects(tmp_path)
    assert [s.path.name for s in subjects] == ["a", "b"]
    assert [log.path.stem for log in subjects[0].logs] == [
        "result_0",
        "result_2",
        "result_10",
    ]


def test_a_log_that_cannot_be_read_among_others_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "result_1.txt").write_text("nothing\n")
    write(tmp_path / "result_0.txt", good_run())
    (subject,) = read_subjects(tmp_path)
    assert len(subject.logs) == 1
    assert len(subject.files) == 2
    assert "result_1.txt" in subject.notes[0]


# --- columns --------------------------------------------------------------------------------------


def test_what_differs_is_a_column_and_what_one_lacks_is_not(tmp_path: Path) -> None:
    other = good_run()
    find(other, "lars_opt_base_learning_rate").value = 9.0
    find(other, "seed").value = 1
    drop("gradient_accumulation_steps")(other)
    found = compared(write(tmp_path / "a", good_run()), write(tmp_path / "b", other))
    shown = [one.title for one in found.table if one.group == "hyper-parameters"]
    assert sorted(shown) == ["base_learning_rate", "seed"]
    assert column(found, "base_learning_rate").cells == ("10.5", "9")
    assert ("gradient_accumulation_steps", "1") in found.shared


def test_a_seed_of_63_bits_is_shown_whole(tmp_path: Path) -> None:
    run = good_run()
    seed = (1 << 63) - 1
    find(run, "seed").value = seed
    found = compared(write(tmp_path / "a", good_run()), write(tmp_path / "b", run))
    assert column(found, "seed").cells[1] == str(seed)
    assert column(found, "seed").values[1] == seed


def test_a_value_of_log_and_config_is_one_column(tmp_path: Path) -> None:
    for number in range(1, 5):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = good_run()
        find(run, "seed").value = number
        write(folder / "result_0.txt", run)
        overrides = [
            f"seed={number}",
            f"batch.per_rank={number}",
            f"data.path=/d/{number}",
        ]
        (folder / "config.yaml").write_text(load("smoke", overrides).to_yaml())
    found = compared(tmp_path)
    assert [
        (one.group, one.cells) for one in found.columns if one.key.endswith("seed")
    ] == [("hyper-parameters", ("1", "2", "3", "4"))]
    assert [one.key for one in found.table if one.group == "config"] == [
        "batch.per_rank"
    ]
    assert found.subjects[0].runs[0].target == load("smoke").run.eval.target


def test_numbers_stand_before_texts() -> None:
    mixed = Column(
        "config",
        "x",
        "x",
        (),
        (2.0, "auto", None, 10.0, "auto", -1.0),
    )
    assert mixed.places == (1, 3, None, 2, 3, 0)
    assert not mixed.is_number
    assert order_of([mixed], "x", 6) == [5, 0, 3, 1, 4, 2]
    assert order_of([mixed], "-x", 6) == [1, 4, 3, 0, 5, 2]


def test_a_misspelt_column_gets_a_suggestion(tmp_path: Path) -> None:
    write(tmp_path / "result_0.txt", good_run())
    comparison = compared(tmp_path)
    with refused("found epochs; did you mean epoch_s"):
        order_of(comparison.columns, "epochs", 1)
    with refused("found base_learn_rate; did you mean base_learning_rate"):
        group_by(comparison, "base_learn_rate")
    with refused(r"found nosuch$"):
        order_of(comparison.columns, "nosuch", 1)


# --- groups ---------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two learning rates with two seeds each; the last run misses the target."""
    for number in range(4):
        folder = tmp_path / "study" / str(number)
        folder.mkdir(parents=True)
        run = with_curve(lambda epoch, n=number: 0.02 * epoch + 0.03 * n)
        last(run, "run_stop").time_ms += 1000 * number
        if number == 3:
            run = with_curve(lambda epoch: 0.5)
        write(folder / "result_0.txt", run)
        overrides = [f"seed={number}", f"optimizer.base_lr={0.2 - 0.1 * (number // 2)}"]
        overrides += ["eval.target=0.7", "system.ranks_per_node=4"]
        (folder / "config.yaml").write_text(load("smoke", overrides).to_yaml())
    return tmp_path / "study"


def test_runs_are_grouped_by_a_key_of_their_configs(
    study: Path, tmp_path: Path
) -> None:
    page = tmp_path / "study.html"
    options = ("compare", str(study), "--by", "optimizer.base_lr", "--html", str(page))
    code, out, _ = invoke(*options)
    slow, fast = group_by(compared(study), "optimizer.base_lr")
    assert code == 0
    assert (slow.value, slow.rows) == ("0.1", (2, 3))
    assert (slow.reached, slow.runs, fast.reached) == (1, 2, 2)
    mean, least, most = fast.spreads["time_to_train_s"]
    assert most - least == pytest.approx(1)
    assert mean == pytest.approx((most + least) / 2)
    # A run that missed its target has no time to train.
    assert slow.spreads["time_to_train_s"][1] == pytest.approx(most + 1)
    columns = {column.key: column for column in compared(study).columns}
    assert [time_s is None for time_s in columns["time_to_train_s"].values].count(
        True
    ) == 1
    assert slow.spreads["best_accuracy"][1] == 0.5
    assert "optimizer.base_lr" in Shape(page.read_text()).text
    legend = re.findall(r">(A|base_lr [^<>]*)</text>", page.read_text())
    assert legend[:2] == ["base_lr 0.1", "base_lr 0.2"]
    assert "A" not in legend
    colours = re.findall(r'<b style="border-color: (.*?)">', page.read_text())
    assert colours == [COLOURS[1], COLOURS[1], COLOURS[0], COLOURS[0]]
    assert "mean (range)" in out
    (machine,) = group_by(compared(study), "system.name")
    assert machine.value == load("smoke").run.system.name
    code, _, error = invoke(
        "compare",
        str(study),
        "--by",
        "optimizer.base_l",
    )
    assert code == 2
    assert error.endswith("found optimizer.base_l; did you mean optimizer.base_lr?")


def test_submissions_are_sorted_by_their_scores(tmp_path: Path) -> None:
    for name, minutes in (("slow", 10), ("fast", 9)):
        (tmp_path / name).mkdir()
        for number in range(5):
            run = vary(good_run(), number)
            last(run, "run_stop").time_ms += 60_000 * minutes + number
            write(tmp_path / name / f"result_{number}.txt", run)
    out = invoke("compare", str(tmp_path), "--sort", "score_min", "--json")[1]
    found = [(row["score_min"], row["rcp_factor"]) for row in json.loads(out)]
    scores = [score_folder(tmp_path / name) for name in ("fast", "slow")]
    assert found == [(score.score_min, score.scaling_factor) for score in scores]


def test_a_pipe_that_can_be_read_once_has_no_figures(tmp_path: Path) -> None:
    """The verdict beside them was that of an empty file."""
    reader, writer = os.pipe()
    os.write(writer, write(tmp_path / "log.txt", good_run()).read_bytes())
    os.close(writer)
    code, _, error = invoke("show", f"/dev/fd/{reader}")
    os.close(reader)
    assert code == 2
    assert "found a pipe" in error


def test_what_is_the_same_in_all_rows_is_said_once(study: Path) -> None:
    comparison = compared(study)
    same = dict(comparison.shared)
    assert same["accelerators"] == "4"
    assert "init, s" in same
    assert not set(same) & {one.title for one in comparison.table}
    rates, each = (
        column(comparison, key).values for key in ("images_per_s", "images_per_s_each")
    )
    assert each[0] is not None
    assert each[0] == pytest.approx(float(rates[0] or 0) / 4)


def test_the_curves_near_the_target_have_a_chart(study: Path) -> None:
    runs = [("run", subject) for subject in read_all([study])]
    charts = {plot.title: plot.chart for plot in page_charts(runs)["accuracy"]}
    near = charts["Top-1 accuracy near the target"]
    labels = re.findall(r">([\d.]+)</text>", near)
    assert min(map(float, labels)) >= 0.68  # the target is 0.7, and epochs are larger
    far = page_charts(runs[3:])
    assert [plot.title for plot in far["accuracy"]] == [
        "Top-1 accuracy by epoch",
        "Top-1 accuracy by time",
    ]


# --- the first bit --------------------------------------------------------------------------------


def run_folder(folder: Path, losses: list[float], seed: int = 1) -> Subject:
    folder.mkdir()
    write(folder / "result_0.txt", good_run())
    (folder / "config.yaml").write_text(load("smoke", [f"seed={seed}"]).to_yaml())
    records = [
        {"kind": "train", "step": 20 * (i + 1), "epoch": i + 1, "loss": loss}
        for i, loss in enumerate(losses)
    ]
    write_metrics(folder, records)
    return read_folder(folder)


def test_the_first_loss_that_differs_in_a_bit(tmp_path: Path) -> None:
    next_up = math.nextafter(2.0, 3)
    left = run_folder(tmp_path / "l", [3.0, 2.0])
    right = run_folder(tmp_path / "r", [3.0, 2.0, 1.0])
    assert first_bit(left, right) == (2, None, None, None)
    assert are_of_one_config(left, right)
    other = run_folder(tmp_path / "other", [3.0, next_up, 1.0], seed=2)
    assert first_bit(left, other) == (2, "loss at step 40", 2.0, next_up)
    assert not are_of_one_config(left, other)


def test_bare_logs_of_one_config_are_compared_by_their_accuracies(
    tmp_path: Path,
) -> None:
    other = good_run()
    last(other, "eval_accuracy").value = math.nextafter(0.7592, 1)
    one, two = read_all(
        [write(tmp_path / "a", good_run()), write(tmp_path / "b", other)]
    )
    assert first_bit(one, two).where == "accuracy of epoch 35"


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path) -> list[str]:
    """24 logs: the later a log, the longer its run and the lower its learning rate; the third
    misses the target, the fourth has no learning rate."""
    paths = []
    for number in range(24):
        run = good_run()
        last(run, "run_stop").time_ms += 1000 * number
        find(run, "lars_opt_base_learning_rate").value = 10.5 - number / 4
        find(
            run, "submission_platform"
        ).value = f"machine_{number % 3}_with_a_long_name"
        if number == 2:
            last(run, "eval_accuracy").value = 0.7
        if number == 3:
            run.remove(find(run, "lars_opt_base_learning_rate"))
        paths.append(str(write(tmp_path / f"log_{number:02}.txt", run)))
    return paths


def test_each_run_is_a_row(many: list[str]) -> None:
    code, out, err = invoke("compare", *many)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if re.match(r"[A-X]  ", line)]
    tables = len(rows) // 24
    assert [row[0] for row in rows] == [chr(65 + n) for n in range(24)] * tables
    assert tables > 1
    assert rows[23][2:4] == ["PASS", "62.57"]
    assert "FAIL" in rows[2]
    words = " ".join(out.split())
    assert "the same in all: " in words
    assert "; learning_rate_warmup_epochs 2; " in words


def test_rows_are_sorted_and_what_has_no_value_comes_last(many: list[str]) -> None:
    order = {}
    for sort in ("base_learning_rate", "-base_learning_rate", "log_check"):
        content = json.loads(invoke("compare", "--json", *many[:6], "--sort", sort)[1])
        order[sort] = "".join(row["letter"] for row in content)
    assert list(order.values()) == ["FECBAD", "ABCEFD", "CDABEF"]
    row = content[-1]
    assert row["log_check"] == "PASS"
    assert row["global_batch_size"] == 3264
    assert row["epochs_to_target"] == 35
    assert row["path"] == many[5]
    code, out, err = invoke(
        "compare",
        *many[:4],
        "--sort",
        "-accuracy",
    )
    assert (code, out) == (2, "")
    assert err.startswith("--sort: one of log_check, ")
    assert "mean best_accuracy?" in err


def test_a_table_fits_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many values differ: rich leaves out what it cannot fold into so many columns."""
    for preset in ("smoke", "dgxh100_8"):
        folder = tmp_path / preset
        folder.mkdir()
        write(folder / "result_0.txt", good_run())
        (folder / "config.yaml").write_text(load(preset, ["seed=1"]).to_yaml())
    tables = {}
    for terminal in ("0", "1"):
        for name, value in (
            ("COLUMNS", "80"),
            ("TTY_COMPATIBLE", terminal),
            ("NO_COLOR", "1"),
        ):
            monkeypatch.setenv(name, value)
        out = re.sub(r"\x1b\[[0-9;]*m", "", invoke("compare", str(tmp_path))[1])
        tables[terminal] = out.split("the same in all")[0]
    assert (
        max(map(len, tables["1"].splitlines()))
        <= 80
        < max(map(len, tables["0"].splitlines()))
    )
    assert sorted("".join(tables["1"].split())) == sorted("".join(tables["0"].split()))


# --- the page -------------------------------------------------------------------------------------


def page_of(paths: list[str], sort: str | None = None) -> str:
    comparison = compared(*map(Path, paths))
    return render_comparison(
        comparison, order_of(comparison.columns, sort, len(paths)), sort
    )


def test_hostile_text_is_text_and_the_one_script_is_ours(
    tmp_path: Path, many: list[str]
) -> None:
    paths = [*many[:3], str(write(tmp_path / "hostile.txt", hostile_run()))]
    page = page_of(paths)
    shape = Shape(page)
    assert shape.tags.count("script") == 1
    assert not {"img", "iframe", "object", "link", "base", "form"} & set(shape.tags)
    assert not [
        name for name, _ in shape.attributes if name.startswith("on") or name == "src"
    ]
    assert '<script>document.title="owned"</script>' in shape.text  # as text
    assert not [c for c in page if not c.isprintable() and c != "\n"]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (policy,) = [
        value for name, value in shape.attributes if value and "default-src" in value
    ]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    assert page == page_of(paths)


CLICKS = """(() => {
  const letters = () =>
    [...document.querySelectorAll(".runs tbody b")].map(one => one.textContent).join("");
  const found = {
    width: document.documentElement.scrollWidth,
    sorted_by: document.querySelector("[aria-sort]").innerText,
    orders: [letters()],
  };
  const heads = [...document.querySelectorAll(".keys button")];
  const rate = heads.find(one => one.innerText.includes("base"));
  for (let click = 0; click < 2; click++) {
    rate.click();
    found.orders.push(letters());
  }
  return found;
})()"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_a_click_sorts_the_page(
    measure: Measure, many: list[str], tmp_path: Path, width: int
) -> None:
    page = tmp_path / "runs.html"
    page.write_text(page_of(many, "-time_to_train_s"))
    found = measure(page, CLICKS, width=width, dark=width == 390)
    assert found["width"] == width
    assert found["sorted_by"].startswith("time to")
    letters = "".join(map(letter, range(24)))
    reached = letters.replace("C", "")
    known = letters.replace("D", "")
    assert found["orders"] == [reached[::-1] + "C", known[::-1] + "D", known + "D"]


@pytest.mark.slow
@pytest.mark.skipif(not LOGS.is_dir(), reason="no published logs beside this checkout")
def test_published_logs_of_all_rounds_are_rows(tmp_path: Path) -> None:
    page = tmp_path / "runs.html"
    code, _, err = invoke(
        "compare", str(LOGS), "--sort", "time_to_train_s", "--html", str(page)
    )
    assert code == 0
    assert "Alibaba" in err
    assert page.read_text().count('<th scope="row" data-place') > 15
