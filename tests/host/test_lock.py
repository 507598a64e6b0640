"""A lock is held as long as the time of its file moves, whoever looks and from wherever."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rn50.host import lock
from rn50.host.lock import FolderInUse, held, hold, other_holder
from tests.faults.file_system import refusing
from tests.waiting import finished, wait_until

QUICK = """
import sys
from pathlib import Path
from rn50.host import lock
lock.BEAT_S = 0.1
lock.STALE_S = 2.0
path = Path(sys.argv[1])
"""
HOLD = """
with lock.hold(path, wait_s=1000):
    counter = path.with_name("counter")
    value = int(counter.read_text()) if counter.exists() else 0
    print("held", flush=True)
    sys.stdin.read()
    counter.write_text(str(value + 1))
"""
LOOK = """
print(path in lock.held([path]), flush=True)
try:
    with lock.hold(path):
        print("free")
except lock.UserError as error:
    print(error)
"""


def start_holder(path: Path) -> psutil.Popen:
    """A process that holds `path` until its standard input ends."""
    command = [sys.executable, "-c", QUICK + HOLD, str(path)]
    return psutil.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def look_at(path: Path, *within: str, **environment: str) -> list[str]:
    """Whether `path` is held, and what came of the attempt to hold it, as another process finds."""
    done = finished(
        [*within, sys.executable, "-c", QUICK + LOOK, str(path)],
        env=os.environ | environment,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def left(path: Path) -> Path:
    """The lock of a process that was killed long ago."""
    with hold(path):
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
    assert held([path]) == {path}
    with pytest.raises(FolderInUse, match=in_use(path, holder)), hold(path):
        pytest.fail("held twice")
    holder.kill()
    holder.wait()
    with pytest.raises(ValueError, match="mine"), hold(path):
        assert f"waiting for process {holder.pid} on " in capsys.readouterr().err
        assert other_holder(path) is None
        assert held([path]) == {path}
        raise ValueError("mine")
    assert not list(path.parent.iterdir())


def test_processes_that_wait_for_a_dead_one_hold_it_one_after_the_other(
    path: Path,
) -> None:
    left(path)
    processes = [start_holder(path) for _ in range(4)]
    for process in processes:
        process.stdin.close()
    assert [process.wait() for process in processes] == [0] * 4
    assert (path.parent / "counter").read_text() == "4"


def test_the_slower_of_two_that_wait_leaves_the_lock_of_the_faster(path: Path) -> None:
    dead = lock._look(left(path))
    with hold(path):
        content = path.read_text()
        lock._remove(path, path.parent, dead, 0.0)
        assert path.read_text() == content
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize("within", ["a PID namespace", "a copy", "clocks that differ"])
def test_neither_process_numbers_nor_names_nor_clocks_of_hosts_count(
    path: Path, holder: psutil.Popen, within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if within == "a PID namespace":
        unshare = ("unshare", "--pid", "--fork", "--mount-proc")
        if finished([*unshare, "true"]).returncode:
            pytest.skip("unshare: only root may here")
        is_alive, answer = look_at(path, *unshare)
    elif within == "a copy":
        copy = Path(shutil.copytree(path.parent, path.parent.with_name("copy")))
        assert look_at(copy / "lock")[1] == "free"
        is_alive, answer = look_at(path)
    else:
        real_time = time.time
        monkeypatch.setattr(time, "time", lambda: real_time() + 600)
        is_alive = str(path in held([path]))
        with pytest.raises(FolderInUse) as caught, hold(path):
            pytest.fail("held twice")
        answer = str(caught.value)
    assert is_alive == "True"
    assert answer.startswith(in_use(path, holder))


@pytest.mark.parametrize("content", ["", "\n" * 5000])
def test_what_a_crash_left_of_a_lock_is_nobody_s(path: Path, content: str) -> None:
    path.write_text(content)
    assert other_holder(path) == "another process"
    assert held([path])
    for ns in (0, 1 << 62):  # long ago, and in a time to come
        os.utime(path, ns=(ns, ns))
        assert not held([path])
    with hold(path):
        assert held([path])
    assert not path.exists()


def test_a_link_to_nothing_is_nobody_s(path: Path) -> None:
    path.symlink_to("nothing")
    assert not held([path.with_name("none")])
    with hold(path):
        assert not path.is_symlink()


def test_a_place_that_takes_no_file_is_watched(
    path: Path, holder: psutil.Popen
) -> None:
    """Another user's folder, a file system that has turned read-only, a sticky folder."""
    refused = refusing(path.parent, write="EROFS", unlink="EROFS")
    is_alive, answer = look_at(path, **refused)
    assert is_alive == "True"
    assert answer.startswith(in_use(path, holder))
    holder.kill()
    holder.wait()
    for environment in (refused, refusing(path.parent, unlink="EPERM")):
        cause = os.strerror(30 if environment is refused else 1)
        is_alive, answer = look_at(path, **environment)
        assert answer == f"{path}: cannot lock: {cause}"
        if environment is refused:
            assert is_alive == "False"


def test_a_lock_is_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a crash of the machine leaves one that names nobody."""
    synced: list[Path] = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()),
    )
    with hold(path):
        assert synced == [path]
        assert "\nprocess " in path.read_text()


def test_locks_and_links_that_a_file_system_refuses_are_not_missed(path: Path) -> None:
    refused = refusing(path.parent, flock="ENOLCK", link="EPERM", fsync="EINVAL")
    assert look_at(path, **refused) == ["False", "free"]
    assert look_at(left(path), **refused) == ["False", "free"]


def test_a_holder_that_was_taken_for_dead_learns_so_and_leaves_the_others_lock(
    path: Path,
) -> None:
    lost: list[str] = []
    with hold(path, lost=lost.append):
        path.write_text("another\nprocess 1 on gpu017")
        wait_until(lambda: lost, 20)
    assert lost == ["process 1 on gpu017"]
    assert path.read_text().startswith("another\n")
