"""Loss scaling: what a scale does next, what an overflow does to a step. A run that resumes with
it: test_lone_run.py."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet import gluon, nd

from rn50.config.schema import Optimizer
from rn50.train.checkpoint.state import LossScaleState
from rn50.train.devices import updater_for
from rn50.train.operators import Operators
from rn50.train.schedule import Settings
from rn50.train.update.loss_scale import (
    CHECK_DELAY_STEPS,
    DOUBLE_AFTER_STEPS,
    MAX_SCALE,
    MIN_SCALE,
    LossScaler,
    Scale,
    next_scale,
)
from rn50.train.update.optimizer import Updater
from tests.train import emulated

# --- the rule -------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It doubles after three steps."""
    monkeypatch.setattr("rn50.train.update.loss_scale.DOUBLE_AFTER_STEPS", 3)


@pytest.mark.usefixtures("soon")
def test_it_doubles_after_so_many_steps_up_to_a_bound() -> None:
    scales = [MAX_SCALE / 2]
    scale = Scale(scales[0])
    for _ in range(9):
        scale = next_scale(scale, scale.value, True)
        assert scale
        scales.append(scale.value)
    assert scales == [MAX_SCALE / 2] * 3 + [MAX_SCALE] * 7


@pytest.mark.usefixtures("soon")
@given(st.lists(st.booleans(), max_size=80), st.floats(MIN_SCALE, MAX_SCALE))
def test_it_stays_within_bounds_and_ends_at_the_lower_one(
    answers: list[bool], start: float
) -> None:
    scale = Scale(start)
    under_way = [start] * CHECK_DELAY_STEPS
    for finite in answers:
        used = under_way.pop(0)
        following = next_scale(scale, used, finite)
        if following is None:
            assert used <= MIN_SCALE
            assert not finite
            return
        assert MIN_SCALE / 2 <= following.value <= MAX_SCALE
        changed = following.value / scale.value
        if finite:
            assert changed in (1, 2)
        else:
            assert changed <= 1
            assert following.value < used
        scale = following
        under_way.append(scale.value)


def test_the_batch_decides_where_a_dynamic_one_starts() -> None:
    scaler = LossScaler("dynamic", [nd.zeros(3)], batch=20)
    assert scaler.value_at(1) == 2048
    assert LossScaler(3.5).value_at(1) == 3.5


# --- one step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_one_bad_value_clears_all_gradients_and_the_host_hears_later(
    bad: float,
) -> None:
    types = {200: "float32", 90: "float16", 70: "float16"}
    flat = [nd.ones(size, dtype=dtype) for size, dtype in types.items()]
    scaler = LossScaler("dynamic(256)", flat)
    scaler.zero_nonfinite(1)
    for gradients in flat:
        assert (gradients.asnumpy() == 1).all()
    assert scaler.finite == 1
    flat[1][5] = bad
    scaler.zero_nonfinite(2)
    assert not any(g.asnumpy().any() for g in flat)
    assert scaler.finite == 0
    assert scaler.value_at(1 + CHECK_DELAY_STEPS) == 256.0
    assert scaler.value_at(2 + CHECK_DELAY_STEPS) == 128.0


def test_a_saved_scaler_goes_on_as_it_was() -> None:
    """One step before it doubles, with a check under way."""
    first, resumed = (LossScaler(f"dynamic({n})", [nd.ones(4)]) for n in (256, 4))
    first.scale = Scale(256.0, DOUBLE_AFTER_STEPS - 1)
    first.zero_nonfinite(9)
    resumed.restore(first.state())
    checks = ((9, 256.0, True),)
    state = LossScaleState(value=256.0, growth_tracker=1999, checks=checks)
    assert resumed.state() == state
    assert resumed.value_at(8 + CHECK_DELAY_STEPS) == 256.0
    assert resumed.value_at(9 + CHECK_DELAY_STEPS) == 512.0


BY_EITHER_OPERATORS = pytest.mark.parametrize(
    "operators", [emulated.CPU, emulated.operators()]
)


def updater_of_a_tensor(
    operators: Operators, variant: str, dtype: str
) -> tuple[gluon.Parameter, Updater]:
    """A weight, drawn alike each time, and its updater with a dynamic scale that starts at 64."""
    settings = Optimizer(variant=variant, base_lr=0.1, weight_decay=1e-2)
    parameter = gluon.Parameter("fc_weight", shape=(8, 8))
    mx.random.seed(0)
    parameter.initialize(mx.init.Normal(0.5), ctx=mx.cpu())
    parameter.cast(dtype)
    gradients = [parameter.grad().reshape(-1)]
    scaler = LossScaler("dynamic(64)", () if operators.planned else gradients)
    updater = updater_for(
        operators,
        [parameter],
        settings,
        gradients,
        scaler=scaler,
        epoch_at=lambda _: 30.0,
    )
    return parameter, updater


@pytest.mark.parametrize(
    ("variant", "dtype"),  # Akiba's update has no masters
    [("nvidia", "float32"), ("fujitsu", "float16"), ("akiba", "float32")],
)
@BY_EITHER_OPERATORS
def test_a_step_that_overflows_is_momentum_alone(
    operators: Operators, variant: str, dtype: str
) -> None:
    parameter, updater = updater_of_a_tensor(operators, variant, dtype)

    def weight_and_velocity() -> tuple[np.ndarray, np.ndarray]:
        arrays = updater.arrays()
        weight = arrays.get("master/fc_weight", parameter.data())
        return weight.asnumpy(), arrays["velocity/fc_weight"].asnumpy()

    step_settings = Settings(0.1, 0.5, 4)
    parameter.grad()[:] = 64.0
    updater.step(1, step_settings)
    weight, velocity = weight_and_velocity()
    assert velocity.any()
    parameter.grad()[:] = 64.0
    parameter.grad()[3, 3] = np.inf
    updater.step(2, step_settings)
    after, moved = weight_and_velocity()
    np.testing.assert_allclose(moved, 0.5 * velocity, rtol=1e-6)
    step = 0.1 * moved if variant == "akiba" else moved
    np.testing.assert_allclose(after, weight + step, rtol=1e-6, atol=1e-7)
    assert updater.scaler.value_at(1 + CHECK_DELAY_STEPS) == 64.0
    assert updater.scaler.value_at(2 + CHECK_DELAY_STEPS) == 32.0


@BY_EITHER_OPERATORS
def test_a_rank_without_a_share_of_the_batch_changes_its_scale_at_the_same_step(
    operators: Operators,
) -> None:
    """It asks for no scale: its updater alone knows of the step."""
    weight, updater = updater_of_a_tensor(operators, "nvidia", "float32")
    weight_of_idle, updater_of_idle = updater_of_a_tensor(
        operators, "nvidia", "float32"
    )
    step_settings = Settings(0.1, 0.5, 4)
    for step in range(1, 3 + CHECK_DELAY_STEPS):
        scale = updater.scaler.value_at(step)
        gradient = np.inf if step == 1 else scale
        for parameter in (weight, weight_of_idle):
            parameter.grad()[:] = gradient
        updater.step(step, step_settings)
        updater_of_idle.step(step, step_settings)
    assert scale == 32.0
    np.testing.assert_array_equal(
        weight_of_idle.data().asnumpy(), weight.data().asnumpy()
    )
