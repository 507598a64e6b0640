"""docs/papers.md says what is so: its commands print its figures, its files and names exist."""

import re
from functools import cache
from typing import NamedTuple

import pytest
from typer.testing import Result

from rn50.config.leaves import flatten
from rn50.config.load import load
from tests.checkout import tracked
from tests.cli.test_pages import understand, words_of
from tests.conftest import ROOT, invoke
from tests.test_docs import missing

PAGE = ROOT / "docs/papers.md"
PAPERS = ("Fujitsu", "Brookhaven", "Sony", "NVIDIA", "You et al.")
WORDS = ("works", "differs", "left out")
CODE = re.compile(r"`([^`]+)`(?:: ((?:[^;(`.]|\.\d)+))?")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
TAKES_SECONDS = ("predict", "config show", "config check", "log show")
WRITES = {"--plot", "--write"}


class Row(NamedTuple):
    """What a paper has, one of the three words, and what rn50 has."""

    paper: str
    verdict: str
    evidence: str


def rows_of(page: str) -> list[Row]:
    """The rows of the papers' tables; their headers and the table of the words are none."""
    rows = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) > 2 and "---" not in cells and cells[0] != "in the paper":
            rows.append(Row(cells[0], " ".join(cells[1:-1]), cells[-1]))
    return rows


@cache
def run(command: str) -> Result:
    return invoke(*words_of(command))


def numbers_of(written: str) -> dict[str, float]:
    """The numbers as they are written, and their values."""
    numbers = NUMBER.findall(written)
    return {number: float(number.replace(",", "")) for number in numbers}


def not_printed(figures: str, output: str) -> list[str]:
    """Figures that no number of the output rounds to, at the digits that are quoted."""
    printed = numbers_of(output).values()
    absent = []
    for figure, value in numbers_of(figures).items():
        half = 0.5001 * 10.0 ** -len(figure.partition(".")[2])
        if not any(abs(number - value) <= half for number in printed):
            absent.append(figure)
    return absent


@cache
def sections() -> str:
    """Each key of a config, after a blank and before a dot."""
    return "".join(f" {key}." for key, _ in flatten(load("base").to_dict()))


@cache
def sources() -> str:
    """The program's files and their names."""
    folders = ("docs/", "tests/", "CHANGELOG", "README")
    names = [name for name in tracked() if not name.startswith(folders)]
    files = [ROOT / name for name in names if (ROOT / name).is_file()]
    return "\n".join((*names, *(path.read_text(errors="replace") for path in files)))


def unknown(name: str) -> bool:
    """Whether a word in backticks is of nothing here: a key and its choice, a file, a preset."""
    key, _, choice = name.partition("=")
    if f" {key.partition('.')[0]}." in sections():
        return f" {key}." not in sections() or unknown(choice.partition("(")[0])
    if "/" in name:
        return bool(missing(f"`{name}`"))
    return not re.search(rf"(?<!\w){re.escape(key)}(?!\w)", sources())


def faults(page: str) -> list[str]:
    """What is not so, in order; empty: all is."""
    problems = []
    for row in rows_of(page):
        if row.verdict not in WORDS or not row.evidence:
            problems.append(f"{row.paper}: no word, {row.verdict!r}")
        for code, figures in CODE.findall(row.paper + row.evidence):
            command = code.removeprefix("rn50 ")
            if command == code:
                wrong = [name for name in code.split() if unknown(name)]
            else:
                wrong = not_so(command, figures)
            problems += [f"{row.paper}: {code}: {what}" for what in wrong]
    return problems


def not_so(command: str, figures: str) -> list[str]:
    """Why a command cannot be run, or which figures are not its own."""
    arguments = words_of(command)
    try:
        understand(arguments)
    except Exception as error:
        return [str(error)]
    if WRITES & {*arguments} or not command.startswith(TAKES_SECONDS):
        return ["figures of a command that is not run"] if figures else []
    done = run(command)
    if done.exit_code:
        return [f"{done.exit_code} {done.output} {done.exception}"]
    return not_printed(figures, done.stdout)


@pytest.mark.slow
def test_every_row_of_the_page_is_so() -> None:
    page = PAGE.read_text()
    assert len(rows_of(page)) > 130
    assert re.findall(r"^## (.*)", page, re.M) == [*PAPERS]
    assert faults(page) == []
    for preset in (ROOT / "config").glob("*.yaml"):
        if "docs/papers.md" in preset.read_text():
            assert f"`{preset.stem}`" in page


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("`rn50 predict sony_1024`: 133.8 s", ": 133.8"),
        ("`rn50 predict sony_1024`: 133.7 s (theirs: 505)", None),
        ("`sony_9999`", ": sony_9999"),
        ("`comm.grups=single`", ": comm.grups=single"),
        ("`schedule.powr`", ": schedule.powr"),
        ("`rn50 predict --sistem abci`", "--sistem"),
        ("`rn50 launch smoke`: 8 s", "not run"),
    ],
)
def test_what_is_not_so_is_found(row: str, fault: str | None) -> None:
    problems = faults(f"| a | works | {row} |")
    assert len(problems) == (fault is not None)
    assert (fault or "") in "".join(problems)


def test_a_row_without_a_word_is_found() -> None:
    for cells in ("| a | | b |", "| a | works differs | b |", "| a | works | |"):
        assert len(faults(cells)) == 1
