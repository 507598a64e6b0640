"""What a step asks of the GPU: kernels, synchronizations and copies, counted and held as bounds."""

from __future__ import annotations

import pytest

from tests.gpu.runs import HALF, ONE_RANK, GpuRun

pytestmark = pytest.mark.slow
FULL = ("model.depth=50", "model.width=64", "model.stem=imagenet", "model.layout=NCHW")
STEPS = 10
RUN = ("schedule.length=1 epochs", "schedule.warmup=0 epochs", "eval.period=1", "eval.offset=0")


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
