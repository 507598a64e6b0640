"""Logs, runs and submissions side by side: `rn50 log compare`, its columns, its page."""

import base64
import hashlib
import json
import math
import os
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
from rn50.report.html import render_comparison, render_report
from rn50.report.plots import page_charts
from rn50.report.reproduction import are_of_one_config, first_bit, repeat_line
from rn50.report.run_records import Subject, read_folder, read_subjects
from tests.cli.test_check import log
from tests.compliance.log_text import (
    Run,
    all_of,
    drop,
    find,
    good_run,
    last,
    put,
    score_folder,
    shift,
    write,
)
from tests.compliance.test_rules import nth
from tests.compliance.test_submission import every, submission
from tests.conftest import in_this_process, refused, write_metrics
from tests.report.conftest import Measure, images_of, write_config
from tests.report.test_report import ACTIVE, LOGS, Shape, hostile_run


def compared(*paths: Path) -> Comparison:
    return compare(read_all(paths))


def column(comparison: Comparison, key: str) -> Column:
    return {column.key: column for column in comparison.columns}[key]


def titles(comparison: Comparison, group: str) -> list[str]:
    names = []
    for column in comparison.table:
        if column.group == group:
            names.append(column.title)
    return names


def with_curve(curve: Callable[..., float]) -> Run:
    run = good_run()
    for record in all_of(run, "eval_accuracy"):
        record.value = curve(record.metadata["epoch_num"])
    return run


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `rn50 log`."""
    done = in_this_process(("log", *arguments))
    return done.returncode, done.stdout, done.stderr.strip()


def as_json(*arguments: str) -> list[dict[str, Any]]:
    _, out, _ = invoke("compare", "--json", *arguments)
    return json.loads(out)


# --- which logs a path means ----------------------------------------------------------------------


def test_a_tree_of_submissions_is_a_subject_each(tmp_path: Path) -> None:
    for name in ("b", "a"):
        for number in (0, 10, 2):
            run = good_run()
            find(run, "train_samples").value += number
            if number == 0:
                last(run, "eval_accuracy").value = 0.7
            if number == 2:
                last(run, "eval_accuracy").value = 0.7792
            write(tmp_path / name / f"result_{number}.txt", run)
    subjects = read_subjects(tmp_path)
    names = [subject.path.name for subject in subjects]
    assert names == ["a", "b"]
    logs = [log.path.stem for log in subjects[0].runs]
    assert logs == ["result_0", "result_2", "result_10"]
    page_text = Shape(render_report(subjects[0])).text
    rate = subjects[0].runs[1].images_per_s
    assert f"Throughput{rate:,.0f} images/s" in page_text
    assert "Top-10.7592 target" in page_text


def test_a_log_that_cannot_be_read_among_others_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "result_1.txt").write_text("nothing\n")
    log(tmp_path)
    (subject,) = read_subjects(tmp_path)
    assert len(subject.runs) == 1
    assert len(subject.files) == 2
    assert "result_1.txt" in subject.notes[0]
    assert "1 of 2 runs reached the target." in render_report(subject)
    (group,) = group_by(compare([subject]), "seed")
    assert group.reached == 1
    assert group.runs == 2


# --- columns --------------------------------------------------------------------------------------


def test_what_differs_is_a_column_and_what_one_lacks_is_not(tmp_path: Path) -> None:
    changed = good_run()
    seed = (1 << 63) - 1  # which no float holds
    find(changed, "lars_opt_base_learning_rate").value = 9.0
    find(changed, "seed").value = seed
    last(changed, "run_stop").time_ms += 1_000_000
    drop("gradient_accumulation_steps")(changed)
    both = compared(write(tmp_path / "a", good_run()), write(tmp_path / "b", changed))
    assert titles(both, "hyper-parameters") == ["seed", "base_learning_rate"]
    assert column(both, "base_learning_rate").cells == ["10.5", "9"]
    assert ("gradient_accumulation_steps", "1") in both.shared
    seeds = column(both, "seed")
    assert seeds.cells[1] == str(seed)
    assert seeds.values[1] == seed
    assert column(both, "time_to_train_s").cells == ["39.57", "(1,039.57)"]


def test_a_value_of_log_and_config_is_one_column(tmp_path: Path) -> None:
    for number in range(1, 5):
        folder = tmp_path / str(number)
        log(folder, put("seed", number))
        overrides = f"seed={number} batch.per_rank={number} data.path=/d/{number}"
        config = write_config(folder, *overrides.split())
    runs = compared(tmp_path)
    (seed,) = [column for column in runs.columns if column.key.endswith("seed")]
    assert seed.group == "hyper-parameters"
    assert seed.cells == ["1", "2", "3", "4"]
    assert titles(runs, "config") == ["batch.per_rank"]
    assert runs.subjects[0].runs[0].target == config.run.eval.target


def test_numbers_stand_before_texts() -> None:
    values: list[float | str | None] = [2.0, "auto", None, 10.0, "auto", -1.0]
    mixed = Column("config", "x", "x", [], values)
    assert mixed.places == [1, 3, None, 2, 3, 0]
    assert not mixed.is_number
    assert order_of([mixed], "x", 6) == [5, 0, 3, 1, 4, 2]
    assert order_of([mixed], "-x", 6) == [1, 4, 3, 0, 5, 2]


def test_a_misspelt_column_gets_a_suggestion(tmp_path: Path) -> None:
    comparison = compared(log(tmp_path).parent)
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
        better = 0.03 * number
        run = with_curve(lambda epoch, better=better: 0.02 * epoch + better)
        last(run, "run_stop").time_ms += 1000 * number
        if number == 3:
            run = with_curve(lambda _: 0.5)
        put("submission_division", "open")(run)  # whose target is its own
        write(folder / "result_0.txt", run)
        base_lr = 0.2 - 0.1 * (number // 2)
        write_config(
            folder,
            f"seed={number}",
            f"optimizer.base_lr={base_lr}",
            "eval.target=0.7",
            "system.ranks_per_node=4",
        )
    return tmp_path / "study"


def test_runs_are_grouped_by_a_key_of_their_configs(
    study: Path, tmp_path: Path
) -> None:
    page = tmp_path / "study.html"
    by = ("compare", str(study), "--by")
    html = ("--html", str(page))
    code, out, _ = invoke(*by, "optimizer.base_lr", *html)
    comparison = compared(study)
    slow, fast = group_by(comparison, "optimizer.base_lr")
    assert code == 0
    assert "mean (range)" in out
    assert slow.value == "0.1"
    assert slow.rows == [2, 3]
    assert slow.reached == 1
    assert slow.runs == 2
    assert fast.reached == 2
    mean, shortest_s, longest_s = fast.spreads["time_to_train_s"]
    assert longest_s - shortest_s == pytest.approx(1)
    assert mean == pytest.approx((longest_s + shortest_s) / 2)
    # A run that missed its target has no time to train.
    _, only, _ = slow.spreads["time_to_train_s"]
    assert only == pytest.approx(longest_s + 1)
    times_s = column(comparison, "time_to_train_s").values
    assert times_s.count(None) == 1
    _, worst, _ = slow.spreads["best_accuracy"]
    assert worst == 0.5
    written = page.read_text()
    assert "optimizer.base_lr" in Shape(written).text
    legend = re.findall(r">(A|base_lr [^<>]*)</text>", "".join(images_of(written)))
    assert sorted(legend[:2]) == ["base_lr 0.1", "base_lr 0.2"]
    assert "A" not in legend
    colours = re.findall(r'class="hue" style="background: (.*?)">', written)
    of_slow, of_fast, *_ = COLOURS
    assert colours == [of_fast, of_fast, of_slow, of_slow]
    (machine,) = group_by(comparison, "system.name")
    assert machine.value == load("smoke").run.system.name
    code, _, error = invoke(*by, "optimizer.base_l")
    assert code == 2
    assert error.endswith("found optimizer.base_l; did you mean optimizer.base_lr?")


def test_submissions_are_sorted_by_their_scores(tmp_path: Path) -> None:
    submission(tmp_path / "slow", every(shift("run_stop", 60_000)))
    submission(tmp_path / "fast", every(put("submission_division", "open")))
    rows = as_json(str(tmp_path), "--sort", "score_min")
    for row, name in zip(rows, ("fast", "slow"), strict=True):
        score = score_folder(tmp_path / name)
        assert row["score_min"] == score.score_min
        assert row.get("rcp_factor") == (score.scaling_factor if score.scaled else None)
        assert score.unscaled_min
        assert row["time_to_train_s"] == pytest.approx(60 * score.unscaled_min)
        assert row["global_batch_size"] == 3264


def test_a_pipe_that_can_be_read_once_has_no_figures(tmp_path: Path) -> None:
    """The verdict beside them was that of an empty file."""
    reader, writer = os.pipe()
    os.write(writer, log(tmp_path).read_bytes())
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
    for column_of_table in comparison.table:
        assert column_of_table.title not in same
    rate = column(comparison, "images_per_s").values[0]
    of_each = column(comparison, "images_per_s_each").values[0]
    assert isinstance(of_each, float)
    assert rate == pytest.approx(4 * of_each)


def test_the_curves_near_the_target_have_a_chart(study: Path) -> None:
    subjects = read_all([study])
    runs = [("run", subject) for subject in subjects]
    *_, (near, image) = page_charts(runs)["accuracy"]
    assert near.title == "Top-1 accuracy near the target"
    (chart,) = images_of(image)
    labels = re.findall(r">([\d.]+)</text>", chart)
    # the target is 0.7, and epochs are larger
    assert min(map(float, labels)) >= 0.68
    assert page_charts(runs[3:])["accuracy"][2:] == []


# --- the first bit --------------------------------------------------------------------------------


def run_folder(
    folder: Path, losses: list[float | None], steps: int = 1, seed: int = 1
) -> Subject:
    log(folder)
    write_config(folder, f"seed={seed}")
    records = []
    for number, loss in enumerate(losses):
        record = {"kind": "train", "step": number, "steps": steps, "loss": loss}
        records.append(record)
    write_metrics(folder, records)
    return read_folder(folder)


def test_the_first_loss_that_differs_in_a_bit(tmp_path: Path) -> None:
    next_up = math.nextafter(2.0, 3)
    reference = run_folder(tmp_path / "l", [3.0, 2.0])
    right = run_folder(tmp_path / "r", [3.0, 2.0, 1.0])
    repeat = first_bit(reference, right)
    assert repeat.same
    assert repeat.compared == 2
    assert repeat.recorded == str(right.path)
    assert are_of_one_config(reference, right)
    different = run_folder(tmp_path / "other", [3.0, next_up, 1.0], seed=2)
    repeat = first_bit(reference, different)
    assert repeat.same is False
    assert repeat_line(repeat).startswith("not reproduced: ")
    assert f"loss at step 1, 2.0 against {next_up}" in repeat.text
    assert not are_of_one_config(reference, different)
    means = run_folder(tmp_path / "means", [3.0, next_up], steps=2)
    assert first_bit(reference, means).compared == 0


def test_a_loss_that_is_no_number_has_no_bits(tmp_path: Path) -> None:
    """A NaN is null in the metrics of both."""
    reference = run_folder(tmp_path / "l", [3.0, None])
    right = run_folder(tmp_path / "r", [3.0, None])
    assert first_bit(reference, right).compared == 1
    finite = run_folder(tmp_path / "f", [3.0, 2.0])
    assert "loss at step 1," in first_bit(reference, finite).text


def test_bare_logs_of_one_config_are_compared_by_their_accuracies(
    tmp_path: Path,
) -> None:
    next_up = nth("eval_accuracy", -1, value=math.nextafter(0.7592, 1))
    logs = [log(tmp_path, name="a"), log(tmp_path, next_up, "b")]
    assert "accuracy of epoch 35," in first_bit(*read_all(logs)).text


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path) -> list[str]:
    """24 logs: the later a log, the longer its run and the lower its learning rate; the third
    misses the target, the fourth has no learning rate."""
    paths = []
    for number in range(24):
        run = good_run()
        last(run, "run_stop").time_ms += 1000 * number
        rate = find(run, "lars_opt_base_learning_rate")
        rate.value = 10.5 - number / 4
        platform = f"machine_{number % 3}_with_a_long_name"
        find(run, "submission_platform").value = platform
        if number == 2:
            last(run, "eval_accuracy").value = 0.7
        if number == 3:
            run.remove(rate)
        path = write(tmp_path / f"log_{number:02}.txt", run)
        paths.append(str(path))
    return paths


def test_each_run_is_a_row(many: list[str]) -> None:
    code, out, err = invoke("compare", *many)
    assert code == 0
    assert err == ""
    lines = re.findall(r"^[A-X]  .*", out, re.M)
    rows = [line.split() for line in lines]
    letters = "".join(row[0] for row in rows)
    assert letters == string.ascii_uppercase[:24] * 2  # two tables
    assert letter(27) == "AB"
    assert rows[23][2:4] == ["PASS", "62.57"]
    (group,) = group_by(compared(*map(Path, many[:4])), "global_batch_size")
    # neither the run that missed its target nor that without a learning rate
    assert group.spreads["time_to_train_s"] == pytest.approx((40.074, 39.574, 40.574))
    assert "FAIL" in rows[2]
    assert "\nthe same in all that have it: " in out
    assert "; learning_rate_warmup_epochs 2; " in out


def test_rows_are_sorted_and_what_has_no_value_comes_last(many: list[str]) -> None:
    for sort, letters in (
        ("base_learning_rate", "FECBAD"),
        ("-base_learning_rate", "ABCEFD"),
        ("log_check", "CDABEF"),
    ):
        rows = as_json(*many[:6], "--sort", sort)
        order = [row["letter"] for row in rows]
        assert "".join(order) == letters
    row = rows[-1]
    assert row["log_check"] == "PASS"
    assert row["global_batch_size"] == 3264
    assert row["epochs_to_target"] == 35
    assert row["path"] == many[5]
    code, out, err = invoke("compare", *many[:4], "--sort", "-accuracy")
    assert code == 2
    assert out == ""
    assert "error: --sort: one of log_check, " in err
    assert "mean best_accuracy?" in err


# --- the page -------------------------------------------------------------------------------------


def page_of(paths: list[str], sort: str | None = None) -> str:
    comparison = compared(*map(Path, paths))
    order = order_of(comparison.columns, sort, len(paths))
    return render_comparison(comparison, order, sort)


def test_hostile_text_is_text_and_the_one_script_is_ours(
    tmp_path: Path, many: list[str]
) -> None:
    hostile = write(tmp_path / "hostile.txt", hostile_run())
    paths = [*many[:3], str(hostile)]
    page = page_of(paths, "log_check")
    shape = Shape(page)
    assert ("aria-sort", "ascending") in shape.attributes
    assert shape.tags.count("script") == 1
    assert not ACTIVE & set(shape.tags)
    for name, value in shape.attributes:
        assert name != "src" or str(value).startswith("data:image/svg+xml;base64,")
        assert not name.startswith("on")
    assert '<script>document.title="owned"</script>' in shape.text  # as text
    assert page.replace("\n", "").isprintable()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = hashlib.sha256(script.encode()).digest()
    encoded = base64.b64encode(digest).decode()
    source = f"'sha256-{encoded}'"
    style = "style-src 'unsafe-inline'"
    policy = f"default-src 'none'; img-src data:; {style}; script-src {source}"
    assert ("content", policy) in shape.attributes
    assert page == page_of(paths, "log_check")


ROWS = """(() => {
  const table = document.querySelector(".runs");
  return {
    heights: [...table.tBodies[0].rows].map(row => row.offsetHeight),
    scrolls: table.offsetWidth > table.parentElement.clientWidth,
    shadow: getComputedStyle(table.parentElement).backgroundImage,
  };
})()"""


@pytest.mark.slow
def test_seeds_do_not_make_rows_high_and_what_scrolls_shows_it(
    measure: Measure, tmp_path: Path
) -> None:
    paths = []
    for first in (0, 5):
        seeds = {n: put("seed", (1 << 62) + first + n) for n in range(5)}
        folder = submission(tmp_path / str(first), seeds, first=first)
        paths.append(str(folder))
    page = tmp_path / "runs.html"
    page.write_text(page_of(paths))
    figures = measure(page, ROWS, width=800)
    assert figures["scrolls"]
    assert "linear-gradient" in figures["shadow"]
    assert max(figures["heights"]) < 60  # two lines of a name; five of seeds had 110


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("Org/results/box/resnet", "Org/box"),
        ("Org/results/flat", "Org/flat"),
        ("Org/results/two/bert", "Org/two/bert"),
        ("house/bert", "us/house/bert"),
        ("US/bert", "US/bert"),
    ],
)
def test_a_submission_has_its_submitters_name(
    tmp_path: Path, folder: str, name: str
) -> None:
    assert compared(log(tmp_path / folder).parent).names == [name]


def test_a_log_without_a_submitter_has_the_name_of_its_folder(tmp_path: Path) -> None:
    path = log(tmp_path / "house/bert", put("submission_org", ""))
    assert compared(path.parent).names == ["house/bert"]


CLICKS = """(() => {
  const letters = () =>
    [...document.querySelectorAll(".runs tbody b")].map(one => one.textContent).join("");
  const shown = {
    width: document.documentElement.scrollWidth,
    sorted_by: document.querySelector("[aria-sort]").innerText,
    orders: [letters()],
  };
  const heads = [...document.querySelectorAll(".keys button")];
  const rate = heads.find(one => one.innerText.includes("base"));
  for (let click = 0; click < 2; click++) {
    rate.click();
    shown.orders.push(letters());
  }
  return shown;
})()"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_a_click_sorts_the_page(
    measure: Measure, many: list[str], tmp_path: Path, width: int
) -> None:
    page = tmp_path / "runs.html"
    page.write_text(page_of(many, "-time_to_train_s"))
    figures = measure(page, CLICKS, width=width, dark=width == 390)
    assert figures["width"] == width
    assert figures["sorted_by"].startswith("time to")
    letters = "".join(map(letter, range(24)))
    results = letters.replace("C", "").replace("D", "")
    with_rate = letters.replace("D", "")
    assert figures["orders"] == [
        f"{results[::-1]}CD",
        f"{with_rate[::-1]}D",
        f"{with_rate}D",
    ]


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
