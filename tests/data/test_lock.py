"""A lock is one process's, goes with it, and is taken over where its machine is down."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rn50.config.errors import UserError
from rn50.data import lock
from rn50.data.lock import FolderInUse, hold, is_held, read_holder

HOLD = """
import sys
from pathlib import Path
from rn50.data.lock import hold
path = Path(sys.argv[1])
with hold(path, path.parent, wait=True):
    counter = path.with_name("counter")
    value = int(counter.read_text()) if counter.exists() else 0
    print("held", flush=True)
    sys.stdin.read()
    counter.write_text(str(value + 1))
"""


def start_holder(path: Path) -> psutil.Popen:
    """A process that holds `path` until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(path)]
    return psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_S", 0.05)
    monkeypatch.setattr(lock, "STALE_S", 0.5)


def left_elsewhere(path: Path) -> Path:
    """The lock that a process on another machine has left, or still holds."""
    record = path.with_name(f"{path.name}.holder")
    with hold(path, path.parent):
        marker, holder = path.read_text(), record.read_text()
    path.write_text(re.sub("host=.*", "host=gpu017", marker))
    record.write_text(holder.replace(platform.node(), "gpu017"))
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, quick: None) -> Path:
    return left_elsewhere(tmp_path / "lock")


def test_the_second_is_refused_by_name_and_a_killed_holder_is_followed_at_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"
    first = start_holder(path)
    try:
        assert first.stdout.readline() == "held\n"
        assert is_held(path)
        with (
            pytest.raises(FolderInUse, match=rf"{tmp_path}: in use by process {first.pid} on "),
            hold(path, tmp_path),
        ):
            pytest.fail("held twice")
    finally:
        first.kill()
        first.wait()
    assert path.exists() and not is_held(path)
    with pytest.raises(ValueError, match="mine"), hold(path, tmp_path):
        assert read_holder(path) is not None and is_held(path)
        raise ValueError("mine")
    assert not list(tmp_path.iterdir())


def test_processes_that_wait_hold_it_one_after_the_other(tmp_path: Path) -> None:
    processes = [start_holder(tmp_path / "lock") for _ in range(4)]
    for process in processes:
        process.stdin.close()
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "counter").read_text() == "4"


def test_a_machine_that_is_down_holds_nothing(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_held(elsewhere)  # a moment ago
    with hold(elsewhere, elsewhere.parent):
        assert "waiting for process" in capsys.readouterr().err
    assert not elsewhere.exists()


def test_a_machine_that_beats_holds(elsewhere: Path) -> None:
    code = "import os, sys, time\nwhile True: os.utime(sys.argv[1]); time.sleep(0.05)"
    beating = subprocess.Popen([sys.executable, "-c", code, str(elsewhere)])
    try:
        with pytest.raises(FolderInUse, match="gpu017"), hold(elsewhere, elsewhere.parent):
            pytest.fail("held twice")
    finally:
        beating.kill()
        beating.wait()


def test_a_holder_that_was_taken_for_dead_learns_so_and_leaves_the_others_lock(
    tmp_path: Path, quick: None
) -> None:
    path, lost = tmp_path / "lock", []
    with hold(path, tmp_path, lost=lost.append):
        content = path.read_text().replace("token=", "token=f")
        path.unlink()
        path.write_text(content)
        path.with_name("lock.holder").write_text(
            '{"host": "gpu017", "pid": 1, "command": "rn50 launch", "since": "now"}'
        )
        deadline = time.monotonic() + 20
        while not lost and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "gpu017" in str(lost[0]) and path.exists()


@pytest.mark.parametrize("content", ["", "null", "{}", '{"host": 1}', "x" * 5000])
def test_a_record_that_is_none_names_no_holder(tmp_path: Path, content: str) -> None:
    (tmp_path / "lock.holder").write_text(content)
    assert read_holder(tmp_path / "lock") is None and not is_held(tmp_path / "lock")


def test_a_place_that_takes_no_lock_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="file/lock: cannot lock: "),
        hold(tmp_path / "file" / "lock", tmp_path),
    ):
        pytest.fail("held")
