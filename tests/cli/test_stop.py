"""A signal in the first second of a command: one line and exit code 130, whatever it breaks."""

import sys

import pytest
from typer.core import TyperGroup

from tests.conftest import in_this_process
from tests.waiting import finished

WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
from rn50.cli.entry import _stopped
sys.exit(_stopped(KeyboardInterrupt("SIGTERM")))
"""


def test_the_last_line_needs_no_package_that_the_signal_broke() -> None:
    command = [sys.executable, "-c", WITHOUT_NUMPY, "config", "list"]
    done = finished(command)
    assert done.returncode == 130
    (line,) = done.stderr.splitlines()
    assert "SIGTERM" in line
    assert "config list" in line


def test_typer_keeps_no_signal_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("SIGTERM")

    monkeypatch.setattr(TyperGroup, "invoke", stop)
    done = in_this_process(("config", "list"))
    assert done.returncode == 130
    assert "SIGTERM" in done.stderr


AT_THE_END = """
import atexit, os, signal, sys
from rn50.cli import entry

def stop(kill=os.kill, me=os.getpid(), number=signal.SIGINT):
    kill(me, number)

class Last:
    def __del__(self, stop=stop):
        stop()

atexit.register(stop)
sys.last = Last()
entry.main()
"""


def test_a_signal_during_pythons_own_end_changes_nothing() -> None:
    """It comes in the first functions that Python calls, and after the end of its own handlers."""
    command = [sys.executable, "-c", AT_THE_END, "config", "list"]
    done = finished(command)
    assert done.returncode == 0
    assert done.stderr == ""
