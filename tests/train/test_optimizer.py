"""SGD and LARS against an independent float64 reference, over many steps."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

from rn50.config.schema import Optimizer
from rn50.train.optimizer import Updater

SHAPES = {
    "conv_weight": (8, 4, 3, 3),
    "bn_gamma": (8,),
    "bn_beta": (8,),
    "zero_weight": (3, 5),
    "fc_weight": (7, 8),
    "fc_bias": (7,),
}
BATCH = 16


class Reference:
    """v <- mu v + lr trust (g / batch + wd w);  w <- w - v, written out in float64."""

    def __init__(self, weights: dict[str, np.ndarray], s: Optimizer) -> None:
        self.w = {name: w.astype(np.float64) for name, w in weights.items()}
        self.v = {name: np.zeros(w.shape) for name, w in weights.items()}
        self.s = s
        self.last_lr = 0.0

    def step(self, gradients: dict[str, np.ndarray], lr: float) -> None:
        s = self.s
        mu = s.momentum
        if s.momentum_correction and self.last_lr > 0:
            mu = s.momentum * lr / self.last_lr
        self.last_lr = lr
        for name, w in self.w.items():
            g = gradients[name].astype(np.float64) / BATCH
            matrix = name.endswith("weight")
            decay = s.weight_decay if matrix else 0.0
            trust = 1.0
            if s.name == "lars" and matrix:
                norm_w, norm_g = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
                if norm_w > 0 and norm_g > 0:
                    trust = s.eta * norm_w / (norm_g + decay * norm_w + s.epsilon)
            self.v[name] = mu * self.v[name] + lr * trust * (g + decay * w)
            self.w[name] = w - self.v[name]


def build(settings: Optimizer, per_call: int | None) -> tuple[dict[str, gluon.Parameter], Updater]:
    rng = np.random.default_rng(1)
    parameters = {}
    for name, shape in SHAPES.items():
        p = gluon.Parameter(name, shape=shape)
        p.initialize(ctx=mx.cpu())
        scale = 0.0 if name == "zero_weight" else 0.3
        p.set_data(mx.nd.array(rng.normal(size=shape) * scale))
        parameters[name] = p
    updater = Updater(list(parameters.values()), settings, global_batch_size=BATCH, ctx=mx.cpu())
    if per_call:  # the path that GPUs take
        updater._per_call = per_call
    return parameters, updater


@pytest.mark.parametrize("per_call", [None, 2, 60])
@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"name": "sgd", "base_lr": 0.2, "momentum": 0.9, "weight_decay": 4e-2},
        {"name": "lars", "base_lr": 9.0, "weight_decay": 5e-2, "eta": 0.01, "epsilon": 1e-3},
        {"name": "lars", "base_lr": 9.0, "weight_decay": 0.0, "eta": 0.02},
    ],
)
def test_matches_the_reference(
    settings: dict[str, object], correction: bool, per_call: int | None
) -> None:
    s = Optimizer(**settings, momentum_correction=correction)
    parameters, updater = build(s, per_call)
    reference = Reference({n: p.data().asnumpy() for n, p in parameters.items()}, s)
    rng = np.random.default_rng(2)
    for step in range(1, 26):
        lr = s.base_lr * min(1, step / 5) * 0.95**step
        gradients = {n: rng.normal(size=shape).astype(np.float32) for n, shape in SHAPES.items()}
        if step == 7:
            gradients["fc_weight"][:] = 0  # a zero norm: trust 1
        for name, p in parameters.items():
            p.grad()[:] = gradients[name]
        updater.step(lr)
        reference.step(gradients, lr)
    for name, p in parameters.items():
        np.testing.assert_allclose(p.data().asnumpy(), reference.w[name], rtol=2e-5, atol=2e-6)


def test_learning_rate_zero_keeps_the_bits() -> None:
    """The warm-up on zeros relies on it."""
    parameters, updater = build(Optimizer(name="lars"), None)
    before = {n: p.data().asnumpy() for n, p in parameters.items()}
    for p in parameters.values():
        p.grad()[:] = 3.0
    updater.step(0.0)
    updater.reset()
    for name, p in parameters.items():
        assert (p.data().asnumpy() == before[name]).all()


def test_reset_forgets_momentum() -> None:
    settings = Optimizer(name="sgd", base_lr=0.1)
    one, fresh = build(settings, None), build(settings, None)
    for parameters, updater in (one, fresh):
        for p in parameters.values():
            p.grad()[:] = 1.0
        if updater is one[1]:
            start = {n: p.data().copy() for n, p in parameters.items()}
            updater.step(0.5)
            updater.reset()
            for name, p in parameters.items():
                p.data()[:] = start[name]
        updater.step(0.1)
    for name in SHAPES:
        np.testing.assert_array_equal(
            one[0][name].data().asnumpy(), fresh[0][name].data().asnumpy()
        )
