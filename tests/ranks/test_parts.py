"""Two ranks as two nodes, each with its own part of the set on its own disk."""

import sys
from pathlib import Path

import pytest

from rn50.config.manifest import Part
from rn50.data.stage import stage
from rn50.train.checkpoint.folder import checkpoints_in
from tests import mpi
from tests.conftest import read_json
from tests.waiting import output_of

pytestmark = [pytest.mark.slow, mpi.NEEDED]

CONFIG = (
    "smoke",
    "seed=1",
    "data.shards=node",
    "data.last_batch=pad",
    "system.nodes=2",
    "system.ranks_per_node=1",
    "data.train_samples=400",
    "data.eval_samples=200",
    "eval.period=1",
    "eval.offset=0",
    "eval.target=0.999",
    "limits.epochs=2",
    "checkpoint.every=1 epochs",
    "checkpoint.keep=9",
)


def train(root: Path, out: Path, disks: list[Path], *more: str) -> str:
    """The digest of the weights after two epochs, with one rank for each disk, which holds its
    set."""
    rank = [sys.executable, "-m", "rn50.train", *CONFIG, "--out", str(out), *more]
    command = [mpi.LAUNCHER, "--oversubscribe", "--allow-run-as-root"]
    for disk in disks:
        command += ["-np", "1", *rank, f"data.path={disk}", ":"]
    output_of(command[:-1], cwd=root)
    result = read_json(out / "result.json")
    assert result["epochs"] == 2
    return result["weights_digest"]


@pytest.mark.nightly
@pytest.mark.skipif(
    mpi.LAUNCHER != "mpirun", reason="Open MPI starts ranks of different commands"
)
def test_nodes_with_a_part_each_go_on_like_nodes_with_the_whole_set(
    root: Path, small_data: Path, tmp_path: Path
) -> None:
    """From the first epoch's checkpoint of a run on the whole set."""
    disks = [tmp_path / f"disk{node}" for node in range(2)]
    for node, disk in enumerate(disks):
        stage(small_data, disk, Part(node, 2))
    out = tmp_path / "run"
    out.mkdir()
    expected_digest = train(root, out, [small_data] * 2)
    first, *later = checkpoints_in(out / "checkpoint")
    assert later
    for path in later:
        path.unlink()
    assert train(root, out, disks, "--resume", str(first)) == expected_digest
