"""The presets of published runs against the numbers their sources print.

`tests/train/test_published_curves.py` has batch, learning rate and momentum of every step.
"""

import math
from functools import partial
from typing import NamedTuple

import pytest

from rn50.config.leaves import flatten
from rn50.config.load import load
from rn50.config.names import list_presets
from rn50.config.plan import build_plan


class Published(NamedTuple):
    """What a source prints; None where nothing is said."""

    ranks: int
    weight_decay: float | None = None
    evaluated: tuple[int, ...] = ()
    """Epochs after which runs stopped, or whose accuracy is printed."""
    top1: float | None = None
    dtype: str = "float16"


CLOSED = {
    # mlcommons/logging rcps_resnet.json 2.0.0 to 4.0.0
    "abci_2048_closed_32k": Published(2048, 2.5e-5, (56,)),
    "abci_2048_closed_64k": Published(2048, 1e-4, (84,)),
    # NVIDIA v0.6
    "dgx1_n130": Published(1040, 2e-4, (82, 86)),
    # NVIDIA v0.7
    "dgx1_8": Published(8, 1e-4, (33, 37)),
    "dgx2h_n32": Published(512, 2.5e-5, (56,)),
    # NVIDIA v2.0
    "dgxa100_8": Published(8, 5e-5, (35,)),
    "dgxa100_n128": Published(1024, 2.5e-5, (56, 60)),
    # NVIDIA v3.0
    "dgxh100_8": Published(8, 5e-5, (35,)),
}
in_float32 = partial(Published, dtype="float32")
OPEN = {
    # Fujitsu v0.6
    "abci_2048_open": Published(2048, 5e-5, (90,), top1=0.759),
    # Mikami et al., arXiv:1811.05233, Tables 3 and 5
    "sony_1024": Published(1024, top1=0.754),
    "sony_2176": Published(2176, top1=0.7503),
    "sony_3456": Published(3456, top1=0.7529),
    "sony_3456_64k": Published(3456, top1=0.7462),
    "sony_4096": Published(4096, top1=0.7523),
    # Goyal et al., arXiv:1706.02677
    "goyal_256": in_float32(256, top1=0.763),
    # Akiba et al., arXiv:1711.04325
    "akiba_1024": in_float32(1024, top1=0.749),
    # You et al., SysML'18, Table 4; arXiv:1709.05011
    "you_2048_knl": in_float32(2048, evaluated=(64, 90), top1=0.754),
    "you_1600_cpu": in_float32(1600, top1=0.753),
    # the same, and borisgin/nvcaffe, models/alexnet_bn/solver_32k.prototxt
    "you_alexnet_32k": in_float32(2048, 5e-4, (100,), top1=0.586),
}
RECIPES = CLOSED | OPEN


@pytest.mark.parametrize("name", RECIPES)
def test_published_hyper_parameters(name: str) -> None:
    run = load(name).run
    published = RECIPES[name]
    assert run.system.world_size == published.ranks
    if published.weight_decay is not None:
        assert run.optimizer.weight_decay == published.weight_decay
    assert run.model.dtype == published.dtype
    assert {*published.evaluated} <= {*build_plan(run).eval_epochs}


@pytest.mark.parametrize("name", OPEN)
def test_run_of_a_paper_is_open_aims_at_its_top1_and_evaluates_its_last_epoch(
    name: str,
) -> None:
    run = load(name).run
    plan = build_plan(run)
    assert run.division == "open"
    assert run.eval.target == OPEN[name].top1
    assert plan.epochs in plan.eval_epochs


@pytest.mark.parametrize(
    ("name", "published"),
    [
        (
            "abci_2048_open",
            {
                "data.no_augment_from_epoch": 90 - 5 + 1,
                "optimizer.variant": "fujitsu",
                "comm.groups": "cubic(3)",
            },
        ),
        (
            "akiba_1024",
            {
                "optimizer.variant": "akiba",
                "eval.bn_stats": "batch",
                "comm.gradient_dtype": "float16",
            },
        ),
        ("sony_2176", {"model.label_smoothing": 0}),
        ("sony_3456", {"model.label_smoothing": 0.1}),
        ("sony_4096", {"model.label_smoothing": 0}),
    ],
)
def test_what_a_paper_says_besides(name: str, published: dict[str, object]) -> None:
    values = dict(flatten(load(name).to_dict()))
    assert {key: values[key] for key in published} == published


def test_only_sonys_presets_augment_further_with_nnabla_examples_values() -> None:
    """imagenet-classification/obsolete/classification.py: angle 0.5, aspect_ratio 1.3, contrast
    1.1, scales 1.1 to 2.2 times the view; pad, brightness and noise are 0 there."""
    degrees = 90 / math.pi
    expected = {
        "scale": (1.1, 2.2),
        "aspect": (1 / 1.3, 1.3),
        "contrast": (1 / 1.1, 1.1),
        "rotation_deg": (-degrees, degrees),
    }
    for name in list_presets():
        ranges = load(name).run.data.augmentation.ranges
        assert len(ranges) == (7 if name.startswith("sony_") else 0)
        for operation, limits in expected.items():
            assert ranges.get(operation, limits) == pytest.approx(limits, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("sony_2176", [(16, 2176), (32, 2176)]),
        ("sony_3456", [(16, 3456), (32, 1728)]),
        ("sony_3456_64k", [(16, 3456), (32, 2048)]),
        # The second phase is printed as 16 x 4,352 on 4,096 GPUs.
        ("sony_4096", [(16, 2176), (17, 4096), (32, 2720), (32, 3808)]),
    ],
)
def test_sonys_workers(name: str, workers: list[tuple[int, int]]) -> None:
    segments = build_plan(load(name).run).segments
    assert [(segment.per_rank, segment.active_ranks) for segment in segments] == workers
