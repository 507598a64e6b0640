"""Two ranks as two nodes, each with its own part of the set on its own disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.config.manifest import Part
from rn50.data.stage import stage
from tests import mpi

pytestmark = [pytest.mark.slow, mpi.NEEDED]

CONFIG = (
    *("smoke", "seed=1", "data.shards=node", "data.last_batch=pad", "system.nodes=2"),
    *("system.ranks_per_node=1", "data.train_samples=400", "data.eval_samples=200"),
    *("eval.period=1", "eval.offset=0", "eval.target=0.999"),
)


def train(root: Path, out: Path, epochs: int, disks: list[Path], *more: str) -> dict[str, object]:
    """One rank for each disk, which holds its set."""
    out.mkdir(exist_ok=True)
    command = [mpi.LAUNCHER, "--oversubscribe", "--allow-run-as-root"]
    for disk in disks:
        rank = [sys.executable, "-m", "rn50.train", *CONFIG, f"limits.epochs={epochs}"]
        command += ["-np", "1", *rank, f"data.path={disk}", "--out", str(out), *more, ":"]
    done = subprocess.run(command[:-1], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((out / "result.json").read_text())


@pytest.mark.skipif(mpi.LAUNCHER != "mpirun", reason="Open MPI starts ranks of different commands")
def test_nodes_with_a_part_each_train_and_resume_like_nodes_with_the_whole_set(
    root: Path, small_data: Path, tmp_path: Path
) -> None:
    disks = [tmp_path / f"disk{node}" for node in range(2)]
    for node, disk in enumerate(disks):
        stage(small_data, disk, Part(node, 2))
    whole = train(root, tmp_path / "whole", 2, [small_data] * 2)
    train(root, tmp_path / "parts", 1, disks)
    newest = max((tmp_path / "parts/checkpoint").glob("step_*.ckpt"))
    resumed = train(root, tmp_path / "parts", 2, disks, "--resume", str(newest))
    assert resumed["epochs"] == whole["epochs"] == 2
    assert resumed["weights_digest"] == whole["weights_digest"]
