"""What a rank refuses before it touches any data: a GPU it has no code for, an old driver, none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


ALEXNET = (
    *("model.network=alexnet", "model.depth=50", "model.width=64", "model.stem=imagenet"),
    *("model.zero_gamma=false", "data.crop_px=64", "data.eval_resize_px=72"),
)


def start_rank(out: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`rn50.train` as a launcher starts it, on data that does not exist."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "rn50.train", "smoke", "--out", str(out)),
            *("system.device=gpu", "system.ranks_per_node=1", "model.dtype=float16"),
            *("data.path=/no/such/data", "seed=1", *words),
        ],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "capability", "words", "expected"),
    [
        ("NVIDIA B200", "10.0", (), "our own kernels run from 5.0 to 9.0; MXNet has ELF for sm_50"),
        ("NVIDIA H100", "9.0", ALEXNET, "our own kernels have no alexnet (dropout is MXNet's);"),
        ("NVIDIA H100", "9.0", ("model.kernels=mxnet",), "MXNet has ELF for sm_50, sm_60"),
        ("NVIDIA A100", "8.0", (*ALEXNET, "model.kernels=own"), "our own kernels have no alexnet"),
    ],
)
def test_a_gpu_that_cannot_run_the_network_is_refused_in_one_line(
    name: str,
    capability: str,
    words: tuple[str, ...],
    expected: str,
    fake_environment: Path,
    tmp_path: Path,
) -> None:
    done = start_rank(tmp_path, *words, FAKECUDA_NAME=name, FAKECUDA_CAPABILITY=capability)
    assert done.returncode == 3
    (line,) = done.stderr.strip().splitlines()
    assert f"found {name} with {capability}" in line and expected in line
    assert not (tmp_path / "result_0.txt").exists()  # no log was begun, no data looked at


@pytest.mark.parametrize("capability", ["8.9", "9.0"])
def test_ada_runs_amperes_code_and_hopper_ours(
    capability: str, fake_environment: Path, tmp_path: Path
) -> None:
    done = start_rank(tmp_path, FAKECUDA_CAPABILITY=capability)
    assert "/no/such/data" in done.stderr  # it came as far as the data


def test_the_driver_that_dali_needs_is_asked_for(fake_environment: Path, tmp_path: Path) -> None:
    done = start_rank(tmp_path, FAKECUDA_DRIVER="11080")
    assert done.returncode == 3
    assert "a driver for CUDA 12.0 (525 or newer) expected, found one for 11.8" in done.stderr
    done = start_rank(tmp_path, "data.decoder=cpu", FAKECUDA_DRIVER="11080")
    assert "/no/such/data" in done.stderr  # without DALI's GPU part it need not be that new


def test_the_driver_that_mxnets_fused_operators_need_is_asked_for(
    fake_environment: Path, tmp_path: Path
) -> None:
    done = start_rank(tmp_path, "data.decoder=cpu", FAKECUDA_DRIVER="11040")
    assert done.returncode == 3
    assert (
        "MXNet: a driver for CUDA 11.8 (520 or newer) expected, found one for 11.4" in done.stderr
    )


def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    done = start_rank(tmp_path)
    assert done.returncode == 3
    assert "an NVIDIA driver" in done.stderr
    assert "Traceback" not in done.stderr


def test_ranks_beyond_the_gpus_are_refused(fake_environment: Path, tmp_path: Path) -> None:
    place = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}
    done = start_rank(tmp_path, "system.ranks_per_node=2", FAKECUDA_DEVICES="1", **place)
    assert "a GPU for local rank 1 expected, found 1" in done.stderr
    # One visible GPU for each task: it is number 0 of every rank.
    seen = place | {"CUDA_VISIBLE_DEVICES": "3"}
    done = start_rank(tmp_path, "system.ranks_per_node=2", FAKECUDA_DEVICES="1", **seen)
    assert "/no/such/data" in done.stderr


def test_mxnets_kernels_do_not_load_on_hopper(fake_environment: Path) -> None:
    """What the refusal comes before: CUDA's own answer, from the wheel's real fat binaries."""
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import rn50, mxnet as mx; (mx.nd.ones(4, mx.gpu(0)) * 2).asnumpy()",
        ],
        env=os.environ | {"FAKECUDA_CAPABILITY": "9.0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "no kernel image is available for execution on the device" in done.stderr
