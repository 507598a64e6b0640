"""What is removed or used up on the disk of a run while it trains costs no run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rn50.logging.parse import read_events
from tests.conftest import RUN, Rn50
from tests.faults.test_resume import bits, records

pytestmark = pytest.mark.slow
SIGN = "step 15/"
LOGS = ("result_0.txt", "metrics.jsonl")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        "size=40m,nr_inodes=64",
        "tmpfs",
        str(folder),
    ]
    mounted = subprocess.run(command, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_logs_that_are_removed_are_put_back_and_end_no_run(
    rn50: Any, small_data: Path, whole: Path
) -> None:
    process = rn50.start(*started(rn50, small_data))
    assert any(SIGN in line for line in process.stdout)
    folder = rn50.run_folder()
    for name in LOGS:
        (folder / name).unlink()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert all(f"rn50: warning: {folder / name}: removed" in out for name in LOGS)
    assert "no checkpoint" not in out
    assert bits(folder) == bits(whole)
    assert records(folder) == records(whole)
    keys = [
        [event.key for event in read_events(run / LOGS[0])] for run in (folder, whole)
    ]
    assert keys[0] == keys[1]


def test_a_disk_without_inodes_costs_checkpoints_and_no_result(
    disk: Path, small_data: Path, whole: Path
) -> None:
    rn50 = Rn50(disk / "results")
    process = rn50.start(*started(rn50, small_data))
    assert any(SIGN in line for line in process.stdout)
    with pytest.raises(OSError, match="No space left on device"):
        for number in count():
            (disk / str(number)).touch()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    folder = rn50.run_folder()
    assert bits(folder) == bits(whole)
    assert records(folder) == records(whole)
    assert {"ranks.json", "timeline.json", "report.html"} <= {
        p.name for p in folder.iterdir()
    }
    assert "\nRESULT aborted" in out
    assert "cannot write: no free inodes; training goes on" in out


def started(rn50: Rn50, data: Path) -> list[str]:
    return ["launch", *RUN, f"data.path={data}", f"system.results={rn50.results}"]
