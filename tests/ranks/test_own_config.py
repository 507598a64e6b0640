"""One's own YAML and image set, neither in the current folder: a job finds the set."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rn50.config.load import load
from tests.conftest import Rn50, read_json

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


def test_a_job_with_staged_copies_trains_on_the_counts_of_the_set(
    rn50: Rn50, small_data: Path, tmp_path: Path
) -> None:
    place = tmp_path
    shutil.copytree(small_data, place / "images")
    config = place / "mine.yaml"
    config.write_text(MINE.replace("PLACE", str(place)))
    stage = f"system.job.stage={place}/disk"
    rn50.output(
        "submit", str(config), "--scheduler", "local", "--wait", "seed=1", stage
    )
    (result,) = place.glob("runs/mine/*/run_0/result.json")
    assert read_json(result)["status"] == "success"
    data = load(result.parent / "config.yaml").run.data
    assert (data.path, data.synthetic) == (f"{place}/disk/rn50_data", None)
    assert (data.classes, data.train_samples, data.eval_samples) == (4, 400, 200)
    assert not (place / "disk/rn50_data").exists()  # removed at the end
