"""The plan of a step on the fake GPU: its numbers against the CPU's, what it asks of the device.

Streams are lazy wherever numbers are looked at: what a wait is missing for is missing from them.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.launch.doctor import MOST_OFF
from tests.gpu.runs import HALF, ONE_RANK, SHORT, Body, GpuRun, answer_of

pytestmark = pytest.mark.slow
MEGABYTE = 1e6
BOTH_NORMS = pytest.mark.parametrize("norms", ["CUDNN", "OWN"])


def distance(answer: dict[str, Any]) -> float:
    """The largest difference of the GPU's losses and the CPU's, as a share of the first."""
    expected = np.array(answer["cpu"])
    errors = np.abs(np.array(answer["gpu"]) - expected)
    share = float(errors.max() / expected[0])
    print(share)
    return share


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("capability", "layout", "graphs", "norms"),
    [
        ("7.0", "NHWC", "1", "CUDNN"),
        ("7.5", "NHWC", "1", "CUDNN"),
        ("8.0", "NCHW", "0", "CUDNN"),
        ("9.0", "NHWC", "1", "CUDNN"),
        ("9.0", "NHWC", "1", "OWN"),
    ],
)
def test_losses_are_the_cpus_step_for_step(
    capability: str, layout: str, graphs: str, norms: str, dtype: str, body: Body
) -> None:
    environment = {"FAKECUDA_CAPABILITY": capability, "FAKECUDA_GRAPHS": graphs}
    answer = body(environment, do="losses", dtype=dtype, layout=layout, norms=norms)
    assert any("cudnnBatchNorm" in name for name in answer["counts"]) == (
        norms == "CUDNN"
    )
    assert distance(answer) <= MOST_OFF[dtype]
    launches = answer["counts"].get("graph launches", 0)
    assert (launches > 0) == (graphs == "1")
    assert "kernels not computed" not in answer["counts"]


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("float16", 0.01)])
@pytest.mark.parametrize("preset", ["dgxh100_8", "sony_4096"])
def test_a_presets_network_computes_the_cpus_losses(
    preset: str, dtype: str, limit: float, body: Body
) -> None:
    """All float16 presets have the network of one of the two: without label smoothing, or with."""
    answer = body(do="preset", preset=preset, dtype=dtype)
    assert distance(answer) <= limit


def test_the_float16_presets_have_two_networks() -> None:
    models = [load(name).run.model for name in list_presets()]
    half = [model for model in models if model.dtype == "float16"]
    assert len({model.model_dump_json(exclude={"loss_scale"}) for model in half}) == 2


@BOTH_NORMS
def test_a_step_is_the_same_with_graphs_and_whenever_streams_work(
    norms: str, body: Body
) -> None:
    """Streams work as late as they may, as early, and in turns that are drawn."""
    first, *repeats = (
        body(
            {"FAKECUDA_GRAPHS": graphs, "FAKECUDA_LAZY": lazy},
            do="losses",
            dtype="float16",
            layout="NHWC",
            norms=norms,
        )["gpu"]
        for graphs, lazy in ("01", "11", "10", "12")
    )
    assert repeats == [first] * 3


@BOTH_NORMS
def test_two_ranks_sum_what_one_computes(
    norms: str, fake_environment: Path, emulated: Path
) -> None:
    """Bit for bit: float16 sums of two."""
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    environment = {"FAKECUDA_DEVICES": "2", "FAKECUDA_KERNELS": str(emulated)}
    alone, together = (
        answer_of(
            [horovodrun, "--gloo", "-np", str(ranks)],
            {"do": "gradients", "ranks": ranks, "norms": norms},
            **environment,
        )
        for ranks in (1, 2)
    )
    assert alone["groups"] == 4
    assert alone["size"] > 1
    assert alone["digest"] == together["digest"]


TINY = (
    *ONE_RANK,
    *SHORT,
    "schedule.warmup=0 epochs",
    "eval.target=0.999",
    "checkpoint.every=1 epochs",
)


def test_a_run_that_was_stopped_goes_on_bit_for_bit(
    computing: None, gpu_run: GpuRun
) -> None:
    settings = (*TINY, *HALF, "batch.per_rank=20")
    uninterrupted = gpu_run(*settings, computed=True)
    first = gpu_run(*settings, "limits.epochs=1", computed=True)
    resumed = gpu_run(
        *settings,
        "limits.epochs=null",
        config=str(first.out / "config.yaml"),
        resume=first.out,
        computed=True,
    )
    assert resumed.result["weights_digest"] == uninterrupted.result["weights_digest"]
    assert uninterrupted.result["weights_digest"] != first.result["weights_digest"]
    assert uninterrupted.result["eval_accuracy"] > 0.3  # of four classes


def test_an_overflow_of_a_dynamic_scale_is_skipped(
    computing: None, gpu_run: GpuRun
) -> None:
    settings = (*TINY, *HALF, "model.loss_scale=dynamic(16777216)", "log.every=1 steps")
    done = gpu_run(*settings, "limits.epochs=1", computed=True)
    scales = [point["loss_scale"] for point in done.log_points]
    assert scales[0] == 16777216
    assert scales[-1] < 16777216 / 8
    assert all(np.isfinite(point["loss"]) for point in done.log_points)
    assert done.result["eval_accuracy"] > 0.4  # of four classes


@pytest.mark.parametrize(
    ("preset", "capability", "memory_gib"),
    [("dgx1_8", "7.0", "16"), ("dgxa100_8", "8.0", "80"), ("dgxh100_8", "9.0", "80")],
)
@pytest.mark.parametrize("groups", ["single", "cubic(3)"])
def test_a_step_of_a_preset_stays_within_its_bounds(
    preset: str, capability: str, memory_gib: str, groups: str, body: Body
) -> None:
    environment = {
        "FAKECUDA_CAPABILITY": capability,
        "FAKECUDA_COMPUTE": "0",
        "FAKECUDA_MEMORY_GIB": memory_gib,
    }
    options = {"do": "count", "preset": preset, "overrides": [f"comm.groups={groups}"]}
    answer = body(environment, **options)
    per_step = answer["each"]
    gigabytes = answer["peak_bytes"] / 1e9
    assert moved_megabytes(answer) <= 279
    assert per_step.get("layout conversions", 0) == 0
    assert per_step["launches"] <= answer["groups"] + 3
    assert per_step["host waits"] <= 1 + answer["groups"]
    assert per_step.get("cudaMalloc", 0) == 0
    assert preset != "dgx1_8" or gigabytes < 14
    without_graphs = {**environment, "FAKECUDA_GRAPHS": "0"}
    eager = body(without_graphs, **options)["each"]
    assert eager["launches"] + eager["cudnn calls"] <= 350


def moved_megabytes(answer: dict[str, Any]) -> float:
    """An image, by cuDNN's calls and our kernels."""
    moved_bytes = answer["each"]["tensor bytes"] + answer["own_bytes"]
    moved = float(moved_bytes / answer["batch"] / MEGABYTE)
    print(f"{moved:.1f} MB an image", f"{answer['peak_bytes'] / 1e9:.1f} GB")
    return moved


@pytest.mark.parametrize(
    ("preset", "capability", "memory_gib", "batch", "most_calls"),
    [
        ("dgx1_8", "7.0", "16", 208, 390),
        ("dgxh100_8", "9.0", "80", 400, 390),
        ("dgxh100_8", "9.0", "80", 32, 372),  # nine layers in one launch each way
    ],
)
def test_norms_of_our_own_stay_within_their_bounds(
    preset: str,
    capability: str,
    memory_gib: str,
    batch: int,
    most_calls: int,
    body: Body,
) -> None:
    answer = body(
        {
            "FAKECUDA_CAPABILITY": capability,
            "FAKECUDA_COMPUTE": "0",
            "FAKECUDA_MEMORY_GIB": memory_gib,
            "FAKECUDA_GRAPHS": "0",
        },
        do="count",
        preset=preset,
        overrides=["comm.groups=single", f"batch.per_rank={batch}"],
        norms="OWN",
    )
    per_step = answer["each"]
    print(per_step["launches"], per_step["cudnn calls"])
    assert moved_megabytes(answer) <= 346
    assert per_step["launches"] + per_step["cudnn calls"] <= most_calls
    assert preset != "dgx1_8" or answer["peak_bytes"] < 9.7e9


def test_too_large_a_batch_is_one_line(body: Body) -> None:
    with pytest.raises(
        AssertionError, match=r"batch: 3[0-9]\.\d GiB of the GPU's memory"
    ):
        body(
            {"FAKECUDA_COMPUTE": "0", "FAKECUDA_MEMORY_GIB": "16"},
            do="count",
            preset="dgx1_8",
            overrides=["batch.per_rank=800"],
        )
