"""What is used up on the disk of a run while it trains costs no run. Logs that are removed:
tests/logging/test_timeline_metrics.py."""

import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import Rn50
from tests.faults.test_resume import bits, start_run
from tests.waiting import finished

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
SIGN = "step 15/"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = "size=40m,nr_inodes=64"
    mounted = finished(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder])
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_without_inodes_costs_checkpoints_and_no_result(
    disk: Path, small_data: Path, uninterrupted: Path
) -> None:
    rn50 = Rn50(disk / "results")
    process = start_run(rn50, small_data, "gloo")
    assert any(SIGN in line for line in process.stdout)
    with pytest.raises(OSError, match="No space left on device"):
        for number in count():
            (disk / str(number)).touch()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    folder = rn50.run_folder()
    assert bits(folder) == bits(uninterrupted)
    for name in ("ranks.json", "timeline.json", "report.html"):
        assert (folder / name).is_file(), name
    assert "\nRESULT missed" in out
    assert "cannot write: no free inodes; training goes on" in out
