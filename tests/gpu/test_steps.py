"""What a step asks of the GPU: kernels, synchronizations and copies, counted and held as bounds."""

from __future__ import annotations

import pytest

from tests.gpu.runs import HALF, ONE_RANK, GpuRun

pytestmark = pytest.mark.slow
FULL = ("model.depth=50", "model.width=64", "model.stem=imagenet", "model.layout=NCHW")
STEPS = 10
RUN = ("schedule.length=1 epochs", "schedule.warmup=0 epochs", "eval.period=1", "eval.offset=0")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("capability", ["7.0", "9.0"])
@pytest.mark.parametrize("variant", ["sgd", "fujitsu"])
def test_a_step_of_our_own_kernels_is_a_light_one(
    variant: str, capability: str, layout: str, gpu_run: GpuRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake refuses every launch without code for its capability."""
    monkeypatch.setenv("FAKECUDA_CAPABILITY", capability)
    done = gpu_run(
        *(*ONE_RANK, *HALF, *FULL, *RUN, "optimizer.eta=0.1", f"optimizer.variant={variant}"),
        *(f"log.every={STEPS} steps", "model.zero_gamma=false", "checkpoint.enabled=false"),
        *("model.kernels=own", f"model.layout={layout}"),
    )
    counted = {
        name: done.each_step(name, STEPS)
        for name in ("kernels", "cudaStreamSynchronize", "copies device to host", "cudaMalloc")
    }
    print(variant, capability, layout, counted)
    assert counted["kernels"] <= 45
    assert counted["cudaStreamSynchronize"] <= 20
    assert counted["cudaMalloc"] < 0.5


@pytest.mark.parametrize(
    ("variant", "kernels", "synchronizations"),
    [("sgd", 140, 30), ("nvidia", 165, 30), ("fujitsu", 165, 30)],
)
def test_a_float16_step_of_resnet50_stays_within_its_bounds(
    variant: str, kernels: int, synchronizations: int, gpu_run: GpuRun
) -> None:
    eta = ("optimizer.eta=0.1",) if variant != "sgd" else ()
    done = gpu_run(
        *(*ONE_RANK, *HALF, *FULL, *RUN, *eta, f"optimizer.variant={variant}"),
        *(f"log.every={STEPS} steps", "model.zero_gamma=false", "checkpoint.enabled=false"),
    )
    counted = {
        name: done.each_step(name, STEPS)
        for name in ("kernels", "cudaStreamSynchronize", "copies device to host", "cudaMalloc")
    }
    print(variant, counted)
    assert counted["kernels"] <= kernels
    assert counted["cudaStreamSynchronize"] <= synchronizations
    assert counted["cudaMalloc"] < 0.5  # memory is taken in start-up
