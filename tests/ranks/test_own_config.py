"""One's own YAML and image set, neither in the current folder: every command finds the set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rn50.config.load import load

pytestmark = pytest.mark.slow

MINE = """\
base: smoke
name: mine
division: open
data: {path: PLACE/images}
system: {results: PLACE/runs}
log: {every: 5 steps}
eval: {target: 0.5}
"""


@pytest.fixture
def place(tmp_path: Path, small_data: Path) -> Path:
    """`configs/mine.yaml`, and the set in `images`: nothing of it in the current folder."""
    shutil.copytree(small_data, tmp_path / "images")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/mine.yaml").write_text(MINE.replace("PLACE", str(tmp_path)))
    return tmp_path


def test_a_job_with_staged_copies_trains_on_the_counts_of_the_set(rn50, place: Path) -> None:
    config = str(place / "configs/mine.yaml")
    stage = f"system.job.stage={place}/disk"
    done = rn50("submit", config, "--scheduler", "local", "--wait", "seed=1", stage)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = place.glob("runs/mine/*/run_0/result.json")
    assert json.loads(result.read_text())["status"] == "success"
    data = load(result.parent / "config.yaml").run.data
    assert (data.path, data.synthetic) == (f"{place}/disk/rn50_data", None)
    assert (data.classes, data.train_samples, data.eval_samples) == (4, 400, 200)
    assert not (place / "disk/rn50_data").exists()  # removed at the end
