"""Every algorithm gives the plain sum on real ranks, through the trainer's own communicator."""

import sys
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.launch.launchers import build_job
from rn50.launch.supervisor import run_job
from tests import mpi

pytestmark = pytest.mark.slow
BODY = Path(__file__).with_name("sum_body.py")
FLOAT32 = ("comm.groups=explicit(4,1,5)",)
HALF = (
    "comm.gradient_dtype=float16 comm.groups=equal_count(2)",
    "model.dtype=float16 comm.groups=equal_bytes(3)",
)


def check_error(overrides: str, worst: float) -> None:
    """float32 sums of at most 8 standard normal values: a few units of the last place of 16;
    float16 has 11 bits of at most 8."""
    if "float16" in overrides:
        assert 1e-5 < worst < 2e-2
    else:
        assert worst < 1e-5


OTHERS = ("ring", "segmented_ring", "recursive_doubling", "recursive_halving_doubling")
"""An MPI's own: what is ours is the same as for its ring."""


@pytest.mark.parametrize(
    ("launcher", "algorithm", "ranks", "cases"),
    [
        pytest.param(mpi.LAUNCHER, "torus_2d", 4, FLOAT32, marks=mpi.NEEDED),
        pytest.param("gloo", "ring", 3, FLOAT32 + HALF, marks=pytest.mark.nightly),
        pytest.param("gloo", "torus_2d(2x3)", 6, HALF[1:], marks=pytest.mark.nightly),
        *(
            pytest.param(
                mpi.LAUNCHER, name, 6, FLOAT32, marks=[mpi.NEEDED, pytest.mark.nightly]
            )
            for name in OTHERS
        ),
    ],
)
def test_the_sum_is_the_plain_sum(
    tmp_path: Path, launcher: str, algorithm: str, ranks: int, cases: tuple[str, ...]
) -> None:
    if launcher == mpi.LAUNCHER and not mpi.offers(algorithm):
        pytest.skip(f"{mpi.FAMILY} has no {algorithm}, which it refuses")
    loaded = load(
        "smoke", [f"system.ranks_per_node={ranks}", f"comm.algorithm={algorithm}"]
    )
    config = tmp_path / "config.yaml"
    config.write_text(loaded.to_yaml())
    command = [sys.executable, str(BODY), str(config), str(tmp_path), *cases]
    job, _ = build_job(loaded.run, launcher, command)
    run_job(job, launcher, tmp_path)
    worst = (tmp_path / "worst.txt").read_text().split()
    *of_sums, of_statistics = map(float, worst)
    assert of_statistics < 1e-4  # variances of up to 60, in float32
    for overrides, error in zip(cases, of_sums, strict=True):
        check_error(overrides, error)
