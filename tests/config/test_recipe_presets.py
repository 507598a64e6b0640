"""The presets of published runs against the numbers their sources print."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from rn50.config.load import load
from rn50.config.names import PRESETS
from rn50.config.plan import build_plan
from rn50.config.schema import Run
from rn50.launch.engine_environment import engine_environment

K = 1024


class Published(NamedTuple):
    """What a source prints. `batches`: (after epoch, global batch); None where nothing is said."""

    source: str
    ranks: int
    batches: tuple[tuple[int, int], ...]
    epochs: int
    base_lr: float | None
    warmup_epochs: int | None
    steps_per_epoch: int | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    evaluated: tuple[int, ...] = ()
    top1: float | None = None
    dtype: str = "float16"


def closed(
    source: str,
    ranks: int,
    batch: int,
    epochs: int,
    lr: float,
    warmup: int,
    steps: int,
    momentum: float,
    decay: float,
    *evaluated: int,
) -> Published:
    return Published(
        source, ranks, ((0, batch),), epochs, lr, warmup, steps, momentum, decay, evaluated
    )


RCP = "mlcommons/logging rcps_resnet.json 2.0.0 to 4.0.0"
CLOSED = {
    # source, ranks, global batch, epochs, LR, warm-up, steps/epoch, momentum, wd, stop epochs
    "abci_2048_closed_32k": closed(RCP, 2048, 32_768, 58, 21.2, 16, 40, 0.94, 2.5e-5, 56),
    "abci_2048_closed_64k": closed(RCP, 2048, 65_536, 90, 24.699, 31, 20, 0.951807, 1e-4, 84),
    "dgx1_n130": closed("NVIDIA v0.6", 1040, 54_080, 90, 38, 25, 24, 0.9, 2e-4, 82, 86),
    "dgx2h_n32": closed("NVIDIA v0.7", 512, 33_280, 58, 21.2, 16, 39, 0.94, 2.5e-5, 56),
    "dgxa100_8": closed("NVIDIA v2.0", 8, 3264, 37, 10.5, 2, 393, 0.9, 5e-5, 35),
    "dgxa100_n128": closed("NVIDIA v2.0", 1024, 35_840, 60, 21.9, 17, 36, 0.94, 2.5e-5, 56, 60),
    "dgxh100_8": closed("NVIDIA v3.0", 8, 3200, 37, 11, 2, 401, 0.9, 5e-5, 35),
}
SONY = "Mikami et al., arXiv:1811.05233, Tables 3 and 5"
YOU = "You et al., SysML'18, Table 4; arXiv:1709.05011"
OPEN = {
    "abci_2048_open": Published(
        "Fujitsu v0.6", 2048, ((0, 86_016),), 90, 13, 36, 15, 0.96, 5e-5, (90,), 0.759
    ),
    "sony_1024": Published(SONY, 1024, ((0, 32 * K),), 90, None, None, top1=0.754),
    "sony_2176": Published(
        SONY, 2176, ((0, 34 * K), (30, 68 * K)), 90, 34, 34, momentum=0.9, top1=0.7503
    ),
    "sony_3456": Published(SONY, 3456, ((0, 54 * K), (30, 54 * K)), 90, 29, 5, top1=0.7529),
    "sony_4096": Published(
        SONY,
        4096,
        ((0, 34 * K), (30, 68 * K), (45, 85 * K), (75, 119 * K)),
        90,
        34,
        34,
        momentum=0.9,
        top1=0.7523,
    ),
    "goyal_256": Published(
        "Goyal et al., arXiv:1706.02677",
        256,
        ((0, 8192),),
        90,
        0.1 * 8192 / 256,
        5,
        top1=0.763,
        dtype="float32",
    ),
    "akiba_1024": Published(
        "Akiba et al., arXiv:1711.04325",
        1024,
        ((0, 32_768),),
        90,
        0.5 * 0.1 * 32_768 / 256,
        0,
        top1=0.749,
        dtype="float32",
    ),
    "you_2048_knl": Published(
        YOU, 2048, ((0, 32_768),), 90, None, None, top1=0.754, dtype="float32"
    ),
    "you_1600_cpu": Published(
        YOU, 1600, ((0, 16_000),), 90, None, None, top1=0.753, dtype="float32"
    ),
    "you_alexnet_32k": Published(
        f"{YOU}; borisgin/nvcaffe, models/alexnet_bn/solver_32k.prototxt",
        2048,
        ((0, 32_768),),
        100,
        32,
        10,
        40,
        0.9,
        5e-4,
        (100,),
        0.586,
        "float32",
    ),
}
RECIPES = CLOSED | OPEN
CHANGING = [name for name, published in RECIPES.items() if len(published.batches) > 1]
STEADY = [name for name in RECIPES if name not in CHANGING]

every_recipe = pytest.mark.parametrize("name", RECIPES)


def ranks_of(run: Run) -> int:
    return run.system.world_size


def batches_of(run: Run) -> tuple[tuple[int, int], ...]:
    """(after epoch, active ranks x images per rank)."""
    ranks = ranks_of(run)
    phases = [(0, run.batch.per_rank, run.batch.active_ranks)]
    phases += [(c.after_epoch, c.per_rank, c.active_ranks) for c in run.batch.changes]
    return tuple((epoch, per_rank * (active or ranks)) for epoch, per_rank, active in phases)


def header_of(name: str) -> list[str]:
    lines = (PRESETS / f"{name}.yaml").read_text().splitlines()
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]


@every_recipe
def test_header_says_what_it_reproduces_how_to_run_it_and_where_it_comes_from(name: str) -> None:
    header = header_of(name)
    remark = (
        ""
        if load(name).run.system.device == "cpu"
        else "          (run only on a fake GPU: docs/gpu.md)"
    )
    assert 3 <= len(header) <= 8
    assert any(character.isdigit() for character in header[0])
    assert header[1] == f"#   ./run_and_time.sh {name}{remark}"
    assert header[2].startswith("# Source: ")


@pytest.mark.parametrize("name", [name for name in OPEN if name != "abci_2048_open"])
def test_header_of_a_paper_preset_names_what_is_ours_and_what_the_target_is(name: str) -> None:
    header = " ".join(line.lstrip("# ") for line in header_of(name))
    assert "Ours" in header
    assert "target is the top-1 they reached" in header


@every_recipe
def test_batch_on_all_active_ranks_is_the_published_global_batch(name: str) -> None:
    run, published = load(name).run, RECIPES[name]
    assert run.name == name
    assert ranks_of(run) == published.ranks
    assert batches_of(run) == published.batches, published.source
    for change in (run.batch, *run.batch.changes):
        assert (change.active_ranks or 1) <= published.ranks


@every_recipe
def test_published_hyper_parameters(name: str) -> None:
    run, published = load(name).run, RECIPES[name]
    assert (run.schedule.length.unit, run.schedule.length.value) == ("epochs", published.epochs)
    if published.base_lr is not None:
        assert run.optimizer.base_lr == pytest.approx(published.base_lr)
    if published.warmup_epochs is not None:
        warmup = run.schedule.warmup
        assert (warmup.unit, warmup.value) == ("epochs", published.warmup_epochs)
    if published.momentum is not None:
        assert run.optimizer.momentum == published.momentum
    if published.weight_decay is not None:
        assert run.optimizer.weight_decay == published.weight_decay
    assert run.model.dtype == published.dtype


@every_recipe
def test_what_a_variant_brings_is_not_written_again(name: str) -> None:
    optimizer = load(name).run.optimizer
    written = (optimizer.eta, optimizer.epsilon, optimizer.momentum_correction)
    assert written == (None, None, None)


@pytest.mark.parametrize("name", STEADY)
def test_plan_has_the_published_steps_and_evaluates_where_runs_stopped(name: str) -> None:
    published, plan = RECIPES[name], build_plan(load(name).run)
    assert plan.epochs == published.epochs
    assert plan.global_batch_size == published.batches[0][1]
    if published.steps_per_epoch is not None:
        assert plan.steps_per_epoch == published.steps_per_epoch
        assert plan.total_steps == published.epochs * published.steps_per_epoch
        assert plan.warmup_steps == (published.warmup_epochs or 0) * published.steps_per_epoch
    assert set(published.evaluated) <= set(plan.eval_epochs)


@pytest.mark.parametrize("name", OPEN)
def test_run_of_a_paper_is_open_aims_at_its_top1_and_evaluates_its_last_epoch(name: str) -> None:
    run, published = load(name).run, OPEN[name]
    assert run.division == "open"
    assert run.eval.target == published.top1
    assert (published.epochs - 1) % run.eval.period == run.eval.offset


@pytest.mark.parametrize("name", CLOSED)
def test_closed_preset_keeps_the_closed_limits(name: str) -> None:
    """mlcommons/training_policies training_rules.adoc, v0.7 to v4.0."""
    run = load(name).run
    assert run.division == "closed"
    assert run.optimizer.variant == "nvidia"  # eta 0.001, epsilon 0
    assert (run.schedule.shape, run.schedule.power, run.schedule.end_lr) == ("poly", 2, 1e-4)
    assert run.schedule.warmup_start_lr == 0
    assert run.schedule.decay is None
    doublings = math.log2(run.optimizer.weight_decay / 1e-4)
    assert doublings == pytest.approx(round(doublings), abs=1e-5)
    assert run.optimizer.momentum == 0.9 or batches_of(run)[0][1] >= 32_768
    assert run.model.label_smoothing in (0, 0.1)
    assert (run.model.network, run.model.depth) == ("resnet", 50)
    assert (run.data.area, run.data.aspect) == ((0.05, 1.0), (3 / 4, 4 / 3))
    assert run.data.augment
    assert run.data.no_augment_from_epoch is None
    assert (run.eval.period, run.eval.target) == (4, 0.759)


def test_fujitsus_last_five_epochs_see_plain_images() -> None:
    run = load("abci_2048_open").run
    assert run.data.no_augment_from_epoch == 90 - 5 + 1


@pytest.mark.parametrize("name", ["sony_2176", "sony_4096"])
def test_sonys_configuration_a(name: str) -> None:
    run = load(name).run
    assert (run.schedule.shape, run.schedule.power) == ("poly", 2)
    assert run.schedule.warmup_start_lr == 1e-5
    assert run.batch.follow == "none"
    assert run.model.label_smoothing == 0


def test_sonys_configuration_b_keeps_the_noise_scale() -> None:
    """Momentum 0.9407 at 54K: 1 - (1 - 0.9) x 32,768 / 55,296."""
    run = load("sony_3456").run
    assert run.schedule.shape == "sony_b"
    assert (run.batch.follow, run.batch.reference, run.optimizer.momentum) == (
        "momentum",
        32 * K,
        0.9,
    )
    assert 1 - (1 - 0.9) * 32 * K / batches_of(run)[0][1] == pytest.approx(0.9407, abs=5e-5)
    assert run.model.label_smoothing == 0.1


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("sony_")])
def test_sonys_common_ground(name: str) -> None:
    run = load(name).run
    assert run.optimizer.variant == ("you" if name == "sony_1024" else "sony")
    assert run.comm.algorithm == ("torus_2d(48x72)" if name == "sony_3456" else "torus_2d")
    assert run.eval.bn_stats == "batch"
    assert run.system.name == "ABCI"


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("sony_2176", [(16, 2176), (32, 2176)]),
        ("sony_3456", [(16, 3456), (32, 1728)]),
        # The second phase is printed as 16 x 4,352 on 4,096 GPUs.
        ("sony_4096", [(16, 2176), (17, 4096), (32, 2720), (32, 3808)]),
    ],
)
def test_sonys_workers(name: str, workers: list[tuple[int, int]]) -> None:
    run = load(name).run
    phases = (run.batch, *run.batch.changes)
    assert [(p.per_rank, p.active_ranks or ranks_of(run)) for p in phases] == workers


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        # 1706.02677: 3.2, a tenth after 30, 60 and 80 epochs.
        ("goyal_256", [(0, 3.2), (30, 0.32), (60, 0.032), (80, 0.0032)]),
        # 1711.04325: 12.8 times 0.5 for 40 epochs, 0.075 for 30, 0.01 for 15, 0.001 for 5.
        ("akiba_1024", [(0, 6.4), (40, 0.96), (70, 0.128), (85, 0.0128)]),
    ],
)
def test_steps_of_the_learning_rate(name: str, rates: list[tuple[int, float]]) -> None:
    run = load(name).run
    assert run.schedule.shape == "step"
    found = [(0, run.optimizer.base_lr)]
    found += [(m.after_epoch, run.optimizer.base_lr * m.factor) for m in run.schedule.milestones]
    assert [epoch for epoch, _ in found] == [epoch for epoch, _ in rates]
    assert [lr for _, lr in found] == pytest.approx([lr for _, lr in rates])


def test_goyals_warmup_starts_at_the_rate_of_256_images() -> None:
    run = load("goyal_256").run
    assert (run.optimizer.variant, run.schedule.warmup_start_lr) == ("sgd", 0.1)
    assert run.model.zero_gamma


def test_akiba_has_fp16_on_the_wire_alone() -> None:
    run = load("akiba_1024").run
    assert (run.optimizer.variant, run.eval.bn_stats) == ("akiba", "batch")
    assert (run.model.dtype, run.comm.gradient_dtype) == ("float32", "float16")


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("you_")])
def test_yous_lars_runs_in_fp32_on_cpus(name: str) -> None:
    run = load(name).run
    assert (run.optimizer.variant, run.system.device) == ("you", "cpu")
    assert run.comm.gradient_dtype == "model"
    assert (run.schedule.shape, run.schedule.power) == ("poly", 2)


def test_alexnet_has_the_learning_rate_of_the_lars_authors_solver() -> None:
    run = load("you_alexnet_32k").run
    assert (run.model.network, run.data.crop_px) == ("alexnet", 224)
    assert (run.schedule.warmup_start_lr, run.schedule.end_lr) == (1, 0)


@every_recipe
def test_algorithm_is_one_that_the_backend_of_the_system_offers(name: str) -> None:
    run = load(name).run
    engine_environment(run, "nccl" if run.system.device == "gpu" else "mpi", {})
