"""Points of every published schedule, and shapes by property."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.load import load
from rn50.config.plan import Plan, build_plan
from rn50.train.schedule import (
    Settings,
    akiba_sgd_share,
    cosine,
    factor_at,
    momentum_for_batch,
    poly,
    sony_b,
    step_settings,
    warmup,
)


def settings(config: str, *overrides: str) -> tuple[Plan, object]:
    run = load(config, overrides).run
    plan = build_plan(run)
    return plan, step_settings(run, plan)


@pytest.mark.parametrize(
    ("step", "lr"),
    [
        (1, 13.0 / 540),
        (270, 6.5),
        (540, 13.0),
        (930, 13 * ((1 - 0.0025) * 0.5**2.2 + 0.0025)),  # half-way down
        (1320, 0.0325),
        (1350, 0.0325),  # the last 30 steps stay
    ],
)
def test_points_of_fujitsus_schedule(step: int, lr: float) -> None:
    """13 x [(1 - 0.0025)(1 - q)^2.2 + 0.0025]."""
    assert settings("abci_2048_open")[1](step) == (pytest.approx(lr, rel=1e-12), 0.96, 86_016)


@pytest.mark.parametrize(
    ("preset", "epoch", "lr"),
    [
        ("goyal_256", 5, 3.2),
        ("goyal_256", 29, 3.2),
        ("goyal_256", 31, 0.32),
        ("goyal_256", 61, 0.032),
        ("goyal_256", 81, 0.0032),
        ("akiba_1024", 40, 6.4),  # 0.5 x 12.8
        ("akiba_1024", 41, 0.96),
        ("akiba_1024", 71, 0.128),
        ("akiba_1024", 86, 0.0128),
        ("sony_2176", 34, 34.0),
        ("dgx1_n130", 25, 38.0),
    ],
)
def test_published_points_by_epoch(preset: str, epoch: int, lr: float) -> None:
    plan, at = settings(preset)
    assert at(plan.epoch_end_step(epoch)).lr == pytest.approx(lr, rel=2e-3)


@pytest.mark.parametrize(
    ("epoch", "lr"),
    [
        *((0, 0.2), (2.5, 14.6), (5, 29 * (1 - 5 / 90) ** 2), (30, 50 * (2 / 3) ** 2)),
        *((60, 50 / 9), (90, 0), (95, 0)),
    ],
)
def test_sonys_configuration_b(epoch: float, lr: float) -> None:
    assert sony_b(epoch) == pytest.approx(lr)


def test_sonys_momentum_follows_the_batch() -> None:
    """Smith and Le's scale: 54K -> 0.9407, 64K -> 0.95."""
    assert momentum_for_batch(55_296, 32_768, 0.9) == pytest.approx(0.9407, abs=1e-4)
    assert momentum_for_batch(65_536, 32_768, 0.9) == pytest.approx(0.95)
    _, at = settings("sony_3456")
    assert at(1).momentum == pytest.approx(0.9407, abs=1e-4)
    assert at(1).global_batch_size == 55_296


@pytest.mark.parametrize(
    ("follow", "lr_factor", "momentum"), [("none", 1, 0.9), ("lr", 2, 0.9), ("momentum", 1, 0.95)]
)
def test_settings_follow_the_batch(follow: str, lr_factor: int, momentum: float) -> None:
    changes = "batch.changes=[{after_epoch: 2, per_rank: 32}]"
    plan, at = settings("quick", "batch.per_rank=16", changes, f"batch.follow={follow}")
    _, plain = settings("quick", "batch.per_rank=16", changes)
    before, after = plan.epoch_end_step(2), plan.epoch_end_step(2) + 1
    assert at(before) == plain(before) == Settings(plain(before).lr, 0.9, 32)
    assert at(after).lr == pytest.approx(plain(after).lr * lr_factor)
    assert at(after).momentum == pytest.approx(momentum)
    assert at(after).global_batch_size == 64


@pytest.mark.parametrize(
    ("epoch", "share"), [(0, 0.5 * math.exp(-4)), (10, 0.5), (11, 0.7), (12.5, 1), (60, 1)]
)
def test_akibas_handover(epoch: float, share: float) -> None:
    assert akiba_sgd_share(epoch) == pytest.approx(share)


def test_milestones() -> None:
    assert [factor_at(s, [(10, 0.5), (20, 0.1)]) for s in (1, 10, 11, 20, 21)] == [
        *(1.0, 1.0, 0.5, 0.5, 0.1)
    ]


@given(
    base=st.floats(0.01, 50),
    start=st.floats(0, 0.01),
    power=st.floats(0.5, 4),
    steps=st.integers(1, 500),
    decay=st.integers(1, 1000),
)
def test_rises_then_falls_then_stays(
    base: float, start: float, power: float, steps: int, decay: int
) -> None:
    rise = [warmup(s, steps, start_lr=start, base_lr=base) for s in range(1, steps + 1)]
    assert rise == sorted(rise) and rise[-1] == pytest.approx(base)
    for fall in (
        [poly(s, base_lr=base, end_lr=1e-4, power=power, decay_steps=decay) for s in range(1200)],
        [cosine(s, base_lr=base, end_lr=1e-4, decay_steps=decay) for s in range(1200)],
    ):
        assert fall[0] == pytest.approx(base)
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(fall))
        assert fall[decay:] == pytest.approx([1e-4] * (1200 - decay))
