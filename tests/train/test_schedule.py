"""Shapes by property, and what they follow; `test_published_curves.py` has the published runs."""

import math
from collections.abc import Callable

import pytest

from rn50.config.load import load
from rn50.config.plan import Plan, build_plan
from rn50.train.schedule import Settings, akiba_sgd_share, cosine, step_settings

CHANGE = "batch.changes=[{after_epoch: 2, per_rank: 32}]"


def settings(*overrides: str) -> tuple[Plan, Callable[[int], Settings]]:
    run = load("quick", ["batch.per_rank=16", *overrides]).run
    plan = build_plan(run)
    return plan, step_settings(run, plan)


@pytest.mark.parametrize(("decay", "epochs"), [("null", None), ("4 epochs", 4)])
@pytest.mark.parametrize("last_batch", ["mix", "pad"])
@pytest.mark.parametrize(
    "origin", ["warmup_end", "run_start", "first_step_after_warmup"]
)
@pytest.mark.parametrize("shape", ["poly", "cosine"])
def test_a_changing_batch_has_the_learning_rate_of_the_same_images(
    shape: str, origin: str, last_batch: str, decay: str, epochs: int | None
) -> None:
    """3,200 images: 100 steps of 32, then 50 of 64. The batch changes within the warm-up."""
    common = [
        f"schedule.shape={shape}",
        f"schedule.decay_from={origin}",
        f"schedule.decay={decay}",
        "schedule.warmup=3 epochs",
        f"data.last_batch={last_batch}",
    ]
    plan, settings_at = settings(*common, CHANGE)
    _, plain = settings(*common)
    for step in range(1, plan.total_steps + 1):
        late = int(origin == "first_step_after_warmup" and step > plan.warmup_steps)
        same = plan.images_after(step - late) // 32 + late
        expected = plain(same).lr
        assert settings_at(step).lr == pytest.approx(expected, rel=1e-12, abs=1e-15)
    start = 0 if origin == "run_start" else 3
    end = plan.epoch_end_step(start + epochs if epochs else 8)
    assert plan.warmup_steps == plan.epoch_end_step(3)
    assert plan.decay_steps == end - plan.epoch_end_step(start)


@pytest.mark.parametrize(
    ("follow", "lr_factor", "momentum"),
    [("none", 1, 0.9), ("lr", 2, 0.9), ("momentum", 1, 0.95)],
)
def test_settings_follow_the_batch(
    follow: str, lr_factor: int, momentum: float
) -> None:
    plan, settings_at = settings(CHANGE, f"batch.follow={follow}")
    _, plain = settings(CHANGE)
    last = plan.epoch_end_step(2)
    assert settings_at(last) == plain(last)
    assert settings_at(last)[1:] == (0.9, 32)
    expected = (plain(last + 1).lr * lr_factor, momentum, 64)
    assert settings_at(last + 1) == pytest.approx(expected)


def test_a_batch_that_grows_can_leave_the_rate_as_it_is() -> None:
    """Smith et al., arXiv:1711.00489: the batch in place of the rate."""
    plan, settings_at = settings(CHANGE, "schedule.shape=step", "optimizer.base_lr=0.1")
    steps = range(plan.warmup_steps, plan.total_steps + 1)
    assert {settings_at(step).lr for step in steps} == {0.1}
    assert {settings_at(step).global_batch_size for step in steps} == {32, 64}


@pytest.mark.parametrize(
    ("epoch", "share"),
    [(0, 0.5 * math.exp(-4)), (10, 0.5), (11, 0.7), (12.5, 1), (60, 1)],
)
def test_akibas_handover(epoch: float, share: float) -> None:
    assert akiba_sgd_share(epoch) == pytest.approx(share)


def test_a_cosine_falls_by_half_its_wave() -> None:
    factors = [cosine(done) for done in (0, 0.5, 1)]
    assert factors == pytest.approx([1.0, 0.5, 0.0])
