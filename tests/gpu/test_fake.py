"""The fake computes what cuDNN and cuBLAS would, against NumPy, and refuses what they refuse.

Streams are lazy here: numbers are there when something has waited for them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

from tests.gpu.cuda import (
    HALF,
    NOT_SUPPORTED,
    TENSOR_OP_MATH,
    THREAD_LOCAL,
    TO_HOST,
    Cuda,
    compile_ptx,
    one,
)

T = TypeVar("T")

RNG = np.random.default_rng(0)
TOLERANCE = {"float32": 2e-6, "float16": 1.5e-3}
"""Of a result, relative to its largest value: what rounding to the type leaves."""


@pytest.fixture(scope="module")
def cuda(fake: Path, emulated: Path) -> Iterator[Cuda]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKECUDA_LAZY", "1")
        patch.setenv("FAKECUDA_KERNELS", str(emulated))
        yield Cuda(fake / "libcuda.so.1")


def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Values that `dtype` has."""
    return RNG.normal(size=shape).astype(dtype).astype(np.float64)


def assert_close(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=TOLERANCE[dtype] * np.abs(expected).max()
    )


class Case(NamedTuple):
    """A convolution."""

    channels: int
    side: int
    filters: int
    kernel: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1

    @property
    def out_side(self) -> int:
        reach = self.dilation * (self.kernel - 1) + 1
        return (self.side + 2 * self.pad - reach) // self.stride + 1

    def windows(self, x: np.ndarray) -> list[tuple[int, int, np.ndarray]]:
        """Of padded input: row and column of the filter, and the pixels that it meets, a view."""
        end = self.stride * (self.out_side - 1) + 1
        places = [
            (i, j, i * self.dilation, j * self.dilation)
            for i in range(self.kernel)
            for j in range(self.kernel)
        ]
        step = self.stride
        return [
            (i, j, x[:, :, h : h + end : step, w : w + end : step])
            for i, j, h, w in places
        ]

    def padded(self, x: np.ndarray) -> np.ndarray:
        sides = (self.pad, self.pad)
        return np.pad(x, ((0, 0), (0, 0), sides, sides))

    def dense(self, weights: np.ndarray) -> np.ndarray:
        """Weights of all channels, zero where a group has none."""
        wide = np.zeros((self.filters, self.channels, self.kernel, self.kernel))
        of_group = self.filters // self.groups
        width = self.channels // self.groups
        for g in range(self.groups):
            rows = slice(g * of_group, (g + 1) * of_group)
            wide[rows, g * width : (g + 1) * width] = weights[rows]
        return wide

    def forward(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        wide = self.dense(weights)
        windows = self.windows(self.padded(x))
        return sum(
            np.einsum("nchw,kc->nkhw", part, wide[:, :, i, j]) for i, j, part in windows
        )

    def to_data(
        self, dy: np.ndarray, weights: np.ndarray, shape: tuple[int, ...]
    ) -> np.ndarray:
        wide = self.dense(weights)
        dx = self.padded(np.zeros(shape))
        for i, j, part in self.windows(dx):
            part += np.einsum("nkhw,kc->nchw", dy, wide[:, :, i, j])
        end = -self.pad or None
        return dx[:, :, self.pad : end, self.pad : end]

    def to_filter(self, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        wide = self.dense(np.zeros((self.filters, self.channels // self.groups, 1, 1)))
        for i, j, part in self.windows(self.padded(x)):
            wide[:, :, i, j] = np.einsum("nkhw,nchw->kc", dy, part)
        width = self.channels // self.groups
        firsts = np.arange(self.filters) // (self.filters // self.groups) * width
        return np.stack(
            [of[first : first + width] for of, first in zip(wide, firsts, strict=True)]
        )


class Performance(ctypes.Structure):
    """cudnnConvolution...AlgoPerf_t."""

    _fields_ = (
        ("algorithm", c_int),
        ("status", c_int),
        ("time", ctypes.c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("math", c_int),
        ("reserved", c_int * 3),
    )


class Layer:
    """A convolution's tensors on the device."""

    def __init__(
        self, cuda: Cuda, case: Case, dtype: str, layout: str, batch: int = 2
    ) -> None:
        self.cuda = cuda
        self.case = case
        self.dtype = dtype
        side = case.out_side
        weight_shape = (
            case.filters,
            case.channels // case.groups,
            case.kernel,
            case.kernel,
        )
        self.x = draw((batch, case.channels, case.side, case.side), dtype)
        self.weights = draw(weight_shape, dtype)
        self.dy = draw((batch, case.filters, side, side), dtype)
        self.on_device = [
            cuda.tensor_of(t, dtype, layout) for t in (self.x, self.weights, self.dy)
        ]
        self.filter = self.on_device[1].filter_descriptor()
        self.convolution = cuda.convolution(
            case.stride, case.pad, case.dilation, case.groups
        )

    def operands(self, direction: str) -> list[tuple[c_void_p, c_void_p]]:
        """Descriptors and places: two operands, then the result's descriptor and shape's owner."""
        x, weights, dy = self.on_device
        filters = (self.filter, weights.place)
        return {
            "Forward": [x.both, filters, dy.both],
            "BackwardData": [filters, dy.both, x.both],
            "BackwardFilter": [x.both, dy.both, filters],
        }[direction]

    def workspace(self, direction: str, algorithm: int) -> int:
        found = c_size_t()
        first, second, result = (
            descriptor for descriptor, _ in self.operands(direction)
        )
        name = f"cudnnGetConvolution{direction}WorkspaceSize"
        arguments = (first, second, self.convolution, result, algorithm, byref(found))
        self.cuda.call(name, self.cuda.cudnn, *arguments)
        return found.value

    def prepare(self, direction: str, space_bytes: int | None = None) -> None:
        """Take the workspace that `run_in` uses."""
        self.direction = direction
        self.space_bytes = (
            self.workspace(direction, 1) if space_bytes is None else space_bytes
        )
        self.space = self.cuda.allocate(self.space_bytes)

    def run_in(
        self, target: c_void_p, alpha: float = 1, beta: float = 0, algorithm: int = 1
    ) -> int:
        """cuDNN's answer to the convolution into `target`."""
        first, second, (result, _) = self.operands(self.direction)
        arguments = (
            one(alpha),
            *first,
            *second,
            self.convolution,
            algorithm,
            self.space,
        )
        name = f"cudnnConvolution{self.direction}"
        end = (c_size_t(self.space_bytes), one(beta), result, target)
        return self.cuda.status(
            name,
            self.cuda.cudnn,
            *arguments,
            *end,
        )

    def run(
        self,
        direction: str,
        target: c_void_p,
        space_bytes: int | None = None,
        **how: Any,
    ) -> int:
        self.prepare(direction, space_bytes)
        return self.run_in(target, **how)

    def expected(self, direction: str) -> np.ndarray:
        if direction == "Forward":
            return self.case.forward(self.x, self.weights)
        if direction == "BackwardData":
            return self.case.to_data(self.dy, self.weights, self.x.shape)
        return self.case.to_filter(self.x, self.dy)


CASES = [
    Case(8, 9, 16, kernel=1),
    Case(8, 9, 8, kernel=1, stride=2),
    Case(5, 7, 24, kernel=3, stride=2, pad=1),
    Case(4, 11, 6, kernel=7, stride=2, pad=3),
    Case(6, 9, 4, kernel=3, pad=2, dilation=2, groups=2),
    Case(520, 3, 20, kernel=3, pad=1),
]


@pytest.mark.parametrize("direction", ["Forward", "BackwardData", "BackwardFilter"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_convolutions(
    case: Case, dtype: str, layout: str, direction: str, cuda: Cuda
) -> None:
    layer = Layer(cuda, case, dtype, layout)
    expected = layer.expected(direction)
    target = cuda.tensor(expected.shape, dtype, layout)  # what is there is no number
    assert layer.run(direction, target.place) == 0
    assert_close(target.read(), expected, dtype)
    before = target.read()
    assert layer.run(direction, target.place, alpha=-2, beta=1) == 0
    assert_close(target.read(), before - 2 * expected, dtype)


# --- algorithms and their workspaces ---


def algorithms(cuda: Cuda, layer: Layer, direction: str) -> list[Any]:
    first, second, result = (descriptor for descriptor, _ in layer.operands(direction))
    found = (Performance * 16)()
    returned = c_int()
    name = f"cudnnGetConvolution{direction}Algorithm_v7"
    arguments = (first, second, layer.convolution, result, 16, byref(returned), found)
    cuda.call(name, cuda.cudnn, *arguments)
    return list(found[: returned.value])


@pytest.mark.parametrize(
    ("direction", "random"),
    [("Forward", []), ("BackwardData", [0]), ("BackwardFilter", [0, 3])],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_algorithms_come_best_first(
    direction: str, random: list[int], layout: str, cuda: Cuda
) -> None:
    layer = Layer(
        cuda,
        Case(8, 9, 8, kernel=3, stride=2, pad=1),
        "float16",
        layout,
    )
    found = algorithms(cuda, layer, direction)
    supported = [each for each in found if each.status == 0]
    # and then what takes no such convolution
    assert found[: len(supported)] == supported
    assert {each.status for each in found[len(supported) :]} == {NOT_SUPPORTED}
    best = supported[0]
    assert (best.algorithm, best.math, best.determinism) == (1, TENSOR_OP_MATH, 1)
    of_no_order = {each.algorithm for each in supported if not each.determinism}
    assert of_no_order == {n for n in random if layout == "NCHW" or n != 3}
    for each in supported:
        assert layer.workspace(direction, each.algorithm) == each.memory
        target = cuda.tensor(layer.expected(direction).shape, "float16", layout)
        run = {"algorithm": each.algorithm, "space_bytes": each.memory}
        assert layer.run(direction, target.place, **run) == 0
        assert_close(target.read(), layer.expected(direction), "float16")


def test_nchw_copies_of_both_tensors_are_the_workspace(cuda: Cuda) -> None:
    """937 MiB at a batch of 408 in the first convolution, as it was met on GPUs."""
    x, y, w = (cuda.made("Tensor") for _ in range(3))
    found = c_size_t()
    cuda.call(
        "cudnnSetTensor4dDescriptor",
        x,
        0,
        HALF,
        408,
        3,
        224,
        224,
    )
    cuda.call(
        "cudnnSetTensor4dDescriptor",
        y,
        0,
        HALF,
        408,
        64,
        112,
        112,
    )
    cuda.call("cudnnSetFilter4dDescriptor", w, HALF, 0, 64, 3, 7, 7)
    convolution = cuda.convolution(2, 3)
    arguments = (x, w, convolution, y, 1, byref(found))
    cuda.call("cudnnGetConvolutionForwardWorkspaceSize", cuda.cudnn, *arguments)
    assert found.value >> 20 == 937


# --- batch norm ---


class Normalization(NamedTuple):
    """How cuDNN is asked for it."""

    operation: int | None
    """0: alone, 1: with ReLU, 2: with a sum and ReLU; None: by the functions without Ex."""
    dtype: str
    layout: str
    channels: int = 8


EPSILON = 1e-3
FACTOR = 0.25
PERSISTENT = 2
NORMALIZATIONS = [
    Normalization(None, "float32", "NCHW", 5),
    Normalization(None, "float16", "NHWC"),
    Normalization(0, "float32", "NHWC", 6),
    Normalization(0, "float16", "NCHW"),
    Normalization(1, "float16", "NHWC"),
    Normalization(2, "float16", "NHWC"),
]


class BatchNorm:
    """Tensors of a batch norm on the device, and its two calls."""

    def __init__(self, cuda: Cuda, how: Normalization) -> None:
        self.cuda = cuda
        self.how = how
        shape = (3, how.channels, 4, 5)
        self.x, self.z, self.dy = (draw(shape, how.dtype) for _ in range(3))
        self.scale, self.bias, self.mean = (
            draw((how.channels,), "float32") for _ in range(3)
        )
        self.variance = np.abs(self.mean) + 1
        arrays = (self.x, self.z, self.dy)
        self.tensors = [cuda.tensor_of(t, how.dtype, how.layout) for t in arrays]
        self.y, self.dx, self.dz = (
            cuda.tensor(shape, how.dtype, how.layout) for _ in range(3)
        )
        numbers = (self.scale, self.bias, self.mean, self.variance)
        self.parameters = [cuda.put(n.astype("float32")) for n in numbers]
        self.saved = [cuda.allocate(4 * how.channels) for _ in range(2)]
        self.gradients = [cuda.put(np.ones(how.channels, "float32")) for _ in range(2)]
        self.derived = cuda.made("Tensor")
        x = self.tensors[0].descriptor
        cuda.call(
            "cudnnDeriveBNTensorDescriptor",
            self.derived,
            x,
            PERSISTENT,
        )
        self.relu = cuda.relu() if how.operation else None
        self.ways = (
            [PERSISTENT] if how.operation is None else [PERSISTENT, how.operation]
        )
        self.spaces: list[Any] = []
        if how.operation is not None:
            sizes = self.sizes()
            self.spaces = [self.relu]
            for size in sizes:
                self.spaces += [cuda.allocate(size), c_size_t(size)]

    def sizes(self) -> list[int]:
        """Of workspace (the larger one) and reserve space."""
        x = self.tensors[0].descriptor
        found = [c_size_t() for _ in range(3)]
        name = "cudnnGetBatchNormalization{}Size".format
        ways = (self.cuda.cudnn, *self.ways)
        call = self.cuda.call
        forward, backward, reserve = map(byref, found)
        call(
            name("ForwardTrainingExWorkspace"),
            *ways,
            x,
            x,
            x,
            self.derived,
            self.relu,
            forward,
        )
        end = (x, x, x, x, x, self.derived, self.relu, backward)
        call(name("BackwardExWorkspace"), *ways, *end)
        call(
            name("TrainingExReserveSpace"),
            *ways,
            self.relu,
            x,
            reserve,
        )
        return [max(found[0].value, found[1].value), found[2].value]

    def forward(self) -> int:
        x, z, _ = self.tensors
        scale, bias, mean, variance = self.parameters
        more = z.both if self.how.operation == 2 else (None, None)
        between = () if self.how.operation is None else more
        numbers = (
            self.derived,
            scale,
            bias,
            c_double(FACTOR),
            mean,
            variance,
            c_double(EPSILON),
        )
        name = "cudnnBatchNormalizationForwardTraining" + ("Ex" if self.spaces else "")
        arguments = (*self.ways, one(1), one(0), *x.both, *between, *self.y.both)
        return self.cuda.status(
            name, self.cuda.cudnn, *arguments, *numbers, *self.saved, *self.spaces
        )

    def backward(self, beta: float = 1) -> int:
        x, _, dy = self.tensors
        scale, bias, *_ = self.parameters
        ways = (self.cuda.cudnn, *self.ways, one(1), one(0), one(2), one(beta))
        ends = (*self.gradients, c_double(EPSILON), *self.saved)
        if self.how.operation is None:
            arguments = (*x.both, *dy.both, *self.dx.both, self.derived, scale, *ends)
            return self.cuda.status(
                "cudnnBatchNormalizationBackward", *ways, *arguments
            )
        more = self.dz.both if self.how.operation == 2 else (None, None)
        tensors = (*x.both, *self.y.both, *dy.both, *more, *self.dx.both)
        arguments = (*tensors, self.derived, scale, bias, *ends, *self.spaces)
        return self.cuda.status("cudnnBatchNormalizationBackwardEx", *ways, *arguments)


def by_channel(values: np.ndarray) -> np.ndarray:
    return values[:, None, None]


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_batch_norm(how: Normalization, cuda: Cuda) -> None:
    norm = BatchNorm(cuda, how)
    errors = cuda.report().errors
    axes = (0, 2, 3)
    mean = norm.x.mean(axes)
    inverse = 1 / np.sqrt(norm.x.var(axes) + EPSILON)
    normalized = (norm.x - by_channel(mean)) * by_channel(inverse)
    y = normalized * by_channel(norm.scale) + by_channel(norm.bias)
    dy = norm.dy
    if how.operation == 2:
        y = y + norm.z
    if how.operation:
        dy = dy * (y > 0)
        y = np.maximum(y, 0)
    assert norm.forward() == 0
    assert_close(norm.y.read(), y, how.dtype)

    def numbers(place: c_void_p) -> np.ndarray:
        return cuda.get(place, (how.channels,), "float32").astype(np.float64)

    kept = 1 - FACTOR
    unbiased = norm.x.var(axes, ddof=1)
    _, _, running_mean, running_variance = map(numbers, norm.parameters)
    assert_close(running_mean, kept * norm.mean + FACTOR * mean, "float32")
    assert_close(running_variance, kept * norm.variance + FACTOR * unbiased, "float32")
    assert_close(numbers(norm.saved[0]), mean, "float32")
    assert_close(numbers(norm.saved[1]), inverse, "float32")

    d_scale = (dy * normalized).sum(axes)
    d_bias = dy.sum(axes)
    mean_slope = by_channel(d_bias) + normalized * by_channel(d_scale)
    dx = dy - mean_slope / (norm.x.size / how.channels)
    assert norm.backward() == 0
    assert_close(norm.dx.read(), dx * by_channel(norm.scale * inverse), how.dtype)
    assert_close(numbers(norm.gradients[0]), 2 * d_scale + 1, "float32")
    assert_close(numbers(norm.gradients[1]), 2 * d_bias + 1, "float32")
    if how.operation == 2:
        assert_close(norm.dz.read(), dy, how.dtype)
    assert cuda.report().errors == errors  # its reserve space was known again


@pytest.mark.parametrize(
    ("dtype", "layout"), [("float32", "NCHW"), ("float16", "NHWC")]
)
def test_batch_norm_of_inference(dtype: str, layout: str, cuda: Cuda) -> None:
    norm = BatchNorm(cuda, Normalization(None, dtype, layout))
    arguments = (one(1), one(0), *norm.tensors[0].both, *norm.y.both, norm.derived)
    name = "cudnnBatchNormalizationForwardInference"
    cuda.call(
        name,
        cuda.cudnn,
        1,
        *arguments,
        *norm.parameters,
        c_double(EPSILON),
    )
    factor = by_channel(norm.scale / np.sqrt(norm.variance + EPSILON))
    y = (norm.x - by_channel(norm.mean)) * factor + by_channel(norm.bias)
    assert_close(norm.y.read(), y, dtype)


# --- pooling, ReLU, softmax, sums ---

MAX, AVERAGE, AVERAGE_WITHIN, MAX_DETERMINISTIC = range(4)
POOLED = Case(4, 9, 4, kernel=3, stride=2, pad=1)


@pytest.mark.parametrize("mode", [MAX, AVERAGE, AVERAGE_WITHIN, MAX_DETERMINISTIC])
@pytest.mark.parametrize(
    ("dtype", "layout"), [("float32", "NCHW"), ("float16", "NHWC")]
)
def test_pooling(
    mode: int,
    dtype: str,
    layout: str,
    cuda: Cuda,
) -> None:
    side = POOLED.out_side
    x = draw((2, 4, 9, 9), dtype)
    dy = draw((2, 4, side, side), dtype)
    descriptor = cuda.made("Pooling")
    cuda.call(
        "cudnnSetPooling2dDescriptor",
        descriptor,
        mode,
        0,
        3,
        3,
        1,
        1,
        2,
        2,
    )
    dx = POOLED.padded(np.zeros(x.shape))
    windows = POOLED.windows(dx)
    if mode in (MAX, MAX_DETERMINISTIC):
        padded = np.pad(
            x,
            ((0, 0), (0, 0), (1, 1), (1, 1)),
            constant_values=-np.inf,
        )
        values = np.stack([part for _, _, part in POOLED.windows(padded)])
        y = values.max(0)
        shares = np.arange(len(values))[:, None, None, None, None] == values.argmax(0)
    else:
        values = np.stack([part for _, _, part in POOLED.windows(POOLED.padded(x))])
        inside = POOLED.windows(POOLED.padded(np.ones(x.shape)))
        count = sum(part for _, _, part in inside) if mode == AVERAGE_WITHIN else 9
        y = values.sum(0) / count
        shares = np.broadcast_to(1 / count, values.shape)
    for (_, _, part), share in zip(windows, shares, strict=True):
        part += share * dy
    tensors = [cuda.tensor_of(t, dtype, layout) for t in (x, dy)]
    out = cuda.tensor(dy.shape, dtype, layout)
    gradient = cuda.tensor(x.shape, dtype, layout)
    factors = (one(1), one(0))
    arguments = (descriptor, factors[0], *tensors[0].both, factors[1], *out.both)
    cuda.call("cudnnPoolingForward", cuda.cudnn, *arguments)
    assert_close(out.read(), y, dtype)
    arguments = (
        descriptor,
        factors[0],
        *out.both,
        *tensors[1].both,
        *tensors[0].both,
        factors[1],
    )
    cuda.call(
        "cudnnPoolingBackward",
        cuda.cudnn,
        *arguments,
        *gradient.both,
    )
    assert_close(gradient.read(), dx[:, :, 1:-1, 1:-1], dtype)


def test_new_memory_is_no_number_and_pooling_keeps_that(cuda: Cuda) -> None:
    source, target = (cuda.tensor((1, 2, 4, 4), "float16", "NHWC") for _ in range(2))
    descriptor = cuda.made("Pooling")
    cuda.call(
        "cudnnSetPooling2dDescriptor",
        descriptor,
        MAX,
        0,
        1,
        1,
        0,
        0,
        1,
        1,
    )
    arguments = (descriptor, one(1), *source.both, one(0), *target.both)
    cuda.call("cudnnPoolingForward", cuda.cudnn, *arguments)
    cuda.call("cudaStreamSynchronize", cuda.stream)
    assert np.isnan(source.read()).all()
    assert np.isnan(target.read()).all()


def test_relu_softmax_bias_and_sums(cuda: Cuda) -> None:
    x, dy = (draw((3, 5, 2, 2), "float32") for _ in range(2))
    row = draw((1, 5, 1, 1), "float32")
    on_device = [cuda.tensor_of(t, "float32") for t in (x, dy, row)]
    source, slope, bias = (t.both for t in on_device)
    relu = cuda.relu()
    out, back, soft = (cuda.tensor(x.shape, "float32") for _ in range(3))
    factors = (one(1), one(0))

    def call(name: str, *arguments: Any) -> None:
        cuda.call(name, cuda.cudnn, *arguments)

    call(
        "cudnnActivationForward",
        relu,
        factors[0],
        *source,
        factors[1],
        *out.both,
    )
    three = (*out.both, *slope, *source)
    call(
        "cudnnActivationBackward",
        relu,
        factors[0],
        *three,
        factors[1],
        *back.both,
    )
    channel = 1
    call(
        "cudnnSoftmaxForward",
        1,
        channel,
        factors[0],
        *source,
        factors[1],
        *soft.both,
    )
    of_bias = cuda.tensor(row.shape, "float32")
    call(
        "cudnnConvolutionBackwardBias",
        factors[0],
        *slope,
        factors[1],
        *of_bias.both,
    )
    call("cudnnAddTensor", one(2), *bias, one(3), *on_device[0].both)
    assert_close(out.read(), np.maximum(x, 0), "float32")
    assert_close(back.read(), dy * (x > 0), "float32")
    assert_close(soft.read(), np.exp(x) / np.exp(x).sum(1, keepdims=True), "float32")
    assert_close(of_bias.read()[0, :, 0, 0], dy.sum((0, 2, 3)), "float32")
    assert_close(on_device[0].read(), 3 * x + 2 * row, "float32")


CUDA_TYPES = {"float32": 0, "float16": 2}


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("cublasSgemm_v2", "float32"),
        ("cublasSgemmEx", "float16"),
        ("cublasGemmEx", "float32"),
        ("cublasGemmEx", "float16"),
    ],
)
def test_products_column_by_column(
    name: str, dtype: str, transposed: tuple[int, int], cuda: Cuda
) -> None:
    m, n, k = 7, 19, 400
    a, b, c = (draw(shape, dtype) for shape in ((m, k), (k, n), (m, n)))
    places = []
    leading = []
    for matrix, turned in zip((a, b, c), (*transposed, 0), strict=True):
        columns = matrix if turned else matrix.T
        padded = np.pad(columns, ((0, 0), (0, 3))).astype(dtype)
        places.append(cuda.put(padded))
        leading.append(padded.shape[1])
    kind = () if name == "cublasSgemm_v2" else (CUDA_TYPES[dtype],)
    operands = [
        (place, *kind, length) for place, length in zip(places, leading, strict=True)
    ]
    end = (68, -1) if name == "cublasGemmEx" else ()  # sums in float32, any algorithm
    arguments = (
        *transposed,
        m,
        n,
        k,
        one(0.5),
        *operands[0],
        *operands[1],
        one(2),
        *operands[2],
    )
    cuda.call(name, cuda.cublas, *arguments, *end)
    found = cuda.get(places[2], (n, leading[2]), dtype)[:, :m].T
    assert_close(found, 0.5 * a @ b + 2 * c, dtype)


# --- what is refused ---

HALF_CONVOLUTION = Case(8, 6, 8, kernel=3, pad=1)


def half_layer(cuda: Cuda, case: Case = HALF_CONVOLUTION) -> Layer:
    return Layer(cuda, case, "float16", "NHWC")


def short_workspace(cuda: Cuda) -> int:
    layer = half_layer(cuda)
    needed = layer.workspace("BackwardFilter", 1)
    return layer.run(
        "BackwardFilter",
        layer.on_device[1].place,
        space_bytes=needed - 1,
    )


def misaligned(cuda: Cuda) -> int:
    place = cuda.allocate(1 << 16).value
    assert place is not None
    return half_layer(cuda).run("Forward", c_void_p(place + 8))


def winograd_of_nhwc(cuda: Cuda) -> int:
    layer = half_layer(cuda)
    return layer.run(
        "Forward",
        layer.on_device[2].place,
        algorithm=6,
        space_bytes=0,
    )


def short_output(cuda: Cuda) -> int:
    layer = half_layer(cuda)
    return layer.run("Forward", cuda.allocate(100))


def fused(cuda: Cuda, **other: Any) -> int:
    """A batch norm with ReLU whose tensors are not those that it takes."""
    norm = BatchNorm(cuda, Normalization(1, "float16", "NHWC"))
    strange = BatchNorm(
        cuda, Normalization(None, **({"dtype": "float16", "layout": "NHWC"} | other))
    )
    norm.tensors = strange.tensors
    norm.y = strange.y
    norm.derived = strange.derived
    return norm.forward()


def fused_in_another_mode(cuda: Cuda) -> int:
    norm = BatchNorm(cuda, Normalization(1, "float16", "NHWC"))
    norm.ways[0] = 1
    return norm.forward()


def short_reserve(cuda: Cuda) -> int:
    norm = BatchNorm(cuda, Normalization(2, "float16", "NHWC"))
    norm.spaces[-1] = c_size_t(norm.spaces[-1].value - 1)
    return norm.forward()


def reserve_of_another_call(cuda: Cuda) -> int:
    first, second = (
        BatchNorm(cuda, Normalization(1, "float16", "NHWC")) for _ in range(2)
    )
    assert first.forward() == second.forward() == 0
    second.spaces = first.spaces
    assert second.backward() == 0
    # it is seen when the call runs
    return cuda.status("cudaStreamSynchronize", cuda.stream)


@pytest.mark.parametrize(
    ("refused", "status", "reason"),
    [
        (short_workspace, 3, "workspace of"),
        (misaligned, 3, "not aligned to 16"),
        (winograd_of_nhwc, NOT_SUPPORTED, "algorithm 6"),
        (short_output, 3, "passes the end of its allocation"),
        (partial(fused, layout="NCHW"), NOT_SUPPORTED, "with ReLU it takes"),
        (partial(fused, dtype="float32"), NOT_SUPPORTED, "with ReLU it takes"),
        (partial(fused, channels=6), NOT_SUPPORTED, "with ReLU it takes"),
        (fused_in_another_mode, NOT_SUPPORTED, "with ReLU it takes"),
        (short_reserve, 3, "reserve space of"),
        (reserve_of_another_call, 0, "the reserve space of another call"),
    ],
)
def test_what_cudnn_refuses(
    refused: Callable[[Cuda], int], status: int, reason: str, cuda: Cuda
) -> None:
    before = len(cuda.report().errors)
    assert refused(cuda) == status
    errors = cuda.report().errors[before:]
    assert len(errors) == 1
    assert reason in errors[0]


# --- kernels of our own, contexts, streams ---

INVALID_CONTEXT = 201
INVALID_HANDLE = 400
CONTEXT_IS_DESTROYED = 709


class Kernels:
    """Our own kernels, loaded as a driver loads them."""

    def __init__(self, cuda: Cuda, ptx: bytes) -> None:
        self.cuda = cuda
        self.module = c_void_p()
        cuda.call("cuModuleLoadData", byref(self.module), ptx)

    def launch(self, name: str, stream: c_void_p, *arguments: Any, **shape: int) -> int:
        """Its blocks and threads are 1, where `shape` says no other."""
        function = c_void_p()
        self.cuda.call(
            "cuModuleGetFunction", byref(function), self.module, name.encode()
        )
        words = [ctypes.create_string_buffer(bytes(a), 8) for a in arguments]
        places = (c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
        sides = [shape.get(key, 1) for key in ("gx", "gy", "gz", "bx", "by", "bz")]
        end = (shape.get("shared", 0), stream, places, None)
        return self.cuda.status(
            "cuLaunchKernel",
            function,
            *sides,
            *end,
        )

    def scale(self, array: c_void_p, size: int, factor: float, **shape: int) -> int:
        arguments = (array, c_int(size), c_float(factor))
        return self.launch(
            "scale",
            self.cuda.stream,
            *arguments,
            **shape,
        )


@pytest.fixture(scope="module")
def own(cuda: Cuda, kernels: str, site: Path) -> Kernels:
    return Kernels(cuda, compile_ptx(site, kernels, (8, 0)))


def test_our_own_kernels_run_when_their_stream_is_waited_for(
    cuda: Cuda, own: Kernels
) -> None:
    array = cuda.put(np.arange(100, dtype="float32"))
    ran = "kernels of our own that ran"
    before = cuda.report().counts.get(ran, 0)
    assert own.scale(array, 100, 0.5, gx=3, bx=64) == 0
    assert cuda.report().counts.get(ran, 0) == before
    assert cuda.get(array, (100,), "float32").tolist() == [0.5 * i for i in range(100)]
    assert cuda.report().counts[ran] == before + 1


@pytest.mark.parametrize(("flags", "expected"), [(0, 7), (1, 0)])
def test_the_default_stream_waits_for_those_that_block_it(
    flags: int, expected: int, cuda: Cuda
) -> None:
    stream = c_void_p()
    cuda.call("cudaStreamCreateWithFlags", byref(stream), flags)
    place = cuda.put(np.zeros(1, "uint8"))
    cuda.call("cudaMemsetAsync", place, 7, c_size_t(1), stream)
    found = ctypes.c_ubyte()
    cuda.call("cudaMemcpy", byref(found), place, c_size_t(1), TO_HOST)
    assert found.value == expected


@pytest.mark.parametrize(
    "shape", [{"bx": 1025}, {"shared": 49153}, {"gy": 65536}, {"gx": 0}]
)
def test_launches_beyond_the_limits_are_refused(
    shape: dict[str, int], cuda: Cuda, own: Kernels
) -> None:
    assert own.scale(cuda.allocate(400), 100, 0.5, **shape) == 1
    assert "scale: launched as" in cuda.report().errors[-1]


@pytest.fixture
def elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Callable[[], T]], T]]:
    """Runs a function in a new thread, which has no context; the machine has two devices."""
    monkeypatch.setenv("FAKECUDA_DEVICES", "3")
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result()


def test_a_kernel_in_a_thread_of_another_context_is_refused(
    cuda: Cuda, own: Kernels, elsewhere: Callable[[Callable[[], T]], T]
) -> None:
    array = cuda.allocate(400)

    def launch() -> int:
        return own.scale(array, 1, 1)

    assert elsewhere(launch) == INVALID_CONTEXT  # none
    elsewhere(lambda: cuda.call("cudaSetDevice", 2))
    assert elsewhere(launch) == CONTEXT_IS_DESTROYED  # not yet made
    elsewhere(lambda: cuda.call("cudaFree", None))
    assert elsewhere(launch) == INVALID_CONTEXT  # another's
    elsewhere(lambda: cuda.call("cudaSetDevice", 0))
    assert elsewhere(launch) == 0


def test_streams_and_handles_stay_on_their_device(
    cuda: Cuda, own: Kernels, elsewhere: Callable[[Callable[[], T]], T]
) -> None:
    other = c_void_p()
    elsewhere(lambda: cuda.call("cudaSetDevice", 1))
    elsewhere(lambda: cuda.call("cudaStreamCreateWithFlags", byref(other), 1))
    arguments = (cuda.allocate(400), c_int(1), c_float(1))
    assert own.launch("scale", other, *arguments) == INVALID_HANDLE
    assert (
        cuda.status("cudaMemsetAsync", cuda.scratch, 0, c_size_t(8), other)
        == INVALID_HANDLE
    )
    event = c_void_p()
    cuda.call("cudaEventCreateWithFlags", byref(event), 0)
    assert cuda.status("cudaEventRecord", event, other) == INVALID_HANDLE
    # CUDNN_STATUS_MAPPING_ERROR
    assert cuda.status("cudnnSetStream", cuda.cudnn, other) == 7
    layer = half_layer(cuda)
    target = cuda.allocate(1 << 12)
    # CUDNN_STATUS_EXECUTION_FAILED
    assert elsewhere(lambda: layer.run("Forward", target)) == 8
    assert (
        "a handle of device 0 in a thread whose device is 1" in cuda.report().errors[-1]
    )


# --- graphs ---

CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
ILLEGAL_ADDRESS = 700


class Graph:
    """What a function asks of the stream, captured."""

    def __init__(self, cuda: Cuda, asks: Callable[[], int]) -> None:
        self.cuda = cuda
        graph = c_void_p()
        self.executable = c_void_p()
        cuda.call("cudaStreamBeginCapture", cuda.stream, THREAD_LOCAL)
        status = c_int()
        cuda.call("cudaStreamIsCapturing", cuda.stream, byref(status))
        assert status.value == 1
        self.answer = asks()
        self.ended = cuda.status("cudaStreamEndCapture", cuda.stream, byref(graph))
        if self.ended == 0:
            cuda.call(
                "cudaGraphInstantiate", byref(self.executable), graph, None, None, 0
            )
            cuda.call("cudaGraphDestroy", graph)

    def launch(self) -> int:
        return self.cuda.status("cudaGraphLaunch", self.executable, self.cuda.stream)


def test_a_graph_runs_its_calls_again_on_what_memory_holds_then(
    cuda: Cuda, own: Kernels
) -> None:
    layer = half_layer(cuda)
    target = cuda.tensor(layer.dy.shape, "float16", "NHWC")
    factor = cuda.put(np.full(1, 3, "float32"))
    told: list[int] = []
    host_function = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: told.append(1))

    def asks() -> int:
        cuda.call(
            "cudaMemsetAsync", target.place, 0, c_size_t(layer.dy.size * 2), cuda.stream
        )
        cuda.call(
            "cudaLaunchHostFunc",
            cuda.stream,
            host_function,
            None,
        )
        return own.scale(factor, 1, 2) + layer.run_in(target.place, beta=1)

    layer.prepare("Forward")
    before = cuda.report().counts
    graph = Graph(cuda, asks)
    assert (graph.answer, graph.ended, told) == (0, 0, [])
    captured = cuda.report().counts
    for name in ("launches", "cudnn calls", "tensor bytes", "kernels"):
        assert captured.get(name, 0) == before.get(name, 0)  # nothing ran
    for turn in (1, 2):
        x = draw(layer.x.shape, "float16")
        fresh = cuda.tensor_of(x, "float16", "NHWC")
        size = c_size_t(x.size * 2)
        to_device = 3
        place = layer.on_device[0].place
        cuda.call(
            "cudaMemcpyAsync",
            place,
            fresh.place,
            size,
            to_device,
            cuda.stream,
        )
        assert graph.launch() == 0
        assert_close(target.read(), layer.case.forward(x, layer.weights), "float16")
        assert cuda.get(factor, (1,), "float32").tolist() == [3 * 2**turn]
        assert told == [1] * turn
    after = cuda.report().counts
    # beta reads the output
    moved = 2 * (layer.x.size + layer.weights.size + 2 * layer.dy.size)
    assert after["launches"] - before.get("launches", 0) == 2
    assert after["graph launches"] - before.get("graph launches", 0) == 2
    assert after["kernels"] - before["kernels"] == 2
    assert after["cudnn calls"] == before["cudnn calls"]
    assert after["tensor bytes"] - before["tensor bytes"] == 2 * moved
    assert after.get("layout conversions") == before.get("layout conversions")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cudaMalloc", lambda _: (byref(c_void_p()), c_size_t(8))),
        ("cudaStreamSynchronize", lambda cuda: (cuda.stream,)),
        ("cudaDeviceSynchronize", lambda _: ()),
        ("cudaMemsetAsync", lambda cuda: (cuda.scratch, 0, c_size_t(8), None)),
    ],
)
def test_what_a_capture_does_not_allow_spoils_it(
    name: str, arguments: Callable[[Cuda], tuple[Any, ...]], cuda: Cuda
) -> None:
    graph = Graph(cuda, lambda: cuda.status(name, *arguments(cuda)))
    implicit = 906
    assert graph.answer == (
        implicit if name == "cudaMemsetAsync" else CAPTURE_UNSUPPORTED
    )
    assert graph.ended == CAPTURE_INVALIDATED
    cuda.call("cudaStreamSynchronize", cuda.stream)  # the stream is as before


def test_another_thread_may_take_memory_during_a_capture(
    cuda: Cuda, elsewhere: Callable[[Callable[[], T]], T]
) -> None:
    graph = Graph(cuda, lambda: elsewhere(lambda: cuda.allocate(8)) is None)
    assert graph.ended == 0


def test_another_thread_may_not_wait_for_a_captured_stream(
    cuda: Cuda, elsewhere: Callable[[Callable[[], T]], T]
) -> None:
    def wait() -> int:
        return cuda.status("cudaStreamSynchronize", cuda.stream)

    graph = Graph(cuda, lambda: elsewhere(wait))
    assert (graph.answer, graph.ended) == (CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED)


def test_a_graph_whose_memory_was_given_back_is_refused(cuda: Cuda) -> None:
    place = cuda.allocate(64)
    size = c_size_t(64)
    graph = Graph(
        cuda, lambda: cuda.status("cudaMemsetAsync", place, 0, size, cuda.stream)
    )
    assert graph.launch() == 0
    cuda.call("cudaFree", place)
    assert graph.launch() == ILLEGAL_ADDRESS


def test_a_driver_that_has_no_graphs_says_so(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_GRAPHS", "0")
    errors = cuda.report().errors
    assert (
        cuda.status("cudaStreamBeginCapture", cuda.stream, THREAD_LOCAL)
        == CAPTURE_UNSUPPORTED
    )
    assert cuda.report().errors == errors  # nobody's fault


# --- counts ---


def counted(cuda: Cuda, asks: Callable[[], object]) -> dict[str, int]:
    before = cuda.report().counts
    asks()
    after = cuda.report().counts
    return {
        name: n - before.get(name, 0)
        for name, n in after.items()
        if n != before.get(name, 0)
    }


def test_bytes_of_batch_norms_are_those_of_kernels_that_read_once(cuda: Cuda) -> None:
    norm = BatchNorm(cuda, Normalization(2, "float16", "NHWC"))
    tensor_bytes = 2 * norm.x.size
    mask_bytes = -(-norm.x.size // 8)
    name = "tensor bytes cudnnBatchNormalization{}Ex".format
    there = counted(cuda, norm.forward)
    assert there[name("ForwardTraining")] == 3 * tensor_bytes + mask_bytes
    assert there["cudnn calls"] == 1
    back = counted(cuda, norm.backward)
    assert (
        back[name("Backward")] == back["tensor bytes"] == 4 * tensor_bytes + mask_bytes
    )


@pytest.mark.parametrize(
    ("layout", "capability", "conversions"),
    [("NCHW", "7.0", 2), ("NHWC", "7.0", 0), ("NCHW", "6.0", 0)],
)
def test_tensors_that_cudnn_turns_for_its_tensor_cores_are_counted(
    layout: str,
    capability: str,
    conversions: int,
    cuda: Cuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_CAPABILITY", capability)
    layer = Layer(cuda, HALF_CONVOLUTION, "float16", layout)
    layer.prepare("BackwardData")
    there = counted(cuda, lambda: layer.run_in(layer.on_device[0].place))
    assert there.get("layout conversions", 0) == conversions
    moved = 2 * 2 * (layer.x.size + layer.dy.size) if conversions else 0
    assert there.get("tensor bytes conversion", 0) == moved
    plain = 2 * (layer.x.size + layer.dy.size + layer.weights.size)
    assert there["tensor bytes cudnnConvolutionBackwardData"] == plain
    assert there["tensor bytes"] == plain + moved


def test_host_waits(cuda: Cuda) -> None:
    event = c_void_p()
    cuda.call("cudaEventCreateWithFlags", byref(event), 0)

    def wait() -> None:
        cuda.call("cudaEventRecord", event, cuda.stream)
        cuda.call("cudaEventSynchronize", event)
        cuda.call("cudaStreamSynchronize", cuda.stream)
        cuda.call("cudaDeviceSynchronize")

    assert counted(cuda, wait)["host waits"] == 3


NOT_COMPUTED = """
import numpy as np, sys
from tests.gpu.test_fake import Case, Layer
from tests.gpu.cuda import Cuda
cuda = Cuda(sys.argv[1])
layer = Layer(cuda, Case(8, 6, 8, kernel=1), "float16", "NHWC")
target = cuda.tensor(layer.dy.shape, "float16", "NHWC")
assert layer.run("Forward", target.place) == 0
assert not target.read().any()  # as memory was taken: zeros
assert layer.run("Forward", cuda.allocate(100)) == 3
assert cuda.report().counts["tensor bytes"] > 0
"""


def test_without_computing_calls_are_checked_and_counted(
    fake: Path, root: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOT_COMPUTED, str(fake / "libcuda.so.1")],
        env=os.environ | {"FAKECUDA_COMPUTE": "0"},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
