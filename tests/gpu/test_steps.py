"""What a step asks of the GPU: kernels, synchronizations and copies, counted and held as bounds."""

from __future__ import annotations

import pytest

from tests.gpu.runs import HALF, ONE_RANK, GpuRun

pytestmark = pytest.mark.slow
FULL = ("model.depth=50", "model.width=64", "model.stem=imagenet")
STEPS = 10
RUN = ("schedule.length=1 epochs", "schedule.warmup=0 epochs", "eval.period=1", "eval.offset=0")


OWN = "own"
FUSED = "mxnet"


@pytest.mark.parametrize(
    ("kernels", "capability", "layout", "variant", "launches", "synchronizations"),
    [
        *(
            (OWN, capability, layout, variant, 45, 20)
            for capability in ("7.0", "9.0")
            for layout in ("NCHW", "NHWC")
            for variant in ("sgd", "fujitsu")
        ),
        (FUSED, "8.0", "NCHW", "sgd", 140, 30),
        (FUSED, "8.0", "NCHW", "nvidia", 165, 30),
        (FUSED, "8.0", "NCHW", "fujitsu", 165, 30),
    ],
)
def test_a_float16_step_of_resnet50_stays_within_its_bounds(
    kernels: str,
    capability: str,
    layout: str,
    variant: str,
    launches: int,
    synchronizations: int,
    gpu_run: GpuRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fake refuses every launch without code for its capability."""
    monkeypatch.setenv("FAKECUDA_CAPABILITY", capability)
    eta = ("optimizer.eta=0.1",) if variant != "sgd" else ()
    done = gpu_run(
        *ONE_RANK,
        *HALF,
        *FULL,
        *RUN,
        *eta,
        f"optimizer.variant={variant}",
        f"log.every={STEPS} steps",
        "model.zero_gamma=false",
        "checkpoint.enabled=false",
        f"model.kernels={kernels}",
        f"model.layout={layout}",
    )
    counted = {
        name: done.each_step(name, STEPS)
        for name in ("kernels", "cudaStreamSynchronize", "copies device to host", "cudaMalloc")
    }
    print(kernels, variant, capability, layout, counted)
    assert counted["kernels"] <= launches
    assert counted["cudaStreamSynchronize"] <= synchronizations
    assert counted["cudaMalloc"] < 0.5  # memory is taken in start-up
