"""Our own CUDA kernels, run on a CPU (emulated.h), against float64 and MXNet's operators."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from rn50.config.schema import Model, Optimizer
from rn50.train.buckets import lay_out_gradients
from rn50.train.loss_scale import LossScaler
from rn50.train.networks import Loss, build_networks, copy_parameters, trainable, weight_arrays
from rn50.train.operators import Criterion, Operators
from rn50.train.own import CHUNK, OwnCriterion, updater_for
from rn50.train.schedule import Settings
from rn50.train.trial_steps import trial_losses
from tests.train import emulated

RNG = np.random.default_rng(0)


class Identity:
    """A network without weights, whose input's gradient can be read."""

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = nd.array(logits, dtype=logits.dtype)
        self.logits.attach_grad()

    def __call__(self, _: Any) -> nd.NDArray:
        return self.logits * 1


def cross_entropy(
    logits: np.ndarray, labels: np.ndarray, other: float
) -> tuple[np.ndarray, np.ndarray]:
    """Losses, and their gradients, in float64."""
    z = logits.astype(np.float64)
    log_p = z - z.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    target = np.full(z.shape, other)
    target[np.arange(len(z)), labels] = 1 - other * (z.shape[1] - 1)
    return -(target * log_p).sum(1), np.exp(log_p) - target


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1.0), ("float16", 128.0)])
def test_losses_and_their_gradients(dtype: str, scale: float, smoothing: float) -> None:
    model = Model(label_smoothing=smoothing)
    logits = (10 * RNG.normal(size=(5, 37))).astype(dtype)
    labels = np.array([0, 36, 7, 7, 20])
    loss = Loss(model, 37)
    found = []
    for criterion in (OwnCriterion(emulated.operators(), loss), Criterion(loss)):
        net = Identity(logits)
        for now in (scale, 2 * scale, scale):  # a dynamic one changes
            losses = criterion.forward(net, None, nd.array(labels), now)
            criterion.backward(losses, now)
            gradient = net.logits.grad.asnumpy().astype(np.float64)
            found.append((losses.asnumpy(), gradient / now))
    expected = cross_entropy(logits, labels, loss.other)
    rounding = 8e-6 if dtype == "float32" else 6e-4  # of a gradient in float16, at most 1
    for losses, gradient in found:
        np.testing.assert_allclose(losses, expected[0], rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(gradient, expected[1], rtol=rounding, atol=rounding / 8)


def test_logits_that_would_overflow_do_not() -> None:
    logits = np.array([[300.0, -300.0, 0.0]], np.float32)
    criterion = OwnCriterion(emulated.operators(), Loss(Model(label_smoothing=0), 3))
    losses = criterion.forward(Identity(logits), None, nd.array([1]), 1.0)
    assert losses.asscalar() == 600


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("classes", [3, 41])
def test_hits_are_those_of_mxnets_operators(dtype: str, classes: int) -> None:
    own = emulated.operators()
    theirs = Operators(mx.cpu())
    totals: list[Any] = [None, None]
    for _ in range(3):
        scores = np.stack([RNG.permutation(classes) for _ in range(30)]).astype(dtype)
        labels = RNG.integers(-1, classes, size=30)
        for number, operators in enumerate((own, theirs)):
            arrays = nd.array(scores, dtype=dtype), nd.array(labels)
            totals[number] = operators.add_hits(*arrays, totals[number])
    assert totals[0].asnumpy().tolist() == totals[1].asnumpy().tolist()
    assert totals[0].asnumpy()[0] > 0


def test_scores_that_are_no_numbers_are_no_hits_and_equal_ones_go_by_class() -> None:
    scores = np.array([[np.nan] * 7, [1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], np.float32)
    labels = nd.array([0, 0, 5])
    assert emulated.operators().add_hits(nd.array(scores), labels, None).asnumpy().tolist() == [
        1,
        1,
        3,
    ]


def test_small_operators_do_what_mxnets_do() -> None:
    found = []
    for operators in (emulated.operators(), Operators(mx.cpu())):
        a, b = (nd.array(np.arange(700) - shift) for shift in (350, 10))
        half = operators.zeros(700, "float16")
        back = operators.zeros(700)
        operators.scale(a, 0.5)
        operators.add_square(a, b, -1)
        results = [a.asnumpy()]
        operators.narrow(b, half, 0.25)
        operators.widen(half, back, 4.0)
        operators.fill(half, 3)
        operators.fill(b, -2)
        weight = nd.array(RNG.normal(size=(4, 3, 2, 5)))
        turned = operators.zeros((4, 5, 3, 2))
        operators.copy_channels_first(weight, turned)
        np.testing.assert_array_equal(turned.asnumpy(), weight.asnumpy().transpose(0, 3, 1, 2))
        total = operators.add_losses(nd.array([1.5, 2, 4]), None)
        total = operators.add_losses(nd.array([8.0]), total)
        results += [x.asnumpy() for x in (half, back, b, operators.join(total, (1, 0)))]
        found.append(results)
    for own, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(own, theirs)
    assert found[0][-1].tolist() == [15.5, 1, 0]


def test_steps_and_an_evaluation_are_those_of_mxnets_operators() -> None:
    """A small ResNet by both: losses, weights after four steps, hits. The head of ours is a
    convolution, its lone ReLUs are other operators."""
    model = Model(depth="tiny", width=16, stem="imagenet")
    images = nd.array(RNG.normal(size=(6, 3, 40, 40)))
    labels = nd.array([0, 1, 2, 3, 4, 0])
    found = []
    for operators in (emulated.operators(), Operators(mx.cpu())):
        net, eval_net, loss = build_networks(model, 5, crop_px=40, seed=1, operators=operators)
        assert len(net.collect_params()["fc_weight"].shape) == (4 if operators.own else 2)
        buckets = lay_out_gradients(trainable(net), "equal_count(3)", operators)
        criterion = operators.criterion(loss)
        scaler = LossScaler(8.0)
        settings = Optimizer(variant="nvidia", base_lr=0.05)
        updater = updater_for(operators, trainable(net), settings, buckets, scaler=scaler)
        losses = []
        total = None
        for step in range(1, 5):
            losses.append(criterion.forward(net, images, labels, 8.0))
            total = operators.add_losses(losses[-1], total)
            criterion.backward(losses[-1], 8.0)
            updater.step(step, Settings(0.05, 0.9, 6))
        nd.waitall()
        copy_parameters(net, eval_net, operators)
        hits = operators.add_hits(eval_net(images), labels, None)
        arrays = {name: array.asnumpy() for name, array in weight_arrays(net).items()}
        found.append((np.array([x.asnumpy() for x in losses]), arrays, hits.asnumpy(), total))
    (own, own_weights, own_hits, own_total), (theirs, weights, hits, total) = found
    np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-5)
    assert own[-1].sum() < own[0].sum()
    assert own_weights.keys() == weights.keys()
    for name, array in weights.items():
        assert own_weights[name].shape == array.shape
        difference = np.linalg.norm(own_weights[name] - array)
        assert difference <= 2e-3 * np.linalg.norm(array) + 1e-5, name
    assert own_hits.tolist() == hits.tolist()
    assert own_total.asscalar() == pytest.approx(total.asscalar(), rel=1e-5)


def test_the_chunks_of_the_kernels_are_those_of_the_table() -> None:
    assert f"#define CHUNK {CHUNK} " in emulated.SOURCE.read_text()


def test_the_trial_of_a_device_learns_and_repeats() -> None:
    first, again = (trial_losses(mx.cpu(), "float32") for _ in range(2))
    assert (first == again).all()
    assert 2 < first[0] < 2.6 and first[-1] < 0.8 < first[5]
