"""What commands share: progress in lines, tables of any names."""

import os
import pty
import re
import sys
from pathlib import Path

import pytest

from rn50.cli.console import print_table, track
from rn50.host.errors import UserError
from tests.waiting import read_terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its one number is what `time.monotonic` says."""
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    return now_s


def test_without_a_terminal_progress_is_a_line_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    advance = track("packing records")
    advance(6000, 9000)  # from an earlier attempt
    for step in range(1, 31):
        clock[0] += 1.0
        advance(6000 + 100 * step, 9000)
    assert capsys.readouterr().err.splitlines() == [
        "packing records ...",
        "packing records: 7,000 of 9,000, 100/s, 0:20 left",
        "packing records: 8,000 of 9,000, 100/s, 0:10 left",
    ]


def test_time_left_falls_steadily_between_two_pieces(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    advance = track("sweep a", ticks=True)  # on a pipe, ticks print no lines
    for done in (0, 0, 1, 1, 1, 1):
        advance(done, 4, "trial 0")
        clock[0] += 10.0
    clock[0] += 3600.0
    advance(2, 4)
    clock[0] += 60.0
    advance(2, 4)  # long work prints fewer lines
    assert capsys.readouterr().err.splitlines() == [
        "sweep a ...",
        "sweep a: 0 of 4, trial 0, for 0:10",
        "sweep a: 1 of 4, trial 0, 20 s each, 1:00 left",
        "sweep a: 1 of 4, trial 0, 20 s each, 0:50 left",
        "sweep a: 1 of 4, trial 0, 20 s each, 0:40 left",
        "sweep a: 1 of 4, trial 0, 20 s each, 0:30 left",
        "sweep a: 2 of 4, 1,830 s each, 1:01:00 left",
    ]


def test_on_a_terminal_progress_is_a_bar_that_goes(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    between = "rn50: go on with: " + 80 * "x"  # to be copied: not wrapped
    with Path(f"/dev/fd/{follower}").open("w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        advance = track("packing [red]records")
        for step in range(11):
            advance(900 * step, 9000)
            clock[0] += 10.0
            if step == 4:
                print(between, file=sys.stderr)
        assert sys.stderr is terminal
    os.close(follower)
    written = read_terminal(leader)
    without_escapes = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r", "\n")
    lines = [line.strip() for line in without_escapes.split("\n")]
    assert "packing [red]records ..." in lines
    assert between in lines
    bars = [line for line in lines if "━" in line]
    assert all(line.startswith("packing [red]records ━") for line in bars)
    seen = {re.sub(r".*━ +", "", line) for line in bars}
    assert {"900 of 9,000, 90/s, 1:30 left", "8,100 of 9,000, 90/s, 0:10 left"} <= seen
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1


NAMES = (
    "a\x1b]0;owned\x07\x1b[2J\x9b31mb",
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


def test_a_name_steers_no_terminal_and_is_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("", ""), [(name, "value") for name in NAMES])
    out = capsys.readouterr().out
    for name in NAMES:
        track(name)(1, 2, name)
    for printed in (out, capsys.readouterr().err, str(UserError("first", *NAMES))):
        assert not [c for c in printed if not c.isprintable() and c != "\n"]
        assert not [line for line in printed.splitlines() if line.startswith("PASS y")]
    assert len(out.splitlines()) == len(NAMES)
    for name in ("[red]x[/]", "[/]", "[link=file:x]y", ":warning:", "back\\"):
        assert f"{name} " in out
