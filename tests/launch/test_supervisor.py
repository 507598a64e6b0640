import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from rn50.config.schema import Watchdog as Settings
from rn50.host.atomic import _machine
from rn50.host.errors import RankFailed
from rn50.host.stop_signals import STOP_SIGNALS, StopSignals
from rn50.launch import supervisor
from rn50.launch.supervisor import run_watched, wait_for_launcher
from rn50.launch.watchdog import Watchdog
from tests.conftest import refused
from tests.faults.file_system import refusing

ORPHAN = (
    "import subprocess, sys; sleep = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL);"
    "open(sys.argv[1], 'w').write(str(sleep.pid))"
)


@pytest.fixture
def pid(tmp_path: Path) -> Path:
    """The file in which `orphan` leaves its number."""
    return tmp_path / "pid"


@pytest.fixture
def orphan(pid: Path) -> list[str]:
    """A command that leaves a process behind."""
    return [sys.executable, "-c", ORPHAN, str(pid)]


def test_orphans_of_the_launcher_are_stopped(
    orphan: list[str], pid: Path, tmp_path: Path
) -> None:
    run_watched(orphan, {}, tmp_path, 1, None, 0.0)
    number = int(pid.read_text())
    assert not psutil.pid_exists(number)


def test_a_folder_that_somebody_removes_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with refused("run: the run's folder is gone, removed or renamed .* exit code 7"):
        run_watched(["sh", "-c", f"rm -r {out}; exit 7"], {}, out, 1, None, 0.0)


def test_later_orphans_are_no_children_of_ours(
    orphan: list[str], pid: Path, tmp_path: Path
) -> None:
    """Or Slurm's daemons are children of a pytest that launched a job, and zombies once killed."""
    run_watched(["true"], {}, tmp_path, 1, None, 0.0)
    subprocess.run(orphan, check=True)
    number = int(pid.read_text())
    later = psutil.Process(number)
    try:
        assert later.ppid() != psutil.Process().pid
    finally:
        later.kill()


def test_a_flood_on_the_standard_error_keeps_its_first_and_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_BYTES_A_RANK", 100_000)
    letters = "''.join(chr(97 + int(digit)) for digit in str(i))"
    flood = f"for i in range(50_000): print({letters}, 'x' * 20, file=sys.stderr)"
    repeated = "for i in range(5_000): print('bind', 'failed', i, file=sys.stderr)"
    code = (
        f"import sys\nprint('first', file=sys.stderr)\n{repeated}\n{flood}\nsys.exit(7)"
    )
    with pytest.raises(RankFailed, match="exit code 7"):
        run_watched([sys.executable, "-c", code], {}, tmp_path, 1, None, 0.0)
    log = (tmp_path / "stderr.log").read_text()
    assert len(log) < 110_000
    assert log.startswith("first\nbind failed 0\n")
    assert log.count("\nbind failed") == 100
    assert "ejjjj xxx" in log
    assert " lines left out ...]" in log
    assert log.endswith("[4,900 more lines like this one: ] bind failed 4999\n")


def test_scratch_of_dead_launchers_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # no /dev/shm
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = tmp_path / f".rn50.partial-{_machine()}00000000"
    dead.mkdir()
    with supervisor._scratch(None, one_machine=True) as variables:
        alive = Path(variables["TMPDIR"])
        assert alive.stat().st_mode & 0o777 == 0o700
        with supervisor._scratch(None, one_machine=True):
            assert alive.is_dir()
        assert {*tmp_path.iterdir()} == {alive}
    assert not [*tmp_path.iterdir()]


def test_an_error_below_the_lock_stays_what_it_is() -> None:
    """A fork that is refused is a BlockingIOError, as a lock is that another has."""
    scratch = supervisor._scratch(None, one_machine=True)
    with pytest.raises(BlockingIOError), scratch:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_launcher_that_stands_still_is_seen() -> None:
    watchdog = Watchdog(Settings(start_s=0.1), 1, one_machine=True)
    with subprocess.Popen(["sleep", "600"], text=True) as child:
        child.send_signal(signal.SIGSTOP)
        code = wait_for_launcher(child, watchdog, StopSignals())
        child.kill()
    watchdog.close()
    assert code == -signal.SIGSTOP


@pytest.mark.parametrize(("of_config_s", "of_ranks_s"), [(10.0, 30.0), (30.0, 10.0)])
def test_a_stop_waits_for_the_longer_of_two_times(
    of_config_s: float,
    of_ranks_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*_: object) -> int:
        raise KeyboardInterrupt("SIGTERM")

    waited = []

    def wait(_: object, stop: object, grace_s: float) -> None:
        waited.append(grace_s)

    monkeypatch.setattr(supervisor, "wait_for_launcher", stopped)
    monkeypatch.setattr(supervisor, "_wait_for_end", wait)
    watchdog = Watchdog(Settings(), 1, one_machine=True)
    watchdog.grace_s = of_ranks_s
    with pytest.raises(KeyboardInterrupt):
        run_watched(["true"], {}, tmp_path, 1, watchdog, of_config_s)
    watchdog.close()
    assert waited == [30.0]


@pytest.mark.parametrize("code", [0, 1])
def test_what_ended_well_as_the_signal_came_is_not_stopped(code: int) -> None:
    stop = StopSignals()

    class Child(subprocess.Popen[str]):
        def poll(self) -> int | None:
            stop.name = "SIGTERM"
            return self.wait()

    with Child(["sh", "-c", f"exit {code}"], text=True) as child:
        if code == 0:
            assert wait_for_launcher(child, None, stop) == 0
        else:
            with pytest.raises(KeyboardInterrupt):
                wait_for_launcher(child, None, stop)


def test_a_place_that_refuses_locks_is_one_for_ranks_all_the_same() -> None:
    code = (
        "from rn50.launch.supervisor import _scratch\n"
        "with _scratch(None, one_machine=True): pass"
    )
    refused = refusing(Path("/dev/shm"), flock="ENOLCK")
    subprocess.run([sys.executable, "-c", code], env=os.environ | refused, check=True)


def test_every_signal_is_as_it_was_behind_the_watch() -> None:
    """SIGINT was taken twice once: Ctrl-C did nothing from the end of the ranks on."""
    numbers = (signal.SIGINT, *STOP_SIGNALS)
    handlers = [signal.getsignal(number) for number in numbers]
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != handlers[0]
    assert [signal.getsignal(number) for number in numbers] == handlers
