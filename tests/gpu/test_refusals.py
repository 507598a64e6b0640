"""What a rank refuses before it touches any data: a GPU it has no code for, an old driver, none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.launch.ending import RunError
from tests.gpu.runs import GpuRun
from tests.waiting import finished

pytestmark = pytest.mark.slow


def start_rank(
    out: Path, *settings: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`rn50.train` as a launcher starts it, on data that does not exist."""
    return finished(
        [
            sys.executable,
            "-m",
            "rn50.train",
            "smoke",
            "--out",
            str(out),
            "system.device=gpu",
            "system.ranks_per_node=1",
            "model.dtype=float16",
            "data.path=/no/such/data",
            "seed=1",
            *settings,
        ],
        env=os.environ | environment,
        timeout=120,
    )


CAPABILITY = "FAKECUDA_CAPABILITY"
DRIVER = "FAKECUDA_DRIVER"
NAME = "FAKECUDA_NAME"
B200 = {NAME: "NVIDIA B200", CAPABILITY: "10.0"}
SECOND = {f"HOROVOD_{name}": "1" for name in ("RANK", "LOCAL_RANK")}
SECOND |= {"HOROVOD_SIZE": "2", "FAKECUDA_DEVICES": "1"}
TWO_RANKS = ("system.ranks_per_node=2",)


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ((), B200, "a GPU from 7.0 to 9.0 for the plan expected"),
        (
            (),
            {DRIVER: "11080"},
            "a driver for CUDA 12.0 (525 or newer) expected, found one for 11.",
        ),
        (TWO_RANKS, SECOND, "a GPU for local rank 1 expected, found 1"),
    ],
)
def test_a_gpu_that_cannot_run_the_network_is_refused_in_one_line(
    settings: tuple[str, ...],
    environment: dict[str, str],
    expected: str,
    fake_environment: Path,
    tmp_path: Path,
) -> None:
    done = start_rank(tmp_path, *settings, **environment)
    assert done.returncode == 3
    record, line = done.stderr.strip().splitlines()
    assert record.startswith("rn50: failure: ")
    assert expected in line
    if name := environment.get(NAME):
        assert f"found {name} with {environment[CAPABILITY]}" in line
        assert "model.step=operators" not in line  # MXNet has no code for it either
    # no log was begun, no data looked at
    assert not (tmp_path / "result_0.txt").exists()


@pytest.mark.parametrize(
    ("settings", "environment"),
    [
        ((), {CAPABILITY: "8.9"}),  # Ada runs Ampere's code
        ((), {CAPABILITY: "9.0"}),  # ours
        # one for each task: 0 of every rank
        (TWO_RANKS, SECOND | {"CUDA_VISIBLE_DEVICES": "3"}),
    ],
)
def test_a_gpu_that_can_is_taken(
    settings: tuple[str, ...],
    environment: dict[str, str],
    fake_environment: Path,
    tmp_path: Path,
) -> None:
    done = start_rank(tmp_path, *settings, **environment)
    assert "/no/such/data" in done.stderr  # it came as far as the data


def test_a_driver_without_a_compiler_says_so(
    fake_environment: Path, smoke_data: Path, tmp_path: Path
) -> None:
    environment = {"FAKECUDA_COMPILER": "0"}
    done = start_rank(tmp_path, f"data.path={smoke_data}", **environment)
    assert done.returncode == 3
    assert "its compiler (libnvidia-ptxjitcompiler.so) expected" in done.stderr
    assert "NVIDIA_DRIVER_CAPABILITIES" in done.stderr


def test_two_ranks_on_one_gpu_are_refused_by_its_name(
    gpu_run: GpuRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(
        RunError, match=r"found GPU-00000000-.* for rank 0 .* and rank 1 "
    ):
        gpu_run("system.ranks_per_node=2")


def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    done = start_rank(tmp_path)
    assert done.returncode == 3
    assert "an NVIDIA driver" in done.stderr
    assert "Traceback" not in done.stderr


def test_mxnets_kernels_do_not_load_on_hopper(fake_environment: Path) -> None:
    """What the refusal comes before: CUDA's own answer, from the wheel's real fat binaries."""
    done = finished(
        [
            sys.executable,
            "-c",
            "import rn50, mxnet as mx; (mx.nd.ones(4, mx.gpu(0)) * 2).asnumpy()",
        ],
        env=os.environ | {"FAKECUDA_CAPABILITY": "9.0"},
        timeout=120,
    )
    assert done.returncode != 0
    assert "no kernel image is available for execution on the device" in done.stderr
