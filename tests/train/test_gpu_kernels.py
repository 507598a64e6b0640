"""The kernels of device.cu on the CPU (emulated.py), against NumPy and MXNet's operators."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from numpy.testing import assert_allclose, assert_array_equal

from rn50.config.schema import Model
from rn50.train.gpu.calls import data_address, float_bits
from rn50.train.gpu.module import type_name
from rn50.train.gpu.norms import Division, Gpu
from rn50.train.gpu.update import CHUNK
from rn50.train.network.build import Loss
from rn50.train.operators import Operators
from rn50.train.trial_steps import trial_losses
from tests.train import emulated

RNG = np.random.default_rng(0)
EITHER_TYPE = pytest.mark.parametrize("dtype", ["float32", "float16"])


def launch(name: str, dtype: str, *arguments: object, blocks: int = 3) -> None:
    """Run the kernel of a type."""
    kernel = f"{name}_{type_name(dtype)}"
    emulated.EmulatedModule().launch(kernel, blocks, *arguments)


def drawn(shape: Sequence[int], dtype: str) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def filled(shape: Sequence[int], dtype: str) -> nd.NDArray:
    """An array to write into."""
    return nd.array(np.full(shape, 7), dtype=dtype)


def losses_of(
    logits: np.ndarray, labels: np.ndarray, off_target: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and the logits' gradients by the kernel."""
    dtype = logits.dtype.name
    label_array = nd.array(labels)
    losses = filled(labels.shape, "float32")
    gradient = filled(logits.shape, dtype)
    settings = [0, data_address(label_array), data_address(losses), float_bits(scale)]
    launch(
        "loss",
        dtype,
        nd.array(logits, dtype=dtype),
        nd.array(settings, dtype="int64"),
        gradient,
        logits.shape[1],
        off_target,
        blocks=len(labels),
    )
    return losses.asnumpy(), gradient.asnumpy()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "scale", "rounding"), [("float32", 1.0, 8e-6), ("float16", 128.0, 6e-4)]
)
def test_losses_and_their_gradients_are_mxnets(
    dtype: str, scale: float, rounding: float, smoothing: float
) -> None:
    loss = Loss(Model(label_smoothing=smoothing), 37)
    logits = 10 * drawn((5, 37), dtype)
    labels = np.array([0, 36, 7, 7, 20])
    wide = nd.array(logits, dtype="float32")
    wide.attach_grad()
    with mx.autograd.record():
        expected = loss(wide, nd.array(labels))
    expected.backward()
    losses, gradient = losses_of(logits, labels, loss.off_target, scale)
    assert_allclose(losses, expected.asnumpy(), rtol=3e-6, atol=3e-6)
    assert_allclose(
        gradient.astype("float32") / scale,
        wide.grad.asnumpy(),
        rtol=rounding,
        atol=rounding / 8,
    )


def test_logits_that_would_overflow_do_not() -> None:
    logits = np.array([[300, -300, 0]], np.float32)
    labels = np.array([1])
    losses, _ = losses_of(logits, labels, 0, 1.0)
    assert losses == 600


@EITHER_TYPE
@pytest.mark.parametrize("classes", [3, 41])
def test_hits_are_those_of_mxnets_operators(dtype: str, classes: int) -> None:
    ours: Any = None
    theirs: Any = None
    for _ in range(3):
        rows = [RNG.permutation(classes) for _ in range(30)]
        classes_of_rows = RNG.integers(-1, classes, size=30)
        scores = nd.array(rows, dtype=dtype)
        labels = nd.array(classes_of_rows)
        ours = emulated.operators().add_hits(scores, labels, ours)
        theirs = emulated.CPU.add_hits(scores, labels, theirs)
    hits = theirs.asnumpy().tolist()
    assert ours.asnumpy().tolist() == hits
    assert hits[0] > 0


def test_scores_that_are_no_numbers_are_no_hits_and_equal_ones_go_by_class() -> None:
    scores = np.ones((3, 7), np.float32)
    scores[0] = np.nan
    labels = nd.array([0, 0, 5])
    operators = emulated.operators()
    hits = operators.add_hits(nd.array(scores), labels, None)
    assert hits.asnumpy().tolist() == [1, 1, 3]


def results_of(operators: Operators) -> list[nd.NDArray]:
    """What the operators without a network make of some arrays."""
    a = nd.array(np.arange(700) - 350)
    b = nd.array(np.arange(700) - 10)
    half = operators.zeros(700, "float16")
    wide = operators.zeros(700)
    filled_half = operators.zeros(700, "float16")
    operators.scale(a, 0.5)
    operators.add_square(a, b, -1)
    operators.narrow(b, half, 0.25)
    operators.widen(half, wide, 4.0)
    operators.fill(filled_half, 3)
    operators.fill(b, -2)
    total = operators.add_losses(nd.array([1.5, 2, 4]), None)
    return [a, b, half, wide, filled_half, operators.join(total, (1, 0))]


def test_small_operators_do_what_mxnets_do() -> None:
    ours = results_of(emulated.operators())
    theirs = results_of(emulated.CPU)
    for our_array, their_array in zip(ours, theirs, strict=True):
        assert_array_equal(our_array.asnumpy(), their_array.asnumpy())


@EITHER_TYPE
def test_images_of_both_layouts_get_a_channel_and_a_filter_gets_and_loses_one(
    dtype: str,
) -> None:
    channels_last = drawn((2, 5, 4, 3), "float32")
    channels_first = channels_last.transpose(0, 3, 1, 2)
    zeros = np.zeros((2, 5, 4, 1))
    expected = np.concatenate((channels_last, zeros), axis=3).astype(dtype)
    for images, strides in ((channels_first, (1, 20)), (channels_last, (3, 1))):
        image_array = nd.array(images)
        padded = filled(expected.shape, dtype)
        settings = nd.array([data_address(image_array)], dtype="int64")
        launch("images", dtype, settings, padded, 40, 20, *strides)
        assert_array_equal(padded.asnumpy(), expected)
    narrow = filled(channels_last.shape, dtype)
    wide = filled(expected.shape, dtype)
    launch("channels", dtype, padded, narrow, narrow.size, 4, 3)
    launch("channels", dtype, narrow, wide, wide.size, 3, 4)
    assert_array_equal(narrow.asnumpy(), channels_last.astype(dtype))
    assert_array_equal(wide.asnumpy(), expected)


@EITHER_TYPE
@pytest.mark.parametrize("adds", [False, True])
def test_relu_of_a_sum_and_its_gradient(adds: bool, dtype: str) -> None:
    x = drawn((6, 8), dtype)
    z = drawn((6, 8), dtype)
    total = x.astype("float32") + adds * z
    y = nd.array(x, dtype=dtype)
    slope = nd.array(z, dtype=dtype)
    addend = nd.array(z, dtype=dtype) if adds else None
    launch("rectify", dtype, y, addend, x.size)
    launch("mask", dtype, y, slope, x.size)
    rectified = np.maximum(total, 0)
    masked = np.where(total > 0, z, 0)
    assert_array_equal(y.asnumpy(), rectified.astype(dtype))
    assert_array_equal(slope.asnumpy(), masked)


class Normed(NamedTuple):
    """What the kernels make of a norm's case, as NumPy's arrays."""

    y: np.ndarray
    running: list[np.ndarray]
    gradients: list[np.ndarray]
    dx: np.ndarray
    dy: np.ndarray


class Case(NamedTuple):
    x: np.ndarray
    z: np.ndarray
    dy: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    relu: bool
    adds: bool


FACTOR = 0.25
EPSILON = 0.01
ROUNDING = {"float32": 3e-6, "float16": 2e-3}
ABSOLUTE = {"float32": 6e-5, "float16": 1e-2}
CASES = [
    (203, 16, "sums"),
    (203, 80, "sums"),  # the second block of columns is not full
    (150, 13, "sums"),  # a column of one channel
    (150, 24, "whole"),
    (90, 13, "whole"),
    (1, 8, "sums"),
]


def normed(case: Case, method: str) -> Normed:
    """Forward and backward. `method`: whether a block does all rows."""
    module = emulated.EmulatedModule()
    dtype = case.x.dtype.name
    name = type_name(dtype)
    rows, channels = case.x.shape
    division = Division(Gpu(1, 1 << 20, ()), rows, channels, case.x.itemsize)
    maps, addend, dy = (nd.array(a, dtype=dtype) for a in case[:3])
    running, terms, slopes = (
        [filled((channels,), "float32") for _ in range(count)] for count in (2, 4, 4)
    )
    counters = nd.zeros(channels, dtype="int32")
    y = filled(case.x.shape, dtype)
    dz = signs = None
    if case.adds:
        dz = dy
    else:
        addend = None
    relu = int(case.relu)
    if case.relu and case.adds:
        signs = filled((case.x.size // division.column_channels,), "uint8")
    gamma = nd.array(case.gamma)
    beta = nd.array(case.beta)
    norm_arrays = (gamma, beta, *running, *terms)
    apply = division.apply()._replace(blocks=3, slices=2)
    if method == "whole":
        launch = division.whole()
        shape = (*launch.maps, FACTOR, EPSILON, relu)
        module.launch(
            f"norm_{name}", launch.blocks, maps, addend, *norm_arrays, y, signs, *shape
        )
        module.launch(
            f"norm_back_{name}",
            launch.blocks,
            maps,
            dy,
            dz,
            signs,
            *terms,
            *slopes,
            maps,
            *launch.maps,
            relu,
        )
    else:
        # fewer blocks than parts
        launch = division.sums()._replace(blocks=2, slices=3)
        partials = filled((launch.partials_bytes // 4,), "float32")
        sums = (partials, counters, *launch.maps)
        module.launch(
            f"norm_terms_{name}",
            launch.blocks,
            maps,
            *norm_arrays,
            *sums,
            FACTOR,
            EPSILON,
        )
        by = (terms[2], terms[3])
        module.launch(
            f"normalise_{name}",
            apply.blocks,
            maps,
            addend,
            *by,
            y,
            signs,
            *apply.maps,
            relu,
        )
        module.launch(
            f"norm_slopes_{name}",
            launch.blocks,
            maps,
            dy,
            dz,
            signs,
            *terms,
            *slopes,
            *sums,
            relu,
        )
        module.launch(
            f"normalise_back_{name}",
            apply.blocks,
            maps,
            dy,
            *by,
            *slopes[2:],
            maps,
            *apply.maps,
            0 if case.adds else relu,
        )
    assert not counters.asnumpy().any()
    return Normed(
        y.asnumpy(),
        [array.asnumpy() for array in running],
        [array.asnumpy() for array in slopes[:2]],
        maps.asnumpy(),
        dy.asnumpy(),
    )


@EITHER_TYPE
@pytest.mark.parametrize(("rows", "channels", "method"), CASES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_batch_norm_and_its_gradient(
    adds: bool, relu: bool, rows: int, channels: int, method: str, dtype: str
) -> None:
    """NumPy has them in float64; the running statistics are kept as cuDNN keeps them."""
    shape = (rows, channels)
    x, z, dy = (drawn(shape, dtype) for _ in range(3))
    x += 5
    gamma, beta = drawn((2, channels), "float32")
    case = Case(x, z, dy, gamma, beta, relu, adds)
    computed = normed(case, method)
    wide = x.astype("float64")
    variance = wide.var(0)
    inverse = 1 / np.sqrt(variance + EPSILON)
    normal = (wide - wide.mean(0)) * inverse
    y = normal * gamma + beta + adds * z
    slope = dy.astype("float64")
    if relu:
        y = np.maximum(y, 0)
        slope[computed.y == 0] = 0
    rounding = ROUNDING[dtype]
    # scale x + shift loses what the mean has in digits
    assert_allclose(computed.y, y, rtol=rounding, atol=ABSOLUTE[dtype])
    unbiased = variance * (rows / max(rows - 1, 1))
    statistics = [wide.mean(0), unbiased]
    expected = (1 - FACTOR) * 7 + FACTOR * np.array(statistics)
    assert_allclose(computed.running, expected, rtol=3e-6)
    d_beta = slope.sum(0)
    d_gamma = (slope * normal).sum(0)
    assert_allclose(computed.gradients, [d_gamma, d_beta], rtol=1e-4, atol=2e-3)
    dx = gamma * inverse * (slope - (d_beta + normal * d_gamma) / rows)
    assert_allclose(computed.dx, dx, rtol=rounding, atol=ABSOLUTE[dtype])
    if adds:  # the gradient of the other addend lies where dy did
        assert_array_equal(computed.dy, slope.astype(dtype))


def test_a_batch_alone_is_in_the_running_statistics_with_momentum_0() -> None:
    """What was there is not read: it may be no number."""
    statistics = [nd.array([np.nan, np.nan]) for _ in range(2)]
    terms = [filled((2,), "float32") for _ in range(4)]
    sums = nd.array([6, 12])
    squares = nd.array([20, 50])
    emulated.EmulatedModule().launch(
        "summed_terms",
        1,
        sums,
        squares,
        nd.array([2, 1]),
        nd.array([1, 0]),
        *statistics,
        *terms,
        None,  # nobody reads scale and shift in float16
        None,
        3,
        2,
        1.0,
        0.0,
    )
    assert_allclose(statistics[0].asnumpy(), [2, 4])
    assert_allclose(statistics[1].asnumpy(), [4, 1], rtol=1e-6)
    mean, inverse, scale, shift = (array.asnumpy() for array in terms)
    assert_allclose(inverse, [np.sqrt(3 / 8), np.sqrt(3 / 2)], rtol=1e-6)
    assert_allclose(scale, inverse * [2, 1])
    assert_allclose(shift, [1, 0] - mean * scale, rtol=1e-6)


@EITHER_TYPE
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_of_an_evaluation(relu: bool, adds: bool, dtype: str) -> None:
    x = drawn((6, 8), dtype)
    z = drawn((6, 8), dtype)
    statistics = np.abs(drawn((4, 8), "float32"))
    gamma, beta, mean, variance = statistics
    normalised = (x - mean) / np.sqrt(variance + 0.01)
    expected = normalised * gamma + beta + adds * z
    if relu:
        expected = np.maximum(expected, 0)
    y = filled(x.shape, dtype)
    terms = [filled((8,), "float32") for _ in range(4)]
    emulated.EmulatedModule().launch(
        "running_terms", 1, *map(nd.array, statistics), *terms, 8, 0.01
    )
    launch(
        "normalise",
        dtype,
        nd.array(x, dtype=dtype),
        nd.array(z, dtype=dtype) if adds else None,
        *terms[2:],
        y,
        None,
        6,
        8,
        8,
        2,
        int(relu),
    )
    rounding = ROUNDING[dtype]
    assert_allclose(y.asnumpy(), expected, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("height", "width"), [(8, 6), (7, 5)])
def test_max_pooling_and_its_gradient_are_mxnets(height: int, width: int) -> None:
    """Many of the values are equal; what is no number stays so."""
    shape = (2, height, width, 3)
    x = nd.array(RNG.integers(-3, 3, shape))
    x.attach_grad()
    windows = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
    with mx.autograd.record():
        channels_first = x.transpose((0, 3, 1, 2))
        pooled_first = nd.Pooling(channels_first, **windows)
        pooled = pooled_first.transpose((0, 2, 3, 1))
    slope = nd.array(drawn(pooled.shape, "float32"))
    pooled.backward(slope)
    y = filled(pooled.shape, "float32")
    argmaxes = filled(pooled.shape, "uint8")
    gradient = filled(shape, "float32")
    sizes = (y.size, height, width, 3)
    launch("max_pool", "float32", x, y, argmaxes, *sizes)
    launch("max_pool_back", "float32", slope, argmaxes, gradient, *sizes)
    assert_array_equal(y.asnumpy(), pooled.asnumpy())
    assert_allclose(gradient.asnumpy(), x.grad.asnumpy(), rtol=1e-6)
    x[0, 2, 2, 1] = np.nan
    launch("max_pool", "float32", x, y, argmaxes, *sizes)
    places_of_none = np.argwhere(np.isnan(y.asnumpy()))
    assert places_of_none.tolist() == [[0, 1, 1, 1]]


def test_the_chunks_of_the_kernels_are_those_of_the_table() -> None:
    assert f"#define CHUNK {CHUNK} " in emulated.SOURCE.read_text()


def test_the_trial_of_a_device_learns() -> None:
    losses = trial_losses(mx.cpu(), "float32")
    assert 2 < losses[0] < 2.6
    assert losses[-1] < 0.8 < losses[5]
