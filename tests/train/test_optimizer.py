"""SGD, the LARS variants and RMSprop warm-up against float64 references, over many steps."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from rn50.config.schema import Optimizer
from rn50.config.variants import VARIANTS
from rn50.train.devices import updater_for
from rn50.train.operators import Operators
from rn50.train.schedule import Settings, akiba_sgd_share
from rn50.train.update import optimizer
from rn50.train.update.loss_scale import LossScaler
from tests.train import emulated

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
BATCH = 16

# The published rules again, independent of VARIANTS: which tensors are scaled and decayed, eta,
# epsilon, momentum correction, and what stands before |w| in the denominator.
PUBLISHED = {
    "sgd": ((), ("weight",), 0.0, 0.0, True, lambda s: s.weight_decay),
    "you": (
        ("weight", "bias", "gamma", "beta"),
        ("weight", "bias", "gamma", "beta"),
        0.001,
        0.0,
        False,
        lambda s: s.weight_decay,
    ),
    "reference": (
        ("weight",),
        ("weight",),
        0.001,
        1e-7,
        False,
        lambda s: s.weight_decay,
    ),
    "nvidia": (
        ("weight",),
        ("weight", "bias"),
        0.001,
        0.0,
        True,
        lambda s: s.weight_decay,
    ),
    "fujitsu": (
        ("weight",),
        ("weight",),
        0.0025,
        1e-9,
        False,
        lambda s: s.weight_decay * s.base_lr,
    ),
    "sony": (
        ("weight", "bias", "gamma", "beta"),
        ("weight", "bias", "gamma", "beta"),
        0.01,
        1e-6,
        False,
        lambda s: s.weight_decay,
    ),
}


class Reference:
    """v <- mu v + lr trust (g / B + wd w);  w <- w - v, written out in float64."""

    def __init__(self, weights: dict[str, np.ndarray], s: Optimizer) -> None:
        self.w = {name: w.astype(np.float64) for name, w in weights.items()}
        self.v = {name: np.zeros(w.shape) for name, w in weights.items()}
        self.s = s
        self.last_lr = 0.0

    def step(self, gradients: dict[str, np.ndarray], now: Settings) -> None:
        s = self.s
        scaled, decayed, eta, epsilon, correct, decay_in_trust = PUBLISHED[s.variant]
        eta = eta if s.eta is None else s.eta
        epsilon = epsilon if s.epsilon is None else s.epsilon
        correct = correct if s.momentum_correction is None else s.momentum_correction
        mu = now.momentum * (
            now.lr / self.last_lr if correct and self.last_lr > 0 else 1
        )
        self.last_lr = now.lr
        for name, w in self.w.items():
            ending = name.split("_")[1]
            g = gradients[name].astype(np.float64) / now.global_batch_size
            decay = s.weight_decay if ending in decayed else 0.0
            trust = 1.0
            norm_w = np.sqrt((w**2).sum())
            norm_g = np.sqrt((g**2).sum())
            below = norm_g + (decay_in_trust(s) if ending in decayed else 0.0) * norm_w
            if s.variant == "sony":  # NNabla's lars.cpp
                if norm_w >= epsilon:
                    trust = (
                        eta * norm_w / (below + epsilon if below < epsilon else below)
                    )
            elif ending in scaled and norm_w > 0 and norm_g > 0:
                trust = eta * norm_w / (below + epsilon)
            self.v[name] = mu * self.v[name] + now.lr * trust * (g + decay * w)
            self.w[name] = w - self.v[name]


def build(
    settings: Optimizer, path: str
) -> tuple[dict[str, gluon.Parameter], optimizer.Updater]:
    rng = np.random.default_rng(1)
    parameters = {}
    for name, shape in SHAPES.items():
        p = gluon.Parameter(name, shape=shape)
        p.initialize(ctx=mx.cpu())
        scale = {"zero_weight": 0.0, "tiny_weight": 1e-3, "small_weight": 5e-3}.get(
            name, 0.3
        )
        p.set_data(mx.nd.array(rng.normal(size=shape) * scale))
        parameters[name] = p
    return parameters, updater_of(parameters, settings, path)


def updater_of(
    parameters: dict[str, gluon.Parameter], settings: Optimizer, path: str, **more: Any
) -> optimizer.Updater:
    """fused: of a CPU; multi_tensor: MXNet's, which GPUs up to 8.9 take; own: our CUDA kernels."""
    operators = emulated.operators() if path == "own" else Operators(mx.cpu())
    updater = updater_for(
        operators,
        list(parameters.values()),
        settings,
        [],
        **more,
    )
    if path == "multi_tensor":
        updater.fused = False
    return updater


def gradients_of(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(100 + step)
    gradients = {
        n: rng.normal(size=shape).astype(np.float32) for n, shape in SHAPES.items()
    }
    if step == 7:
        gradients["fc_weight"][:] = gradients["small_weight"][:] = 0  # a zero norm
    return gradients


OVERRIDES: dict[str, dict[str, object]] = {
    "published": {},
    "corrected": {"momentum_correction": True},
    "uncorrected": {"momentum_correction": False},
    "eta,epsilon": {"eta": 0.03, "epsilon": 1e-2},
}
CASES = [
    *((variant, "published", 60, "fused") for variant in PUBLISHED),
    *((variant, "published", 60, "multi_tensor") for variant in PUBLISHED),
    *((variant, "published", 60, "own") for variant in PUBLISHED),
    ("sony", "eta,epsilon", 60, "own"),
    ("fujitsu", "corrected", 60, "fused"),
    ("nvidia", "uncorrected", 60, "fused"),
    ("sony", "eta,epsilon", 60, "fused"),
    ("sony", "eta,epsilon", 2, "multi_tensor"),
    ("reference", "eta,epsilon", 60, "multi_tensor"),
]


@pytest.mark.parametrize(("variant", "overrides", "per_call", "path"), CASES)
def test_matches_the_reference(
    variant: str,
    overrides: str,
    per_call: int,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer, "MAX_TENSORS_PER_CALL", per_call)
    s = Optimizer(
        variant=variant, base_lr=9.0, weight_decay=5e-2, **OVERRIDES[overrides]
    )
    base_lr = 0.2 if variant == "sgd" else 9.0
    parameters, updater = build(s, path)
    reference = Reference({n: p.data().asnumpy() for n, p in parameters.items()}, s)
    for step in range(1, 26):
        lr = base_lr * min(1, step / 5) * 0.95**step
        now = Settings(
            lr, 0.9 if step < 15 else 0.94, BATCH if step < 10 else 2 * BATCH
        )
        gradients = gradients_of(step)
        for name, p in parameters.items():
            p.grad()[:] = gradients[name]
        updater.step(step, now)
        reference.step(gradients, now)
    # MXNet's multi_sum_sq adds up in float32, one by one: its norms are off by 5e-6 and more.
    tolerance = 2e-5 if path == "multi_tensor" else 2e-6
    for name, p in parameters.items():
        size = max(1, np.abs(reference.w[name]).max())
        np.testing.assert_allclose(
            p.data().asnumpy(),
            reference.w[name],
            rtol=2e-5,
            atol=tolerance * size,
            err_msg=name,
        )


@pytest.mark.parametrize("path", ["multi_tensor", "own"])
@pytest.mark.parametrize("variant", ["sgd", "nvidia", "fujitsu"])
def test_float16_weights_follow_float32_masters(variant: str, path: str) -> None:
    """The paths of GPUs, which run on a CPU too: small steps survive float16."""
    s = Optimizer(variant=variant, base_lr=0.01, weight_decay=1e-3)
    parameters, _ = build(s, "multi_tensor")
    for name, p in parameters.items():
        if name.endswith("weight"):
            p.cast("float16")
    updater = updater_of(parameters, s, path, scaler=LossScaler(64.0))
    reference = Reference({n: p.data().asnumpy() for n, p in parameters.items()}, s)
    for step in range(1, 40):
        now = Settings(0.01, 0.9, BATCH)
        gradients = {n: g.astype(np.float16) for n, g in gradients_of(step).items()}
        for name, p in parameters.items():
            p.grad()[:] = gradients[name].astype(np.float32) * 64
        updater.step(step, now)
        reference.step(gradients, now)
    for name, expected in reference.w.items():
        weight = parameters[name].data()
        master = updater.arrays().get(f"master/{name}")
        found = (weight if master is None else master).asnumpy()
        assert found.dtype == np.float32
        np.testing.assert_allclose(
            found,
            expected,
            rtol=2e-3,
            atol=2e-4,
            err_msg=name,
        )
        if master is not None:
            np.testing.assert_array_equal(weight.asnumpy(), found.astype(np.float16))


@pytest.mark.parametrize("path", ["multi_tensor", "own"])
def test_rmsprop_warmup_against_its_formula(path: str) -> None:
    s = Optimizer(variant="akiba", base_lr=0.5, weight_decay=1e-2)
    parameters, _ = build(s, path)
    updater = updater_of(
        parameters,
        s,
        path,
        epoch_at=lambda step: step / 2,
    )
    w = {n: p.data().asnumpy().astype(np.float64) for n, p in parameters.items()}
    m = dict.fromkeys(w, 0.0)
    d = dict.fromkeys(w, 0.0)
    for step in range(1, 31):
        gradients = gradients_of(step)
        for name, p in parameters.items():
            p.grad()[:] = gradients[name]
        updater.step(step, Settings(0.01, 0.9, BATCH))
        sgd = akiba_sgd_share(step / 2)
        for n in w:
            g = gradients[n].astype(np.float64) / BATCH
            g = g + (1e-2 * w[n] if n.endswith("weight") else 0)
            m[n] = optimizer.AKIBA_MU2 * m[n] + (1 - optimizer.AKIBA_MU2) * g**2
            rms = (
                optimizer.AKIBA_RMS
                / 0.01
                * (1 - sgd)
                / (np.sqrt(m[n]) + optimizer.AKIBA_EPSILON)
            )
            d[n] = 0.9 * d[n] - (sgd + rms) * g
            w[n] = w[n] + 0.01 * d[n]
    for name, p in parameters.items():
        np.testing.assert_allclose(
            p.data().asnumpy(),
            w[name],
            rtol=1e-4,
            atol=1e-6,
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_learning_rate_zero_keeps_the_bits(variant: str) -> None:
    """The warm-up on zeros relies on it."""
    parameters, updater = build(Optimizer(variant=variant), "own")
    before = {n: p.data().asnumpy() for n, p in parameters.items()}
    for p in parameters.values():
        p.grad()[:] = 3.0
    updater.step(1, Settings(0.0, 0.0, BATCH))
    updater.reset()
    for name, p in parameters.items():
        assert (p.data().asnumpy() == before[name]).all()


@pytest.mark.slow
def test_kernel_does_not_depend_on_threads() -> None:
    """Bit for bit: block sums are added in one order."""
    import os
    import subprocess
    import sys

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
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1
