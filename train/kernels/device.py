"""The CUDA kernels of device.cu: compiled by NVRTC for the GPU that is there, launched through
MXNet's engine, which orders them by the arrays that they read and write."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import mxnet as mx
import numpy as np
from mxnet import nd

SOURCE = Path(__file__).with_name("device.cu")
THREADS = 256
"""Of a block. A power of two: sums over a block halve it."""
LARGEST_GRID = 4096
"""Blocks of a kernel that walks over an array."""
_TYPES = {"half_t": "__half", "long long": "int64_t", "float": "float", "int": "int"}
_DTYPES = {np.dtype("float16"): "__half", np.dtype("int64"): "int64_t"}

Launch = Callable[..., None]
"""launch(blocks, *arguments): arrays and numbers in the order of the kernel's parameters."""


class Module(Protocol):
    """The kernels of device.cu on one device."""

    def kernel(
        self, name: str, reads: Sequence[nd.NDArray] = (), writes: Sequence[nd.NDArray] = ()
    ) -> Launch:
        """What enqueues a kernel. `reads`, `writes`: arrays that it finds through addresses in a
        table, beside those among its arguments."""
        ...


def parameters(source: str) -> dict[str, list[str]]:
    """Kernel -> its parameters, as `const half_t* logits`."""
    found = re.findall(r"^KERNEL (\w+)\(([^)]*)\)", source, re.M)
    return {name: " ".join(text.split()).split(", ") for name, text in found}


def _rtc_parameter(text: str) -> str:
    """A parameter as `mx.rtc` has it: `const __half *`."""
    const, kind, star = re.fullmatch(r"(const )?([\w ]+?)(\*)? \w+", text).groups("")  # type: ignore[union-attr]
    return f"{const}{_TYPES[kind]} {star}".strip()


class CudaModule:
    """The kernels compiled for the GPU `ctx` of a compute capability such as (9, 0)."""

    def __init__(self, ctx: mx.Context, capability: tuple[int, int]) -> None:
        source = SOURCE.read_text()
        self._ctx = ctx
        self._parameters = parameters(source)
        architecture = "--gpu-architecture=compute_{}{}".format(*capability)
        self._module = mx.rtc.CudaModule(source, options=(architecture,))

    def kernel(
        self, name: str, reads: Sequence[nd.NDArray] = (), writes: Sequence[nd.NDArray] = ()
    ) -> Launch:
        # CUDA passes a kernel as many arguments as it has parameters; those behind them are for
        # the engine alone.
        words = [_rtc_parameter(text) for text in self._parameters[name]]
        for arrays, const in ((reads, "const "), (writes, "")):
            words += [f"{const}{_DTYPES.get(np.dtype(a.dtype), 'float')} *" for a in arrays]
        kernel = self._module.get_kernel(name, ", ".join(words))

        def launch(blocks: int, *arguments: object) -> None:
            kernel.launch([*arguments, *reads, *writes], self._ctx, (blocks, 1, 1), (THREADS, 1, 1))

        return launch


def blocks_for(size: int) -> int:
    """Blocks of a kernel that walks over `size` elements."""
    return min(LARGEST_GRID, -(-size // THREADS))
