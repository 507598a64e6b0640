"""Operators of MXNet that need no kernel of its own, against NumPy: what cuDNN and cuBLAS do.

Which of them do, only the GPU can tell. Arrays come and go by copies alone. Loading this loads no
MXNet, which cannot be had without a driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device import REHEARSE, Failed, Found

DTYPES, LAYOUTS = ("float32", "float16"), ("NCHW", "NHWC")


def put(array: NDArray[Any]) -> Any:
    """An array on the device by a copy alone, no kernel."""
    import mxnet as mx

    context = mx.cpu() if REHEARSE else mx.gpu(0)
    placed = mx.nd.empty(array.shape, context, dtype=array.dtype)
    placed._sync_copyfrom(np.ascontiguousarray(array))
    return placed


def near(name: str, found: Any, expected: NDArray[Any], dtype: str) -> Found:
    """The largest difference, as a share of the largest value; TF32 may serve as float32."""
    values = found.asnumpy().astype(np.float64)
    share = float(np.abs(values - expected).max() / np.abs(expected).max())
    limit = 0.01 if dtype == "float16" else 0.003
    if not share <= limit:
        raise Failed(
            f"{name}: at most {limit} of the largest value off expected, found {share:.2g}"
        )
    return {name: f"{share:.2g}"}


def convolve(x: NDArray[Any], w: NDArray[Any]) -> NDArray[Any]:
    """3 x 3, stride 1, padded by 1; NCHW and OIHW."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    shifts = [
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + height, j : j + width], w[:, :, i, j])
        for i in range(3)
        for j in range(3)
    ]
    return np.sum(shifts, axis=0)


def convolution(dtype: str, layout: str, backward: bool) -> Found:
    """cuDNN's convolution, forward or with both gradients, against NumPy."""
    import mxnet as mx

    rng = np.random.default_rng(5)
    shapes = (8, 16, 14, 14), (32, 16, 3, 3), (8, 32, 14, 14)
    x, w, g = (rng.normal(size=shape).astype(dtype).astype(np.float64) for shape in shapes)
    expected = convolve(x, w)

    def turn(array: NDArray[Any]) -> NDArray[Any]:
        return array.transpose(0, 2, 3, 1) if layout == "NHWC" else array

    data, weight, out_grad = (put(turn(array).astype(dtype)) for array in (x, w, g))
    data_grad, weight_grad = (put(np.zeros(array.shape, dtype)) for array in (data, weight))
    mx.autograd.mark_variables([data, weight], [data_grad, weight_grad])
    with mx.autograd.record() if backward else contextlib.nullcontext():
        out = mx.nd.Convolution(
            data, weight, kernel=(3, 3), pad=(1, 1), num_filter=32, no_bias=True, layout=layout
        )
    found = near("forward", out, turn(expected), dtype)
    if backward:
        out.backward(out_grad)
        flipped = w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
        found |= near("data gradient", data_grad, turn(convolve(g, flipped)), dtype)
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        of_weight = np.empty(w.shape)
        for i, j in np.ndindex(3, 3):
            of_weight[:, :, i, j] = np.einsum(
                "nohw,nchw->oc", g, padded[:, :, i : i + 14, j : j + 14]
            )
        found |= near("weight gradient", weight_grad, turn(of_weight), dtype)
    return found


def copy_back() -> Found:
    """To the device and back: no kernel at all."""
    values = np.random.default_rng(5).normal(size=(1000, 1000)).astype("float32")
    if not np.array_equal(put(values).asnumpy(), values):
        raise Failed("the values that were copied expected, found others")
    return {}


def elementwise() -> Found:
    """MXNet's own kernel: on a GPU that it has no code for this must say so."""
    values = np.arange(12, dtype="float32")
    return near("sum", put(values) + 1, values + 1, "float32")


def pooling(dtype: str, layout: str) -> Found:
    import mxnet as mx

    x = np.random.default_rng(5).normal(size=(4, 8, 12, 12)).astype(dtype)
    expected = x.reshape(4, 8, 6, 2, 6, 2).max(axis=(3, 5))
    if layout == "NHWC":
        x, expected = x.transpose(0, 2, 3, 1), expected.transpose(0, 2, 3, 1)
    out = mx.nd.Pooling(put(x), kernel=(2, 2), stride=(2, 2), pool_type="max", layout=layout)
    return near("max", out, expected.astype(np.float64), dtype)


def batch_norm(dtype: str) -> Found:
    import mxnet as mx

    x = np.random.default_rng(5).normal(2, 3, size=(16, 8, 12, 12)).astype(dtype)
    zeros, ones = np.zeros(8, "float32"), np.ones(8, "float32")
    state = [put(array) for array in (ones, zeros, zeros, ones)]
    with mx.autograd.train_mode():
        out = mx.nd.BatchNorm(put(x), *state, fix_gamma=False, eps=1e-5)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=(0, 2, 3), keepdims=True)
    expected = centred / np.sqrt(wide.var(axis=(0, 2, 3), keepdims=True) + 1e-5)
    return near("normalised", out, expected, dtype)


def relu(dtype: str) -> Found:
    import mxnet as mx

    x = np.random.default_rng(5).normal(size=(4, 8, 12, 12)).astype(dtype)
    out = mx.nd.Activation(put(x), act_type="relu")
    return near("relu", out, np.maximum(x, 0).astype(np.float64), dtype)


def fully_connected(dtype: str) -> Found:
    """cuBLAS."""
    import mxnet as mx

    rng = np.random.default_rng(5)
    x, w = (rng.normal(size=shape).astype(dtype) for shape in ((32, 256), (64, 256)))
    out = mx.nd.FullyConnected(put(x), put(w), num_hidden=64, no_bias=True)
    return near("product", out, x.astype(np.float64) @ w.astype(np.float64).T, dtype)


OPERATORS: dict[str, Callable[[], Found]] = {
    "copy": copy_back,
    "elementwise": elementwise,
    **{
        f"conv{'_backward' * backward}-{dtype}-{layout}": partial(
            convolution, dtype, layout, backward
        )
        for backward in (False, True)
        for dtype in DTYPES
        for layout in LAYOUTS
    },
    **{f"pooling-float16-{layout}": partial(pooling, "float16", layout) for layout in LAYOUTS},
    **{f"batch_norm-{dtype}": partial(batch_norm, dtype) for dtype in DTYPES},
    **{f"fully_connected-{dtype}": partial(fully_connected, dtype) for dtype in DTYPES},
    "relu-float16": partial(relu, "float16"),
}
