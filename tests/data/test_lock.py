"""The lock file: between processes, with the holder's record, and without the kernel's lock."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rn50.data import lock
from rn50.data.lock import HeldError, Holder, hold, read_holder
from tests.waiting import wait_until

HOLD = """
import sys, time
from pathlib import Path
from rn50.data.lock import hold
with hold(Path(sys.argv[1]), wait=False, tell=print):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(path: Path) -> subprocess.Popen[str]:
    """A process that holds `path` until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


class Told(list[Holder | None]):
    """Whom `hold` told of."""

    def __call__(self, holder: Holder | None) -> None:
        self.append(holder)


def holder_elsewhere(path: Path, beat: int = 0, token: str = "aa") -> Holder:
    """Write the record of a process on another machine."""
    record = Holder("node7", "another-boot", 42, token, "rn50 launch", "12:00", beat)
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(record._asdict()))
    partial.replace(path)
    return record


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "STALE_S", 0.6)
    monkeypatch.setattr(lock, "BEAT_S", 0.1)
    monkeypatch.setattr(lock, "_SETTLE_S", 0.05)
    monkeypatch.setattr(lock, "_is_own_disk", lambda path: False)  # others may write here


@pytest.fixture(params=["flock", "no flock"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, quick: None) -> str:
    """With the kernel's lock, and on a file system that has none, shared with others."""
    if request.param == "no flock":

        def refuse(*_: object) -> None:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", refuse)
    return str(request.param)


def test_the_file_names_the_holder_and_goes_with_it(tmp_path: Path, kernel: str) -> None:
    told = Told()
    with hold(tmp_path / "lock", wait=False, tell=told):
        found = read_holder(tmp_path / "lock")
        assert found is not None
        assert found.pid == os.getpid()
        assert f"process {os.getpid()} on {found.host} (`" in str(found)
    assert list(tmp_path.iterdir()) == []
    assert told == []


def test_an_error_within_gives_the_lock_back(tmp_path: Path, kernel: str) -> None:
    with pytest.raises(RuntimeError), hold(tmp_path / "lock", wait=False, tell=Told()):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    first = start_holder(tmp_path / "lock")
    try:
        with (
            pytest.raises(HeldError, match=rf"lock: held by process {first.pid} on ") as caught,
            hold(tmp_path / "lock", wait=False, tell=Told()),
        ):
            pytest.fail("held twice")
        assert caught.value.holder is not None
        assert caught.value.holder.pid == first.pid
        assert read_holder(tmp_path / "lock") is not None
    finally:
        first.communicate("")


def test_who_waits_is_told_once_and_goes_on(tmp_path: Path) -> None:
    first = start_holder(tmp_path / "lock")
    told = Told()

    def end_first() -> None:
        wait_until(lambda: told)
        first.communicate("")

    ending = threading.Thread(target=end_first)
    ending.start()
    with hold(tmp_path / "lock", wait=True, tell=told):
        ending.join()
        found = read_holder(tmp_path / "lock")
        assert found is not None
        assert found.pid == os.getpid()
    assert [holder.pid for holder in told if holder] == [first.pid]
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    first = start_holder(tmp_path / "lock")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert read_holder(tmp_path / "lock") is not None
    told = Told()
    with hold(tmp_path / "lock", wait=False, tell=told):
        pass
    assert told == []
    assert list(tmp_path.iterdir()) == []


def test_a_machine_that_is_down_holds_nothing(tmp_path: Path, kernel: str) -> None:
    gone = holder_elsewhere(tmp_path / "lock")
    told = Told()
    with hold(tmp_path / "lock", wait=False, tell=told):
        found = read_holder(tmp_path / "lock")
        assert found is not None
        assert found.pid == os.getpid()
    assert told == [gone]
    assert list(tmp_path.iterdir()) == []


def test_a_holder_on_another_machine_that_beats_holds(tmp_path: Path, kernel: str) -> None:
    path = tmp_path / "lock"
    holder_elsewhere(path)
    stop = threading.Event()

    def beat() -> None:
        number = 0
        while not stop.wait(0.1):
            number += 1
            holder_elsewhere(path, number)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(HeldError, match="node7"), hold(path, wait=False, tell=Told()):
            pytest.fail("held twice")
    finally:
        stop.set()
        beating.join()


def test_what_another_machine_gives_back_meanwhile_is_taken(tmp_path: Path, kernel: str) -> None:
    path = tmp_path / "lock"
    holder_elsewhere(path)
    told = Told()

    def give_back() -> None:
        wait_until(lambda: told)
        path.unlink()

    giving = threading.Thread(target=give_back)
    giving.start()
    with hold(path, wait=False, tell=told):
        giving.join()
        found = read_holder(path)
        assert found is not None
        assert found.pid == os.getpid()


def test_the_holder_beats(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "lock"
    with hold(path, wait=False, tell=Told()):
        wait_until(lambda: (found := read_holder(path)) and found.beat >= 2)


def test_a_lock_that_another_machine_took_is_not_removed(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "lock"
    with hold(path, wait=False, tell=Told()):
        theirs = holder_elsewhere(path)
    assert read_holder(path) == theirs


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, b"[]", b"{}", b'{"pid": 1}', b"[" * 2000, b"\xff" * 5000],
)
def test_a_file_without_a_record_holds_nothing(tmp_path: Path, kernel: str, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    with hold(tmp_path / "lock", wait=False, tell=Told()):
        found = read_holder(tmp_path / "lock")
        assert found is not None
        assert found.pid == os.getpid()


def test_many_processes_hold_it_one_after_the_other(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from rn50.data.lock import hold
folder = Path(sys.argv[1])
for _ in range(5):
    with hold(folder / "lock", wait=True, tell=lambda holder: None):
        (folder / "inside").mkdir()  # fails where another is inside
        (folder / "inside").rmdir()
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        hold(tmp_path / "no/lock", wait=False, tell=Told()),
    ):
        pytest.fail("held in no folder")


def test_file_systems_of_one_machine_are_known() -> None:
    assert lock._is_own_disk(Path("/dev/shm/lock"))
    assert not lock._is_own_disk(Path("/proc/lock"))


def test_what_a_machine_left_on_its_own_disk_is_free_at_once(tmp_path: Path) -> None:
    """After a reboot: no other machine writes there, and no process of this one holds it."""
    path, told = tmp_path / "lock", Told()
    holder_elsewhere(path)
    if not lock._is_own_disk(path):
        pytest.skip("a temporary folder that other machines may share")
    with hold(path, wait=False, tell=told):
        assert told == []


def test_one_failed_look_does_not_end_the_beat(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, failed = tmp_path / "lock", threading.Event()

    def fail_once(found: Path) -> Holder | None:
        if threading.current_thread().name == "lock" and not failed.is_set():
            failed.set()
            return None
        return read_holder(found)

    monkeypatch.setattr(lock, "read_holder", fail_once)
    with hold(path, wait=False, tell=print):
        wait_until(lambda: failed.is_set() and (found := read_holder(path)) and found.beat >= 2)
