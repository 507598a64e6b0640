"""Progress where no terminal shows it: in the log of a job."""

from __future__ import annotations

import pytest

from rn50.cli import console
from rn50.cli.console import Tracking


def test_without_a_terminal_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with Tracking() as track:
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
