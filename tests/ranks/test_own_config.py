"""One's own YAML and image set, neither in the current folder: a job finds the set."""

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
system: {results: PLACE/runs, ranks_per_node: 1}
log: {every: 5 steps}
eval: {target: 0.01, period: 1, offset: 0}
"""


def test_a_job_with_staged_copies_trains_on_the_counts_of_the_set(
    rn50: Rn50, small_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(small_data, tmp_path / "images")
    config = tmp_path / "mine.yaml"
    config.write_text(MINE.replace("PLACE", str(tmp_path)))
    rn50.output(
        "submit",
        str(config),
        "--scheduler",
        "local",
        "--wait",
        "seed=1",
        f"system.job.stage={tmp_path}/disk",
    )
    (result,) = tmp_path.glob("runs/mine/*/run_0/result.json")
    assert read_json(result)["status"] == "success"
    data = load(result.parent / "config.yaml").run.data
    staged = tmp_path / "disk/rn50_data"
    assert (data.path, data.synthetic) == (str(staged), None)
    assert (data.classes, data.train_samples, data.eval_samples) == (4, 400, 200)
    assert not staged.exists()  # removed at the end
