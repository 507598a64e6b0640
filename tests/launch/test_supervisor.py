from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from rn50.launch.supervisor import run_watched

ORPHAN = (
    "import subprocess, sys; sleep = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL);"
    "open(sys.argv[1], 'w').write(str(sleep.pid))"
)


def orphan(pid: Path) -> list[str]:
    """A command that leaves a process behind, and its number in the file `pid`."""
    return [sys.executable, "-c", ORPHAN, str(pid)]


def test_orphans_of_the_launcher_are_stopped(tmp_path: Path) -> None:
    run_watched(orphan(tmp_path / "pid"), {}, tmp_path, None, 0.0)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_later_orphans_are_no_children_of_ours(tmp_path: Path) -> None:
    """Or Slurm's daemons are children of a pytest that launched a job, and zombies once killed."""
    run_watched(["true"], {}, tmp_path, None, 0.0)
    subprocess.run(orphan(tmp_path / "pid"), check=True)
    later = psutil.Process(int((tmp_path / "pid").read_text()))
    try:
        assert later.ppid() != psutil.Process().pid
    finally:
        later.kill()
