"""SGD, the LARS variants and RMSprop warm-up against float64 references, over many steps."""

import os
import sys
from collections import defaultdict
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from rn50.config.schema import Optimizer
from rn50.config.variants import VARIANTS
from rn50.train.devices import updater_for
from rn50.train.schedule import Settings, akiba_sgd_share
from rn50.train.update import optimizer
from rn50.train.update.loss_scale import LossScaler
from tests.train import emulated
from tests.waiting import output_of

SHAPES = {
    "conv_weight": (8, 4, 3, 3),
    "bn_gamma": (8,),
    "bn_beta": (8,),
    "zero_weight": (3, 5),
    "tiny_weight": (3, 5),
    "small_weight": (3, 5),
    "large_weight": (130, 701),
    "fc_weight": (7, 8),
    "fc_bias": (7,),
}
SCALES = {"zero_weight": 0.0, "tiny_weight": 1e-3, "small_weight": 5e-3}
BATCH = 16
Parameters = dict[str, gluon.Parameter]

WEIGHTS = ("weight",)
ALL = ("weight", "bias", "gamma", "beta")


class Published(NamedTuple):
    """A published rule again, independent of VARIANTS: which tensors are scaled and decayed."""

    scaled: tuple[str, ...]
    decayed: tuple[str, ...]
    eta: float
    epsilon: float
    momentum_correction: bool


PUBLISHED = {
    "sgd": Published((), WEIGHTS, 0.0, 0.0, True),
    "you": Published(ALL, ALL, 0.001, 0.0, False),
    "reference": Published(WEIGHTS, WEIGHTS, 0.001, 1e-7, False),
    "nvidia": Published(WEIGHTS, ("weight", "bias"), 0.001, 0.0, True),
    "fujitsu": Published(WEIGHTS, WEIGHTS, 0.0025, 1e-9, False),
    "sony": Published(ALL, ALL, 0.01, 1e-6, False),
}
"""Those that are of the formula below; akiba's has no trust."""


def values_of(parameters: Parameters) -> dict[str, Any]:
    """The values of all parameters in float64."""
    return {name: p.data().asnumpy().astype(float) for name, p in parameters.items()}


class Reference:
    """v <- mu v + lr trust (g / B + wd w);  w <- w - v, written out in float64."""

    def __init__(self, parameters: Parameters, s: Optimizer) -> None:
        self.w = values_of(parameters)
        self.v = dict.fromkeys(self.w, 0.0)
        self.s = s
        keys = ("eta", "epsilon", "momentum_correction")
        constants = {
            key: getattr(s, key) for key in keys if getattr(s, key) is not None
        }
        rule = PUBLISHED.get(s.variant, PUBLISHED["sgd"])
        self.rule = rule._replace(**constants)
        self.last_lr = 0.0

    def step(self, gradients: dict[str, Any], settings: Settings) -> None:
        mu = settings.momentum
        if self.rule.momentum_correction and self.last_lr > 0:
            mu *= settings.lr / self.last_lr
        self.last_lr = settings.lr
        for name, w in self.w.items():
            ending = name.split("_")[1]
            g = gradients[name] / settings.global_batch_size
            decay = self.decay(ending)
            trust = 1.0
            if ending in self.rule.scaled:
                trust = self.trust(w, g, decay)
            change = settings.lr * trust * (g + decay * w)
            self.v[name] = mu * self.v[name] + change
            self.w[name] = w - self.v[name]

    def decay(self, ending: str) -> float:
        return self.s.weight_decay if ending in self.rule.decayed else 0.0

    def trust(self, w: np.ndarray, g: np.ndarray, decay: float) -> float:
        norm_w = np.sqrt((w**2).sum())
        norm_g = np.sqrt((g**2).sum())
        if self.s.variant == "fujitsu":
            decay *= self.s.base_lr
        below = norm_g + decay * norm_w
        epsilon = self.rule.epsilon
        is_one = norm_w == 0 or norm_g == 0
        if self.s.variant == "sony":  # NNabla's lars.cpp
            is_one = norm_w < epsilon
            epsilon = epsilon if below < epsilon else 0.0
        return 1.0 if is_one else self.rule.eta * norm_w / (below + epsilon)


def build(dtype: str = "float32") -> Parameters:
    """The values are drawn in float32; weights alone have `dtype`."""
    rng = np.random.default_rng(1)
    parameters = {}
    for name, shape in SHAPES.items():
        p = gluon.Parameter(name, shape=shape)
        p.initialize(ctx=mx.cpu())
        values = rng.normal(size=shape) * SCALES.get(name, 0.3)
        p.set_data(mx.nd.array(values))
        if name.endswith("weight"):
            p.cast(dtype)
        parameters[name] = p
    return parameters


def updater_of(
    parameters: Parameters, settings: Optimizer, path: str, **more: Any
) -> optimizer.Updater:
    """fused: of a CPU; multi_tensor: MXNet's, which GPUs up to 8.9 take; own: our CUDA kernels."""
    operators = emulated.operators() if path == "own" else emulated.CPU
    updater = updater_for(operators, list(parameters.values()), settings, [], **more)
    if path == "multi_tensor":
        pytest.MonkeyPatch().setattr(updater, "fused", False)
    return updater


def gradients_of(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(100 + step)
    gradients = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    if step == 7:  # a zero norm
        gradients["fc_weight"][:] = 0
        gradients["small_weight"][:] = 0
    return gradients


def take_step(
    updater: optimizer.Updater,
    parameters: Parameters,
    step: int,
    settings: Settings,
    dtype: str = "float32",
) -> dict[str, Any]:
    """The gradients of a step, whose update is done with them times the loss scale."""
    gradients = gradients_of(step)
    for name, p in parameters.items():
        gradients[name] = gradients[name].astype(dtype).astype(float)
        p.grad()[:] = gradients[name] * updater.scaler.scale.value
    updater.step(step, settings)
    return gradients


PATHS = ("fused", "multi_tensor", "own")
OTHER_CONSTANTS = {"eta": 0.03, "epsilon": 1e-2}
CASES: list[tuple[str, str, dict[str, Any], int]] = [
    *((variant, path, {}, 60) for variant in PUBLISHED for path in PATHS),
    ("fujitsu", "fused", {"momentum_correction": True}, 60),
    ("nvidia", "fused", {"momentum_correction": False}, 60),
    ("sony", "own", OTHER_CONSTANTS, 60),
    ("sony", "fused", OTHER_CONSTANTS, 60),
    ("sony", "multi_tensor", OTHER_CONSTANTS, 2),
    ("reference", "multi_tensor", OTHER_CONSTANTS, 60),
]
IN_BOTH_TYPES = [
    *((*case, "float32") for case in CASES),
    # the paths of GPUs, which run on a CPU too
    *(
        (name, path, {}, 60, "float16")
        for name in ("sgd", "fujitsu")
        for path in PATHS[1:]
    ),
]


@pytest.mark.parametrize(
    ("variant", "path", "overrides", "per_call", "dtype"), IN_BOTH_TYPES
)
def test_matches_the_reference(
    variant: str,
    path: str,
    overrides: dict[str, Any],
    per_call: int,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The float32 masters of float16 weights do: small steps survive."""
    monkeypatch.setattr(optimizer, "MAX_TENSORS_PER_CALL", per_call)
    s = Optimizer(variant=variant, base_lr=9.0, weight_decay=5e-2, **overrides)
    base_lr = 0.2 if variant == "sgd" else 9.0
    parameters = build(dtype)
    updater = updater_of(parameters, s, path, scaler=LossScaler(64.0))
    reference = Reference(parameters, s)
    for step in range(1, 26):
        lr = base_lr * min(1, step / 5) * 0.95**step
        momentum = 0.9 if step < 15 else 0.94
        batch = BATCH if step < 10 else 2 * BATCH
        settings = Settings(lr, momentum, batch)
        gradients = take_step(updater, parameters, step, settings, dtype)
        reference.step(gradients, settings)
    # MXNet's multi_sum_sq adds up in float32, one by one: its norms are off by 5e-6 and more.
    tolerance = 2e-5 if path == "multi_tensor" else 2e-6
    masters = masters_of(parameters, updater)
    for name, expected in reference.w.items():
        np.testing.assert_allclose(
            masters[name],
            expected,
            rtol=2e-5,
            atol=tolerance * max(1, np.abs(expected).max()),
            err_msg=name,
        )
        weight = parameters[name].data().asnumpy()
        np.testing.assert_array_equal(weight, masters[name].astype(weight.dtype))


MEASURED = [
    *((variant, path, "float32") for variant in VARIANTS for path in PATHS),
    *(("fujitsu", path, "float16") for path in PATHS[1:]),
]


@pytest.mark.parametrize(("variant", "path", "dtype"), MEASURED)
def test_measured_norms_are_those_of_the_update_and_change_no_bit(
    variant: str, path: str, dtype: str
) -> None:
    """They are of the weights before the update and the mean gradients, without the loss scale."""
    s = Optimizer(variant=variant, base_lr=9.0, weight_decay=5e-2)
    parameters = build(dtype)
    updater = updater_of(parameters, s, path, scaler=LossScaler(64.0))
    measured_parameters = build(dtype)
    measured = updater_of(measured_parameters, s, path, scaler=LossScaler(64.0))
    settings = Settings(0.1, 0.9, BATCH)
    for step in (6, 7):
        w = masters_of(measured_parameters, measured)
        gradients = take_step(updater, parameters, step, settings, dtype)
        for name, p in measured_parameters.items():
            p.grad()[:] = gradients[name] * 64.0
        norms = measured.norms(measured.measured_step(step, settings))
        expected = norms_of(w, gradients, Reference(build(), s))
        for quantity, values in norms.items():
            assert values == pytest.approx(expected[quantity], rel=2e-5, nan_ok=True)
        after = values_of(measured_parameters)
        for name, value in values_of(parameters).items():
            assert (value == after[name]).all()


def masters_of(parameters: Parameters, updater: optimizer.Updater) -> dict[str, Any]:
    """The float32 weights, in float64."""
    w = values_of(parameters)
    for name, array in updater.arrays().items():
        kind, _, tensor = name.partition("/")
        if kind == "master":
            w[tensor] = array.asnumpy().astype(float)
    return w


def norms_of(
    w: dict[str, Any], gradients: dict[str, Any], reference: Reference
) -> dict[str, dict[str, float]]:
    """What a step should measure, by quantity and tensor."""
    expected = defaultdict[str, dict[str, Any]](dict)
    for name in SHAPES:
        g = gradients[name] / BATCH
        weight_norm = np.linalg.norm(w[name])
        gradient_norm = np.linalg.norm(g)
        expected["weight_norm"][name] = weight_norm
        expected["gradient_norm"][name] = gradient_norm
        with np.errstate(divide="ignore"):
            ratio = weight_norm / gradient_norm
        expected["norm_ratio"][name] = ratio
        ending = name.partition("_")[2]
        if ending in reference.rule.scaled:
            trust = reference.trust(w[name], g, reference.decay(ending))
            expected["trust_ratio"][name] = trust
    return expected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("norm_w", "norm_g", "ratio"), [(6.400, 0.001734, 3690.9), (0.098, 0.004909, 19.96)]
)
def test_the_trust_ratios_of_you_et_al_table_3(
    norm_w: float, norm_g: float, ratio: float, path: str
) -> None:
    """AlexNet's fc6.1 and conv1.1, where they print 3690 and 20."""
    layer = gluon.Parameter("fc_weight", shape=(4, 4))
    layer.initialize(ctx=mx.cpu())
    layer.set_data(mx.nd.full((4, 4), norm_w / 4))
    layer.grad()[:] = norm_g / 4
    settings = Optimizer(variant="you", weight_decay=0.0)
    updater = updater_of({"fc_weight": layer}, settings, path)
    updater.step(1, Settings(1.0, 0.0, 1))
    moved = norm_w - np.linalg.norm(layer.data().asnumpy())
    assert moved / norm_g / 0.001 == pytest.approx(ratio, rel=5e-4)


@pytest.mark.parametrize("path", ["multi_tensor", "own"])
def test_rmsprop_warmup_against_its_formula(path: str) -> None:
    s = Optimizer(variant="akiba", base_lr=0.5, weight_decay=1e-2)
    parameters = build()
    updater = updater_of(parameters, s, path, epoch_at=lambda step: step / 2)
    w = values_of(parameters)
    m = dict.fromkeys(w, 0.0)
    d = dict.fromkeys(w, 0.0)
    for step in range(1, 31):
        settings = Settings(0.01, 0.9, BATCH)
        gradients = take_step(updater, parameters, step, settings)
        sgd = akiba_sgd_share(step / 2)
        rms = 3e-4 / 0.01 * (1 - sgd)
        for n in w:
            g = gradients[n] / BATCH
            if n.endswith("weight"):
                g = g + 1e-2 * w[n]
            m[n] = 0.99 * m[n] + 0.01 * g**2
            rate = sgd + rms / (np.sqrt(m[n]) + 1e-8)
            d[n] = 0.9 * d[n] - rate * g
            w[n] = w[n] + 0.01 * d[n]
    for name, p in parameters.items():
        np.testing.assert_allclose(p.data().asnumpy(), w[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_learning_rate_zero_keeps_the_bits(variant: str) -> None:
    """The warm-up on zeros relies on it."""
    parameters = build()
    updater = updater_of(parameters, Optimizer(variant=variant), "own")
    values_before = values_of(parameters)
    take_step(updater, parameters, 1, Settings(0.0, 0.0, BATCH))
    updater.reset()
    for name, values in values_of(parameters).items():
        assert (values == values_before[name]).all()


@pytest.mark.slow
def test_kernel_does_not_depend_on_threads() -> None:
    """Bit for bit: block sums are added in one order."""
    program = (
        "import hashlib\n"
        "from rn50.train import kernels\n"
        "import mxnet as mx, numpy as np\n"
        "rng = np.random.default_rng(0)\n"
        "a = [mx.nd.array(rng.normal(size=300_001)) for _ in range(3)]\n"
        "kernels.update(a, {'tensors': '1', 'lr': '0.1', 'momentum': '0.9', 'rescale': '0.5',\n"
        " 'epsilon': '0', 'etas': '0.001', 'decays': '1e-4', 'trust_decay_factor': '1',\n"
        " 'epsilon_only_below': '0'})\n"
        "print(hashlib.sha256(a[0].asnumpy().tobytes() + a[2].asnumpy().tobytes()).hexdigest())\n"
    )
    digests = {
        output_of(
            [sys.executable, "-c", program],
            env=os.environ | {"OMP_NUM_THREADS": threads},
        )
        for threads in ("1", "2")
    }
    assert len(digests) == 1
