"""Names of files that would steer a terminal, fake a line, or be read as markup."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rn50.cli import entry
from rn50.cli.console import print_table, track
from rn50.config.errors import UserError
from rn50.config.load import load
from tests.compliance.log_text import good_run, write

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m"
NAMES = (
    f"a{ESCAPES}b",
    "x\nPASS y: all is well",
    "x\rPASS y",
    "[red]x[/]",
    "[/]",
    "[link=file:x]y",
    ":warning:",
    "\u202etxt.exe",
    "\udcff\udc9b",
    "back\\",
)


COMBINED = f"x{ESCAPES}\nPASS y\r[red][link=file:x]:warning:\u202e"


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A run's folder of such a name; its log is whole."""
    folder = tmp_path / COMBINED
    folder.mkdir(parents=True)
    write(folder / "result_0.txt", good_run())
    (folder / "config.yaml").write_text(load("smoke", ["seed=1"]).to_yaml())
    return folder


def output_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[str, str]:
    """What the command itself, the handler of errors included, prints."""
    monkeypatch.setattr(sys, "argv", ["rn50", *arguments])
    with pytest.raises(SystemExit):
        entry.main()
    return capsys.readouterr()


def harmless(text: str) -> None:
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert not [line for line in text.split("\n") if line.startswith("PASS y")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("log", "show"),
        ("log", "check", "--no-official"),
        ("log", "score"),
        ("log", "compare"),
        ("log", "report"),
        ("config", "show"),
        ("data", "verify"),
    ],
    ids=" ".join,
)
def test_no_command_passes_a_name_on(
    named: Path,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, err = output_of(capsys, monkeypatch, *command, str(named))
    assert out or err
    harmless(out)
    harmless(err)
    if (named / "report.html").exists():
        page = (named / "report.html").read_text()
        assert "\x1b" not in page and "\u202e" not in page


def test_tables_and_bars_show_a_name_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("", ""), [(name, "value") for name in NAMES])
    printed = capsys.readouterr().out
    harmless(printed)
    assert len(printed.splitlines()) == len(NAMES)
    for name in ("[red]x[/]", "[/]", "[link=file:x]y", ":warning:", "back\\"):
        assert f"{name} " in printed
    for name in NAMES:
        track(name)(1, 2, name)
    harmless(capsys.readouterr().err)


def test_each_argument_of_an_error_is_one_line() -> None:
    assert str(UserError("a\nb", "c\x1b")) == "a\\nb\nc\\x1b"
