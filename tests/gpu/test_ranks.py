"""Real ranks to their end on the fake GPU: every network, precision, layout, optimizer and wire."""

import json

import pytest

from tests.gpu.runs import HALF, ONE_RANK, SHORT, GpuRun

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that refuses MXNet's kernels, so that a step of the plan that called one would end."""
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "9.0")


BASE = (*ONE_RANK, *SHORT)
PX64 = ("data.crop_px=64", "data.eval_resize_px=72")
RESNET = ("model.depth=50", "model.width=16")
PLAIN = (
    "model.depth=50",
    "model.width=64",
    "model.stem=imagenet",
    "model.zero_gamma=false",
    *PX64,
)
NETWORKS = {
    "resnet": RESNET,
    "operators": (*RESNET, "model.step=operators"),
    "alexnet": ("model.network=alexnet", *PLAIN),
    "googlenet": ("model.network=googlenet", *PLAIN),
}


@pytest.mark.parametrize(
    ("layout", "dtype"), [("NCHW", "float32"), ("NHWC", "float16")]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_and_evaluates_to_its_target(
    name: str, layout: str, dtype: str, gpu_run: GpuRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "resnet":  # refused on Hopper (test_refusals.py)
        monkeypatch.setenv("FAKECUDA_CAPABILITY", "8.0")
    done = gpu_run(
        *BASE,
        *NETWORKS[name],
        f"model.dtype={dtype}",
        f"model.layout={layout}",
        accuracy=[0.5, 0.9],
    )
    assert done.result["epochs"] == 2
    assert done.result["eval_accuracy"] == 0.9
    assert done.result["official_checker"]["verdict"] == "PASS"
    is_planned = (done.result.get("norms", "")).startswith("cudnn: of ")
    assert is_planned == (name == "resnet")
    computed = "NHWC" if name == "resnet" else layout
    assert f"cudnnConvolutionBackwardFilter {dtype} {computed}" in done.counts
    for call in done.counts:
        assert dtype in call or not call.startswith("cudnnConvolution")


@pytest.mark.parametrize(
    ("variant", "more"),
    [
        ("sgd", (*HALF, "model.loss_scale=128", "deterministic=true")),
        ("you", (*HALF, "eval.bn_stats=local")),
        ("reference", (*HALF, "eval.bn_stats=batch")),
        ("nvidia", (*HALF, "model.loss_scale=dynamic", "comm.groups=single")),
        ("fujitsu", (*HALF, "comm.gradient_dtype=float16", "comm.groups=cubic(3)")),
        ("sony", ("comm.gradient_dtype=float16", "eval.bn_stats=batch")),
        ("akiba", ("comm.gradient_dtype=float16", "eval.bn_stats=batch")),
    ],
)
def test_every_optimizer_runs_to_its_end(
    variant: str, more: tuple[str, ...], gpu_run: GpuRun
) -> None:
    if variant not in ("sgd", "akiba"):
        more = ("optimizer.eta=0.1", *more)
    done = gpu_run(*BASE, f"optimizer.variant={variant}", *more, accuracy=[0.5, 0.9])
    assert done.result["epochs"] == 2


def test_two_ranks_sum_over_nccl_and_one_of_them_may_idle(gpu_run: GpuRun) -> None:
    """Sony's presets begin with ranks that have no share of the batch."""
    change = json.dumps([{"after_epoch": 1, "per_rank": 10, "active_ranks": 2}])
    done = gpu_run(
        "system.ranks_per_node=2",
        *SHORT,
        *HALF,
        "batch.active_ranks=1",
        f"batch.changes={change}",
        "log.every=20 steps",
        accuracy=[0.5, 0.9],
        gpus=2,
    )
    assert done.result["ranks"] == 2
    active, idle = (report["counts"] for report in done.reports)
    assert active["ncclAllReduce over 2"] > 100
    assert idle["ncclAllReduce over 2"] > 100
    # 155 steps; the idle rank's first epoch has no forward pass
    convolutions = "cudnnConvolutionForward float16 NHWC"
    assert 0 < idle[convolutions] < 0.6 * active[convolutions]


def test_a_dynamic_loss_scale_halves_and_travels_through_a_checkpoint(
    gpu_run: GpuRun,
) -> None:
    settings = (
        *BASE,
        *HALF,
        "model.loss_scale=dynamic(64)",
        "checkpoint.every=1 epochs",
    )
    first = gpu_run(*settings, "limits.epochs=1", accuracy=[0.5], overflows=[3])
    assert first.log_points[-1]["loss_scale"] == 32
    resumed = gpu_run(
        *settings,
        config=str(first.out / "config.yaml"),
        resume=first.out,
        accuracy=[0.9],
    )
    assert resumed.result["resumed_after_step"] == 100
    assert resumed.log_points[-1]["loss_scale"] == 32


def test_the_weights_of_a_float16_model_travel_in_the_groups_of_the_rule(
    gpu_run: GpuRun,
) -> None:
    """Fujitsu's four groups of float16, then batch norm's in float32: not one after backward."""
    steps = 10
    done = gpu_run(
        "system.ranks_per_node=2",
        *SHORT,
        *HALF,
        *NETWORKS["resnet"],
        "comm.groups=cubic(3)",
        f"log.every={steps} steps",
        "checkpoint.enabled=false",
        gpus=2,
    )
    assert done.each_step("ncclAllReduce of float16", steps) == pytest.approx(
        4, abs=0.1
    )
    # Batch norm's, and now and then a log point's losses or an evaluation's statistics.
    assert 1 < done.each_step("ncclAllReduce of float32", steps) < 1.5
