from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.config.load import load
from rn50.config.plan import build_plan
from rn50.train.schedule import lr_schedule, warmup_poly


def at(config: str, step: int) -> float:
    run = load(config).run
    return lr_schedule(run, build_plan(run))(step)


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
    """recipes.md section 2.2: 13 x [(1 - 0.0025)(1 - q)^2.2 + 0.0025]."""
    assert at("abci_2048_open", step) == pytest.approx(lr, rel=1e-12)


def test_points_of_quick() -> None:
    assert at("quick", 50) == pytest.approx(0.2)
    assert at("quick", 400) == pytest.approx(1e-4)


@given(
    base=st.floats(0.01, 50),
    power=st.floats(0.5, 4),
    warmup=st.integers(0, 500),
    decay=st.integers(1, 1000),
)
def test_rises_then_falls_then_stays(base: float, power: float, warmup: int, decay: int) -> None:
    lrs = [
        warmup_poly(
            step, base_lr=base, end_lr=1e-4, power=power, warmup_steps=warmup, decay_steps=decay
        )
        for step in range(1, warmup + decay + 10)
    ]
    rise, fall = lrs[:warmup], lrs[warmup:]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    assert all(1e-4 <= lr <= base * (1 + 1e-12) for lr in fall)
    assert lrs[warmup + decay - 1 :] == [1e-4] * 10
    if warmup:
        assert lrs[warmup - 1] == pytest.approx(base)
