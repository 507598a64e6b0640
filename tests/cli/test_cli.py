"""The command as a user meets it: help that teaches, one line for what is wrong."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rn50.cli.entry import _meant
from tests.conftest import GOLDEN_LOG, Rn50
from tests.waiting import finished


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A folder with a config of an unknown key."""
    (tmp_path / "unknown.yaml").write_text("name: x\nbatch:\n  per_rnak: 4\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "launch {bad}/unknown.yaml",
            "unknown.yaml:3: batch.per_rnak: unknown key; did you mean per_rank?",
        ),
        ("data make {bad}/out --min-px 60", "min_px: at most max_px (56) expected"),
        ("bench allreduce --sizes 4q", "--sizes: "),
        ("bench startup --ranks 0", "--ranks: "),
        (f"evaluate {{bad}} name={300 * 'a'}", "a whole checkpoint expected"),
        ("log show {bad}/unknown.yaml", "an MLPerf log (:::MLLOG records) expected"),
    ],
)
def test_bad_input_is_one_clear_line(
    rn50: Rn50, bad: Path, command: str, expected: str
) -> None:
    assert expected in rn50.error(*command.format(bad=bad).split())
    assert [path.name for path in bad.iterdir()] == ["unknown.yaml"]


def test_a_misspelt_folder_of_images_gets_a_suggestion(
    rn50: Rn50, tmp_path: Path
) -> None:
    (tmp_path / "imagenet").mkdir()
    path = tmp_path / "imagenett"
    arguments = f"launch quick data.synthetic=null data.path={path}".split()
    assert rn50.error(*arguments).endswith(f"; did you mean {tmp_path}/imagenet?")
    too_long_for_a_path = "x" * 5000
    rn50.error(*arguments, f"data.synthetic={too_long_for_a_path}")


def test_no_other_word_of_the_command_is_a_misspelt_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nolog", "launch"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    command = "rn50 log --launcher srun lunch --out=lanch"
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    for error in (
        "nolog: a log (result_0.txt) expected in it, found none",
        "--launcher: gloo expected, found srum",
        "x: in use by process 1 on vm (`entry.py launch --launcher srun`)",
        "rank 0 failed; start again with: rn50 launch results/lunch/config.yaml",
    ):
        assert _meant(error) == ""
    assert _meant("lunch: none") == _meant("lanch: none") == "; did you mean launch?"
    assert _meant("rn50 lunch: Invalid value") == ""  # the command itself


def benched(rn50: Rn50, options: str) -> dict[str, Any]:
    """What a benchmark measures on two real ranks."""
    return json.loads(rn50.output("bench", *options.split(), "--json"))


@pytest.mark.nightly
@pytest.mark.slow
def test_bench_loop_compares_on_real_ranks(rn50: Rn50, smoke_data: Path) -> None:
    data = f"data.path={smoke_data}"
    measured = benched(rn50, f"loop smoke --rounds 3 --steps 10 {data}")
    ratio = measured["ratios"]["trainer / bare loop throughput"]
    assert ratio["n"] == 3
    assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    assert measured["figures"]["ranks"] == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_bench_overlap_on_real_ranks(rn50: Rn50, smoke_data: Path) -> None:
    options = f"--rounds 2 --steps 3 data.path={smoke_data}"
    groupings = "single;equal_bytes(3)"
    rows = benched(rn50, f"overlap smoke --groupings {groupings} {options}")["rows"]
    assert ";".join(row["groups"] for row in rows) == groupings
    assert min(row["communication"]["min"] for row in rows) > 0


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("name", "locale"),
    [(b"log\xff.txt", C_LOCALE), ("log ü.txt".encode(), C_LOCALE), (b"a\nb.txt", {})],
)
def test_a_name_of_any_bytes_is_shown_in_any_locale(
    rn50: Rn50, tmp_path: Path, locale: dict[str, str], name: bytes
) -> None:
    log = shutil.copy(GOLDEN_LOG, tmp_path / os.fsdecode(name))
    page = str(tmp_path / "page.html")
    env = os.environ | locale
    process = rn50.start("log", "report", str(log), "--out", page, env=env)
    assert process.communicate() == (f"{page}\n", "")
    process = rn50.start("launch", "smoke", f"data.path={log}", "--dry-run", env=env)
    (line,) = process.communicate()[1].splitlines()
    assert line.startswith("rn50: error: command line: data.path: ")
    assert "not valid YAML" not in line
    assert ("printable" in line) == ("ü" not in str(log))


def test_an_error_that_nobody_foresaw_is_one_line_and_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; from rn50.cli import entry, main; main.run = lambda _: 1 / 0; "
        "sys.argv[1:] = ['runs']; entry.main()"
    )
    done = finished(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert done.returncode == 2
    (path,) = tmp_path.iterdir()
    why = f"an error of rn50 itself; its traceback: {path}"
    assert done.stderr == f"rn50: error: ZeroDivisionError: division by zero ({why})\n"
    assert path.read_text().startswith("Traceback ")
