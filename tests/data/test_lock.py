"""A lock is held as long as the time of its file moves, whoever looks and from wherever."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rn50.config.errors import UserError
from rn50.data import lock
from rn50.data.lock import FolderInUse, hold, is_held, read_holder
from tests.faults.file_system import refusing
from tests.waiting import wait_until

QUICK = """
import sys
from pathlib import Path
from rn50.data import lock
lock.BEAT_S = 0.1
lock.STALE_S = 2.0
path = Path(sys.argv[1])
"""
HOLD = """
with lock.hold(path, path.parent, wait_s=1000):
    counter = path.with_name("counter")
    value = int(counter.read_text()) if counter.exists() else 0
    print("held", flush=True)
    sys.stdin.read()
    counter.write_text(str(value + 1))
"""
LOOK = """
print(lock.is_held(path), flush=True)
try:
    with lock.hold(path, path.parent):
        print("free")
except lock.UserError as error:
    print(error)
"""


def start_holder(path: Path) -> psutil.Popen:
    """A process that holds `path` until its standard input ends."""
    command = [sys.executable, "-c", QUICK + HOLD, str(path)]
    return psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def look_at(path: Path, *within: str, **environment: str) -> list[str]:
    """Whether `path` is held, and what came of the attempt to hold it, as another process finds."""
    done = subprocess.run(
        [*within, sys.executable, "-c", QUICK + LOOK, str(path)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def left(path: Path) -> Path:
    """The lock of a process that was killed long ago."""
    with hold(path, path.parent):
        content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, (0, 0))
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT_S", 0.1)
    monkeypatch.setattr(lock, "STALE_S", 2.0)


@pytest.fixture
def path(tmp_path: Path, quick: None) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def holder(path: Path) -> Iterator[psutil.Popen]:
    process = start_holder(path)
    assert process.stdout.readline() == "held\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def in_use(path: Path, process: psutil.Popen) -> str:
    return f"{path.parent}: in use by process {process.pid} on "


def test_the_second_is_refused_by_name_and_a_killed_holder_is_followed(
    path: Path, holder: psutil.Popen, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_held(path)
    with pytest.raises(FolderInUse, match=in_use(path, holder)), hold(path, path.parent):
        pytest.fail("held twice")
    holder.kill()
    holder.wait()
    with pytest.raises(ValueError, match="mine"), hold(path, path.parent):
        assert f"waiting for process {holder.pid} on " in capsys.readouterr().err
        found = read_holder(path)
        assert found is not None and found.is_ours and is_held(path)
        raise ValueError("mine")
    assert not list(path.parent.iterdir())


def test_processes_that_wait_for_a_dead_one_hold_it_one_after_the_other(path: Path) -> None:
    left(path)
    processes = [start_holder(path) for _ in range(4)]
    for process in processes:
        process.stdin.close()
    assert [process.wait() for process in processes] == [0] * 4
    assert (path.parent / "counter").read_text() == "4"


def test_the_slower_of_two_that_wait_leaves_the_lock_of_the_faster(path: Path) -> None:
    dead = lock._look(left(path))
    with hold(path, path.parent):
        before = path.read_text()
        lock._remove(path, path.parent, dead, "token", 0.0)
        assert path.read_text() == before
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("within", ["a PID namespace", "a copy", "clocks that differ"])
def test_neither_process_numbers_nor_names_nor_clocks_of_hosts_count(
    path: Path, holder: psutil.Popen, within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if within == "a PID namespace":
        unshare = ("unshare", "--pid", "--fork", "--mount-proc")
        if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
            pytest.skip("unshare: only root may here")
        is_alive, told = look_at(path, *unshare)
    elif within == "a copy":
        copy = Path(shutil.copytree(path.parent, path.parent.with_name("copy")))
        assert look_at(copy / "lock")[1] == "free"
        is_alive, told = look_at(path)
    else:
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 600)
        is_alive = str(is_held(path))
        with pytest.raises(FolderInUse) as caught, hold(path, path.parent):
            pytest.fail("held twice")
        told = str(caught.value)
    assert is_alive == "True" and told.startswith(in_use(path, holder))


@pytest.mark.parametrize("content", ["", "null", "{}", '{"host": 1}', "[" * 4000, "\0" * 9])
def test_what_a_crash_left_of_a_lock_is_nobody_s(path: Path, content: str) -> None:
    path.write_text(content)
    assert read_holder(path) is None and is_held(path)  # a moment ago
    for ns in (0, 1 << 62):  # long ago, and in a time to come
        os.utime(path, ns=(ns, ns))
        assert not is_held(path)
    with hold(path, path.parent):
        assert is_held(path)
    assert not path.exists()


def test_a_link_to_nothing_is_nobody_s(path: Path) -> None:
    path.symlink_to("nothing")
    assert not is_held(path)
    with hold(path, path.parent):
        assert not path.is_symlink()


def test_a_place_that_takes_no_file_is_watched(path: Path, holder: psutil.Popen) -> None:
    """Another user's folder, a file system that has turned read-only, a sticky folder."""
    refused = refusing(path.parent, write="EROFS", unlink="EROFS")
    is_alive, told = look_at(path, **refused)
    assert is_alive == "True" and told.startswith(in_use(path, holder))
    holder.kill()
    holder.wait()
    for environment in (refused, refusing(path.parent, unlink="EPERM")):
        cause = os.strerror(30 if environment is refused else 1)
        is_alive, told = look_at(path, **environment)
        assert told.startswith(f"{path}: cannot lock: {cause} (left by process {holder.pid} on ")
        if environment is refused:
            assert is_alive == "False"


def test_locks_and_links_that_a_file_system_refuses_are_not_missed(path: Path) -> None:
    refused = refusing(path.parent, flock="ENOLCK", link="EPERM", fsync="EINVAL")
    assert look_at(path, **refused) == ["False", "free"]
    assert look_at(left(path), **refused) == ["False", "free"]


def test_a_holder_that_was_taken_for_dead_learns_so_and_leaves_the_others_lock(path: Path) -> None:
    lost: list[lock.Holder] = []
    with hold(path, path.parent, lost=lost.append):
        assert not lost
        other = path.read_text().replace(str(os.getpid()), "1").replace('"token": "', '"token": "x')
        path.write_text(other)
        wait_until(lambda: lost, 20)
    assert lost[0].pid == 1 and not lost[0].is_ours and path.read_text() == other


def test_a_place_that_takes_no_lock_is_one_error(path: Path) -> None:
    path.touch()
    with (
        pytest.raises(UserError, match="lock/lock: cannot lock: "),
        hold(path / "lock", path.parent),
    ):
        pytest.fail("held")
