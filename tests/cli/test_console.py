"""What commands share: progress in lines, tables of any names."""

from __future__ import annotations

import pytest

from rn50.cli import console
from rn50.cli.console import print_table, track
from rn50.config.errors import UserError


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    advance = track("packing records")
    advance(1000, 9000)  # from an earlier attempt
    for step in range(1, 81):
        clock[0] += 1.0
        advance(1000 + 100 * step, 9000)
    advance = track("sweep a")
    for step in range(3):
        advance(step, 4, "best 5 (trial 0)")
        clock[0] += 20.0
    assert capsys.readouterr().err.splitlines() == [
        "packing records ...",
        "packing records: 4,000 of 9,000, 100/s, 0.8 min left",
        "packing records: 7,000 of 9,000, 100/s, 0.3 min left",
        "sweep a ...",
        "sweep a: 2 of 4, best 5 (trial 0), 20 s each, 0.7 min left",
    ]


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


def test_a_name_steers_no_terminal_and_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("", ""), [(name, "value") for name in NAMES])
    out = capsys.readouterr().out
    for name in NAMES:
        track(name)(1, 2, name)
    for text in (out, capsys.readouterr().err, str(UserError("first", *NAMES))):
        assert not [c for c in text if not c.isprintable() and c != "\n"]
        assert not [line for line in text.splitlines() if line.startswith("PASS y")]
    assert len(out.splitlines()) == len(NAMES)
    for name in ("[red]x[/]", "[/]", "[link=file:x]y", ":warning:", "back\\"):
        assert f"{name} " in out
