"""The fake computes what cuDNN and cuBLAS would, against NumPy, and refuses what they refuse.

Streams are lazy here: numbers are there when something has waited for them.
"""

from __future__ import annotations

from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.gpu.cuda import Cuda, Tensor, one

RNG = np.random.default_rng(0)
TOLERANCE = {"float32": 2e-6, "float16": 1.5e-3}
"""Of a result, relative to its largest value: what rounding to the type leaves."""


@pytest.fixture(scope="module")
def cuda(fake: Path) -> Cuda:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKECUDA_LAZY", "1")
        return Cuda(fake / "libcuda.so.1")


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
        return [(i, j, x[:, :, h : h + end : step, w : w + end : step]) for i, j, h, w in places]

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
        return sum(np.einsum("nchw,kc->nkhw", part, wide[:, :, i, j]) for i, j, part in windows)

    def to_data(self, dy: np.ndarray, weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
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
        return np.stack([of[first : first + width] for of, first in zip(wide, firsts, strict=True)])


IMPLICIT = {"Forward": 1, "BackwardData": 1, "BackwardFilter": 1}


class Layer:
    """A convolution's tensors on the device."""

    def __init__(self, cuda: Cuda, case: Case, dtype: str, layout: str, batch: int = 2) -> None:
        self.cuda = cuda
        self.case = case
        self.dtype = dtype
        side = case.out_side
        weight_shape = (case.filters, case.channels // case.groups, case.kernel, case.kernel)
        self.x = draw((batch, case.channels, case.side, case.side), dtype)
        self.weights = draw(weight_shape, dtype)
        self.dy = draw((batch, case.filters, side, side), dtype)
        self.on_device = [cuda.tensor_of(t, dtype, layout) for t in (self.x, self.weights, self.dy)]
        self.filter = self.on_device[1].filter_descriptor()
        self.convolution = cuda.convolution(case.stride, case.pad, case.dilation, case.groups)

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
        first, second, result = (descriptor for descriptor, _ in self.operands(direction))
        name = f"cudnnGetConvolution{direction}WorkspaceSize"
        arguments = (first, second, self.convolution, result, algorithm, byref(found))
        self.cuda.call(name, self.cuda.cudnn, *arguments)
        return found.value

    def run(
        self,
        direction: str,
        target: c_void_p,
        alpha: float = 1,
        beta: float = 0,
        algorithm: int = 1,
        space_bytes: int | None = None,
    ) -> int:
        """cuDNN's answer to the convolution into `target`."""
        needed = self.workspace(direction, 1) if space_bytes is None else space_bytes
        space = self.cuda.allocate(needed)
        first, second, (result, _) = self.operands(direction)
        arguments = (one(alpha), *first, *second, self.convolution, algorithm, space)
        name = f"cudnnConvolution{direction}"
        end = (c_size_t(needed), one(beta), result, target)
        return self.cuda.status(name, self.cuda.cudnn, *arguments, *end)

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
def test_convolutions(case: Case, dtype: str, layout: str, direction: str, cuda: Cuda) -> None:
    layer = Layer(cuda, case, dtype, layout)
    expected = layer.expected(direction)
    target = cuda.tensor(expected.shape, dtype, layout)  # what is there is no number
    assert layer.run(direction, target.place) == 0
    assert_close(target.read(), expected, dtype)
    before = target.read()
    assert layer.run(direction, target.place, alpha=-2, beta=1) == 0
    assert_close(target.read(), before - 2 * expected, dtype)
