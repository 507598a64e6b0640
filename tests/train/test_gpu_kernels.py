"""Our own CUDA kernels, run on a CPU (emulated.h), against float64 and MXNet's operators."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd

from rn50.config.schema import Model
from rn50.train.gpu.calls import data_address, float_bits
from rn50.train.gpu.module import Launch
from rn50.train.gpu.update import CHUNK
from rn50.train.network.build import Loss
from rn50.train.operators import Operators
from rn50.train.trial_steps import trial_losses
from tests.train import emulated

RNG = np.random.default_rng(0)


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


def losses_of(
    logits: np.ndarray, labels: np.ndarray, other: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and the logits' gradients by the kernel."""
    arrays = [nd.array(labels), nd.array(np.zeros(len(labels)))]
    words = [0, *map(data_address, arrays), float_bits(scale)]
    settings = nd.array(words, dtype="int64")
    gradient = nd.empty(logits.shape, dtype=logits.dtype)
    name = "loss_half" if logits.dtype == np.float16 else "loss_float"
    arguments = (
        nd.array(logits, dtype=logits.dtype),
        settings,
        gradient,
        logits.shape[1],
        other,
    )
    emulated.EmulatedModule().launch(Launch(name, len(labels), arguments))
    return arrays[1].asnumpy(), gradient.asnumpy().astype(np.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1.0), ("float16", 128.0)])
def test_losses_and_their_gradients(dtype: str, scale: float, smoothing: float) -> None:
    other = Loss(Model(label_smoothing=smoothing), 37).other
    logits = (10 * RNG.normal(size=(5, 37))).astype(dtype)
    labels = np.array([0, 36, 7, 7, 20])
    expected = cross_entropy(logits, labels, other)
    losses, gradient = losses_of(logits, labels, other, scale)
    # of a gradient in float16, at most 1
    rounding = 8e-6 if dtype == "float32" else 6e-4
    np.testing.assert_allclose(
        losses,
        expected[0],
        rtol=2e-6,
        atol=2e-6,
    )
    np.testing.assert_allclose(
        gradient / scale, expected[1], rtol=rounding, atol=rounding / 8
    )


def test_logits_that_would_overflow_do_not() -> None:
    logits = np.array([[300.0, -300.0, 0.0]], np.float32)
    assert losses_of(logits, np.array([1]), 0, 1.0)[0] == 600


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
    scores = np.array(
        [[np.nan] * 7, [1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]], np.float32
    )
    labels = nd.array([0, 0, 5])
    assert emulated.operators().add_hits(
        nd.array(scores), labels, None
    ).asnumpy().tolist() == [
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
        total = operators.add_losses(nd.array([1.5, 2, 4]), None)
        results += [x.asnumpy() for x in (half, back, b, operators.join(total, (1, 0)))]
        found.append(results)
    for own, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(own, theirs)
    assert found[0][-1].tolist() == [7.5, 1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_layers_kernels(dtype: str) -> None:
    """Images of both layouts, channels added and left out, ReLU with and without a sum, its
    gradient, and batch norm of an evaluation: against NumPy."""
    module = emulated.EmulatedModule()
    ending = "half" if dtype == "float16" else "float"

    def launch(name: str, *arguments: object) -> None:
        module.launch(Launch(f"{name}_{ending}", 3, arguments))

    def array(values: np.ndarray, kind: str = dtype) -> nd.NDArray:
        return nd.array(values, dtype=kind)

    images = RNG.normal(size=(2, 3, 5, 4)).astype(np.float32)
    last = images.transpose(0, 2, 3, 1)
    padded = np.pad(last, ((0, 0), (0, 0), (0, 0), (0, 1))).astype(dtype)
    for source, strides in ((images, (1, 20)), (last, (3, 1))):
        held = nd.array(source)
        to = nd.array(np.ones(padded.shape), dtype=dtype)
        launch(
            "images",
            nd.array([data_address(held)], dtype="int64"),
            to,
            40,
            20,
            *strides,
        )
        np.testing.assert_array_equal(to.asnumpy(), padded)
    back = array(np.ones(last.shape))
    launch("channels", array(padded), back, last.size, 4, 3)
    again = array(np.ones(padded.shape))
    launch("channels", back, again, padded.size, 3, 4)
    np.testing.assert_array_equal(back.asnumpy(), last.astype(dtype))
    np.testing.assert_array_equal(again.asnumpy(), padded)

    x = RNG.normal(size=(6, 8)).astype(dtype)
    z = RNG.normal(size=(6, 8)).astype(dtype)
    for other in (None, z):
        y = array(x)
        launch(
            "rectify",
            y,
            None if other is None else array(other),
            x.size,
        )
        total = x.astype(np.float32) + (0 if other is None else other)
        np.testing.assert_array_equal(y.asnumpy(), np.maximum(total, 0).astype(dtype))
        dy = array(z)
        launch("mask", y, dy, x.size)
        np.testing.assert_array_equal(dy.asnumpy(), np.where(total > 0, z, 0))
        gamma, beta, mean, variance = np.abs(RNG.normal(size=(4, 8))).astype(np.float32)
        statistics = [
            array(values, "float32") for values in (gamma, beta, mean, variance)
        ]
        scaled = (x - mean) / np.sqrt(variance + 0.01) * gamma + beta
        scaled += 0 if other is None else other
        for relu in (0, 1):
            held_z = None if other is None else array(other)
            launch(
                "normalise",
                array(x),
                held_z,
                *statistics,
                y,
                x.size,
                8,
                0.01,
                relu,
            )
            expected = np.maximum(scaled, 0) if relu else scaled
            close = 1e-6 if dtype == "float32" else 2e-3
            np.testing.assert_allclose(
                y.asnumpy(),
                expected,
                rtol=close,
                atol=close,
            )


@pytest.mark.parametrize(("height", "width"), [(8, 6), (7, 5)])
def test_max_pooling_and_its_gradient_are_mxnets(height: int, width: int) -> None:
    """Of values many of which are equal; what is no number stays so."""
    shape = (2, height, width, 3)
    x = RNG.integers(-3, 3, shape).astype(np.float32)
    channels_first = nd.array(x.transpose(0, 3, 1, 2))
    channels_first.attach_grad()
    with mx.autograd.record():
        pooled = nd.Pooling(
            channels_first,
            kernel=(3, 3),
            stride=(2, 2),
            pad=(1, 1),
        )
    dy = RNG.normal(size=pooled.shape).astype(np.float32)
    pooled.backward(nd.array(dy))
    module = emulated.EmulatedModule()
    y = nd.array(dy.transpose(0, 2, 3, 1))
    places = nd.zeros(y.shape, dtype="uint8")
    dx = nd.array(np.full(shape, np.nan))
    sizes = (y.size, height, width, 3)
    slope = nd.array(dy.transpose(0, 2, 3, 1))
    module.launch(Launch("max_pool_float", 3, (nd.array(x), y, places, *sizes)))
    module.launch(Launch("max_pool_back_float", 3, (slope, places, dx, *sizes)))
    np.testing.assert_array_equal(y.asnumpy().transpose(0, 3, 1, 2), pooled.asnumpy())
    gradient = dx.asnumpy().transpose(0, 3, 1, 2)
    np.testing.assert_allclose(
        gradient,
        channels_first.grad.asnumpy(),
        rtol=1e-6,
    )
    x[0, 2, 2, 1] = np.nan
    module.launch(Launch("max_pool_float", 3, (nd.array(x), y, places, *sizes)))
    assert np.argwhere(np.isnan(y.asnumpy())).tolist() == [[0, 1, 1, 1]]


def test_the_chunks_of_the_kernels_are_those_of_the_table() -> None:
    assert f"#define CHUNK {CHUNK} " in emulated.SOURCE.read_text()


def test_the_trial_of_a_device_learns_and_repeats() -> None:
    first, again = (trial_losses(mx.cpu(), "float32") for _ in range(2))
    assert (first == again).all()
    assert 2 < first[0] < 2.6
    assert first[-1] < 0.8 < first[5]
