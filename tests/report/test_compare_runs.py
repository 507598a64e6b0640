"""`rn50 log compare` with a row a run: columns, ratios, sorting, the tables and the page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.report.compare import compare, letter, read_all
from rn50.report.compare_page import render_page
from rn50.report.compare_runs import Column, columns_of, order_of
from rn50.report.run_folder import Subject
from tests.compliance.log_text import find, good_run, last, write
from tests.report.conftest import Chromium
from tests.report.test_compare import LOGS, ROWS, invoke
from tests.report.test_report import HOSTILE, Shape, hostile_run


@pytest.fixture
def many(tmp_path: Path) -> list[str]:
    """24 logs: the later a log, the longer its run and the lower its learning rate; the third
    misses the target, the fourth has no learning rate."""
    paths = []
    for number in range(24):
        run = good_run()
        last(run, "run_stop").time_ms += 1000 * number
        find(run, "lars_opt_base_learning_rate").value = 10.5 - number / 4
        find(run, "submission_platform").value = f"machine_{number % 3}_with_a_long_name"
        if number == 2:
            last(run, "eval_accuracy").value = 0.7
        if number == 3:
            run.remove(find(run, "lars_opt_base_learning_rate"))
        paths.append(str(write(tmp_path / f"log_{number:02}.txt", run)))
    return paths


def column(subjects: list[Subject], key: str) -> Column:
    (found,) = [one for one in columns_of(compare(subjects)) if one.key == key]
    return found


def test_each_run_is_a_row_within_a_page(many: list[str]) -> None:
    code, out, err = invoke("compare", *many)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 120
    rows = [line.split() for line in lines if re.match(r"[A-X]  ", line)]
    tables = len(rows) // 24
    assert [row[0] for row in rows] == [chr(65 + n) for n in range(24)] * tables and tables > 1
    time_s, ratio = rows[23][2], rows[23][3]
    assert (time_s, ratio) == ("62.57", f"{62.572 / 39.572:.2f}")
    assert rows[2][3] == "-" and "FAIL" in rows[2]
    words = " ".join(out.split())
    assert "the same in all: " in words and ", learning_rate_warmup_epochs 2, " in words
    title = next(line for line in lines if "images/s" in line)
    assert title.index("images/s") > 40  # a heading of several lines, above its column


def test_few_runs_are_columns_unless_they_are_sorted(many: list[str]) -> None:
    assert "* base_learning_rate" in " ".join(invoke("compare", *many[:3])[1].split())
    code, out, _ = invoke("compare", *many[:3], "--sort=-time_to_train_s")
    rows = [line[0] for line in out.splitlines() if re.match(r"[A-C]  ", line)]
    assert code == 0 and "".join(rows[:3]) == "CBA" and "base_learning_rate" not in out[:200]


def test_rows_are_sorted_and_what_has_no_value_comes_last(many: list[str]) -> None:
    order = {}
    for sort in ("base_learning_rate", "-base_learning_rate", "platform"):
        content = json.loads(invoke("compare", "--json", *many[:6], "--sort", sort)[1])
        order[sort] = "".join(subject["letter"] for subject in content["subjects"])
        row = content["subjects"][0]["row"]
        assert row["time_to_train_ratio"] >= 1 and row["log_check"] == "PASS"
    assert order == {
        "base_learning_rate": "FECBAD",
        "-base_learning_rate": "ABCEFD",
        "platform": "ADBECF",
    }
    code, out, err = invoke("compare", *many[:4], "--sort", "speed")
    assert (code, out) == (2, "")
    assert err.startswith("--sort: one of time_to_train_s, time_to_train_ratio, images_per_s, ")
    assert err.endswith("found speed")


def test_a_run_that_missed_its_target_has_no_ratio_of_times(many: list[str]) -> None:
    subjects = read_all(map(Path, many[:4]))
    assert column(subjects, "time_to_train_ratio").values[2] is None
    assert column(subjects, "images_per_s_ratio").cells == ("1.00",) * 4
    assert column(subjects[2:], "time_to_train_ratio").values == (None, None)
    assert column(subjects, "parts_at_epoch").cells == ("-", "agrees", "35", "agrees")


def test_numbers_stand_before_texts() -> None:
    mixed = Column("config", "x", "x", (), (2.0, "auto", None, 10.0, "auto", -1.0))
    assert mixed.places == (1, 3, None, 2, 3, 0)
    assert not mixed.is_number
    assert order_of([mixed], "x", 6) == [5, 0, 3, 1, 4, 2]
    assert order_of([mixed], "-x", 6) == [1, 4, 3, 0, 5, 2]
    assert order_of([mixed], None, 2) == [0, 1]
    with pytest.raises(UserError, match="--sort: one of x expected, found y"):
        order_of([mixed], "y", 6)


def test_a_value_of_log_and_config_is_one_column(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = good_run()
        find(run, "seed").value = number
        write(folder / "result_0.txt", run)
        overrides = [f"seed={number}", f"batch.per_rank={number + 1}", f"data.path=/d/{number}"]
        (folder / "config.yaml").write_text(load("smoke", overrides).to_yaml())
    found = columns_of(compare(read_all([tmp_path])))
    assert [(one.group, one.cells) for one in found if one.key.endswith("seed")] == [
        ("hyper-parameters", ("0", "1", "2", "3"))
    ]
    assert [one.key for one in found if one.group == "config"] == ["batch.per_rank"]


def test_letters_go_on() -> None:
    assert [letter(number) for number in (0, 25, 26, 51, 52, 99)] == [
        *("A", "Z", "AA", "AZ", "BA", "CV"),
    ]


# --- the page -------------------------------------------------------------------------------------


def page_of(paths: list[str], sort: str | None = None) -> str:
    comparison = compare(read_all(map(Path, paths)))
    columns = columns_of(comparison)
    return render_page(comparison, columns, order_of(columns, sort, len(paths)), sort)


def test_hostile_text_is_text_and_the_one_script_is_ours(tmp_path: Path, many: list[str]) -> None:
    paths = [*many[:3], str(write(tmp_path / "hostile.txt", hostile_run()))]
    page = page_of(paths)
    shape = Shape(page)
    assert shape.tags.count("script") == 1
    assert not {"img", "iframe", "object", "link", "base", "form"} & set(shape.tags)
    assert not [name for name, _ in shape.attributes if name.startswith("on") or name == "src"]
    assert '<script>document.title="owned"</script>' in shape.text  # as text
    assert not [c for c in page if not c.isprintable() and c != "\n"]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (policy,) = [value for name, value in shape.attributes if value and "default-src" in value]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    assert page == page_of(paths)


def test_the_command_writes_the_page(many: list[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.html"
    code, out, _ = invoke("compare", *many[:2], "--sort", "images_per_s", "--html", str(path))
    assert code == 0 and "time to" in out
    assert path.read_text() == page_of(many[:2], "images_per_s")
    assert "2 runs compared" in unescape(path.read_text())


@pytest.fixture
def opened(chromium: Chromium) -> Iterator[Chromium]:
    yield chromium
    assert chromium.messages == []
    assert len(chromium.requests) == 1, "the page loads nothing but itself"


LETTERS = "[...document.querySelectorAll('.runs tbody b')].map(one => one.textContent).join('')"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_a_click_sorts_the_page(
    opened: Chromium, many: list[str], tmp_path: Path, width: int
) -> None:
    page = tmp_path / "runs.html"
    page.write_text(page_of(many, "-time_to_train_s"))
    opened.open(page, width=width, dark=width == 390)
    assert opened.value("document.documentElement.scrollWidth") == width
    letters = "".join(map(letter, range(24)))
    assert opened.value(LETTERS) == letters[::-1]
    assert opened.value("document.querySelector('[aria-sort]').innerText").startswith("time to")
    rate = "[...document.querySelectorAll('.keys button')].find(b => b.innerText.includes('base'))"
    for falling in (False, True):
        opened.value(f"{rate}.click()")
        rest = letters.replace("D", "")
        assert opened.value(LETTERS) == (rest if falling else rest[::-1]) + "D"
    assert opened.value("document.querySelectorAll('[aria-sort]').length") == 1
    left = "document.querySelector('.runs tbody th').getBoundingClientRect().left"
    before = opened.value(left)
    opened.value("document.querySelector('.wide').scrollLeft = 300")
    assert opened.value(left) == before  # names stay


@pytest.mark.slow
def test_a_script_of_a_log_would_not_run(
    chromium: Chromium, many: list[str], tmp_path: Path
) -> None:
    page = tmp_path / "runs.html"
    page.write_text(page_of(many[:4]).replace("<main>", f"<main><p>{HOSTILE}</p>"))
    chromium.open(page)
    assert chromium.value("document.title") == "4 runs compared · rn50 comparison"
    assert "Content Security Policy" in " ".join(chromium.messages)


@pytest.mark.slow
@pytest.mark.skipif(not ROWS, reason="no published logs beside this checkout")
def test_published_logs_of_all_rounds_are_rows(tmp_path: Path) -> None:
    page = tmp_path / "runs.html"
    code, out, err = invoke(
        *("compare", str(LOGS / "logs"), "--sort", "time_to_train_s", "--html", str(page))
    )
    assert code == 0 and "Alibaba" in err
    assert max(map(len, out.splitlines())) <= 120
    assert page.read_text().count('<th scope="row" data-place') > 15
