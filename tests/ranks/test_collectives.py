"""Every algorithm gives the plain sum on real ranks, through the trainer's own communicator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.launch.launchers import build_job
from rn50.launch.supervisor import run_job
from tests import mpi

pytestmark = pytest.mark.slow
BODY = Path(__file__).with_name("sum_body.py")
CASES = [
    (mpi.LAUNCHER, "ring", 3),
    (mpi.LAUNCHER, "segmented_ring", 4),
    (mpi.LAUNCHER, "recursive_doubling", 4),
    (mpi.LAUNCHER, "recursive_halving_doubling", 6),
    (mpi.LAUNCHER, "torus_2d", 6),
    ("gloo", "ring", 3),
    ("gloo", "torus_2d(2x2)", 4),
]


def worst_error(tmp_path: Path, launcher: str, ranks: int, *overrides: str) -> float:
    loaded = load("smoke", [f"system.ranks_per_node={ranks}", *overrides])
    (tmp_path / "config.yaml").write_text(loaded.to_yaml())
    command = [sys.executable, str(BODY), str(tmp_path / "config.yaml"), str(tmp_path)]
    job, _ = build_job(loaded.run, launcher, command)
    run_job(job, launcher, tmp_path)
    of_sums, of_statistics = map(float, (tmp_path / "worst.txt").read_text().split())
    assert of_statistics < 1e-4  # variances of up to 60, in float32
    return of_sums


@pytest.mark.parametrize(
    ("launcher", "algorithm", "ranks"),
    [pytest.param(*case, marks=[mpi.NEEDED] if case[0] == mpi.LAUNCHER else []) for case in CASES],
)
def test_the_sum_is_the_plain_sum(
    tmp_path: Path, launcher: str, algorithm: str, ranks: int
) -> None:
    if launcher == mpi.LAUNCHER and not mpi.offers(algorithm):
        pytest.skip(f"{mpi.FAMILY} has no {algorithm}, which it refuses")
    overrides = [f"comm.algorithm={algorithm}", "comm.groups=explicit(4,1,5)"]
    # float32 sums of at most 8 standard normal values: a few units of the last place of 16
    assert worst_error(tmp_path, launcher, ranks, *overrides) < 1e-5


@pytest.mark.parametrize(
    "overrides",
    [
        ["comm.gradient_dtype=float16", "comm.groups=equal_count(2)"],
        ["model.dtype=float16", "comm.groups=equal_bytes(3)"],
    ],
)
def test_sums_in_float16_are_as_good_as_float16(overrides: list[str], tmp_path: Path) -> None:
    assert 1e-5 < worst_error(tmp_path, "gloo", 2, *overrides) < 2e-2  # 11 bits of at most 8


@mpi.NEEDED
def test_a_run_on_a_torus_reaches_its_target(rn50, small_data: Path) -> None:
    done = rn50(
        *("launch", "smoke", "--ranks", "4", "--launcher", mpi.LAUNCHER, "seed=1"),
        *("comm.algorithm=torus_2d", "batch.per_rank=5", "eval.target=0.5"),
        *(f"data.path={small_data}", f"system.results={rn50.results}"),
    )
    assert done.returncode == 0, done.stderr
    assert "RESULT success" in done.stdout
