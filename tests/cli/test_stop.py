"""A signal in the first second of a command: one line and exit code 130, whatever it breaks."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.core import TyperGroup

from rn50.cli import entry

WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from rn50.cli.entry import _stopped
sys.exit(_stopped(KeyboardInterrupt("SIGTERM")))
"""


def test_the_last_line_needs_no_package_that_the_signal_broke() -> None:
    command = [sys.executable, "-c", WITHOUT_NUMPY, "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 130
    (line,) = done.stderr.splitlines()
    assert "SIGTERM" in line and "config list" in line


@pytest.mark.parametrize("method", ["make_context", "invoke"])
def test_typer_keeps_no_signal_to_itself(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("SIGTERM")

    monkeypatch.setattr(TyperGroup, method, stop)
    monkeypatch.setattr(sys, "argv", ["rn50", "config", "list"])
    with pytest.raises(SystemExit) as end:
        entry.main()
    assert end.value.code == 130
    assert "SIGTERM" in capsys.readouterr().err
