"""CUDA by ctypes, in the test's process: the fake's arrays, calls and report; the real NVRTC."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_size_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FLOAT = 0
HALF = 2
TYPES = {"float32": FLOAT, "float16": HALF}
FORMATS = {"NCHW": 0, "NHWC": 1}
TO_DEVICE = 1
TO_HOST = 2
TENSOR_OP_MATH = 1
CROSS_CORRELATION = 1
RELU = 1
NOT_SUPPORTED = 9
"""cuDNN's status."""
THREAD_LOCAL = 1
"""A mode of capture."""


class Report(NamedTuple):
    counts: dict[str, int]
    errors: list[str]


class Cuda:
    """A process's device 0, a stream and a handle of cuDNN on it."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.fakecuda_report.restype = ctypes.c_char_p
        self.stream = c_void_p()
        self.cudnn = c_void_p()
        self.call("cudaSetDevice", 0)
        self.call("cudaStreamCreateWithFlags", byref(self.stream), 1)
        self.call("cudnnCreate", byref(self.cudnn))
        self.call("cudnnSetStream", self.cudnn, self.stream)
        self.scratch = self.allocate(64)

    def status(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        status = self.status(name, *arguments)
        assert status == 0, (name, status, self.report().errors[-3:])

    def report(self) -> Report:
        report = json.loads(self.library.fakecuda_report())
        return Report(report["counts"], report["errors"])

    def made(self, kind: str) -> c_void_p:
        descriptor = c_void_p()
        self.call(f"cudnnCreate{kind}Descriptor", byref(descriptor))
        return descriptor

    def allocate(self, size_bytes: int) -> c_void_p:
        address = c_void_p()
        self.call("cudaMalloc", byref(address), c_size_t(size_bytes))
        return address

    def put(self, array: np.ndarray) -> c_void_p:
        """A copy of `array` as it lies."""
        address = self.allocate(array.nbytes)
        source = np.ascontiguousarray(array)
        self.copy(address, source.ctypes, array.nbytes, TO_DEVICE)
        return address

    def get(self, address: c_void_p, shape: Sequence[int], dtype: str) -> np.ndarray:
        self.call("cudaStreamSynchronize", self.stream)
        array = np.empty(shape, dtype)
        self.copy(array.ctypes, address, array.nbytes, TO_HOST)
        return array

    def copy(self, target: Any, source: Any, size_bytes: int, direction: int) -> None:
        self.call("cudaMemcpy", target, source, c_size_t(size_bytes), direction)

    def tensor(self, shape: tuple[int, ...], dtype: str, layout: str) -> Tensor:
        """Not yet written."""
        size_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return Tensor(self, self.allocate(size_bytes), shape, dtype, layout)

    def tensor_of(self, values: np.ndarray, dtype: str, layout: str) -> Tensor:
        stored = values.astype(dtype)
        if layout == "NHWC":
            stored = np.moveaxis(stored, 1, -1)
        return Tensor(self, self.put(stored), values.shape, dtype, layout)

    def convolution(self, stride: int, pad: int) -> c_void_p:
        descriptor = self.made("Convolution")
        sides = (pad, pad, stride, stride, 1, 1)
        name = "cudnnSetConvolution2dDescriptor"
        self.call(name, descriptor, *sides, CROSS_CORRELATION, FLOAT)
        self.call("cudnnSetConvolutionMathType", descriptor, TENSOR_OP_MATH)
        return descriptor

    def relu(self) -> c_void_p:
        descriptor = self.made("Activation")
        name = "cudnnSetActivationDescriptor"
        self.call(name, descriptor, RELU, 0, c_double(0))
        return descriptor


class Tensor:
    """A tensor on the device: `shape` and what is read are N, C, H, W in either layout."""

    def __init__(
        self,
        cuda: Cuda,
        address: c_void_p,
        shape: tuple[int, ...],
        dtype: str,
        layout: str,
    ) -> None:
        self.cuda = cuda
        self.place = address
        self.shape = shape
        self.dtype = dtype
        self.layout = layout
        self.descriptor = cuda.made("Tensor")
        arguments = (FORMATS[layout], TYPES[dtype], *shape)
        cuda.call("cudnnSetTensor4dDescriptor", self.descriptor, *arguments)

    def filter_descriptor(self) -> c_void_p:
        """The same memory as a filter: K, C, R, S."""
        descriptor = self.cuda.made("Filter")
        arguments = (TYPES[self.dtype], FORMATS[self.layout], *self.shape)
        self.cuda.call("cudnnSetFilter4dDescriptor", descriptor, *arguments)
        return descriptor

    @property
    def both(self) -> tuple[c_void_p, c_void_p]:
        """Descriptor and place, as most calls take them."""
        return self.descriptor, self.place

    def read(self) -> np.ndarray:
        n, c, h, w = self.shape
        if self.layout == "NCHW":
            return self.cuda.get(self.place, self.shape, self.dtype).astype(np.float64)
        stored = self.cuda.get(self.place, (n, h, w, c), self.dtype)
        return np.moveaxis(stored, -1, 1).astype(np.float64)


def one(value: float) -> Any:
    """A factor, as cuDNN reads it."""
    return byref(c_float(value))


def compile_ptx(site: Path, source: str, capability: tuple[int, int]) -> bytes:
    """What NVRTC of the packages in `site` makes of a CUDA text."""
    folder = site / "nvidia" / "cuda_nvrtc" / "lib"
    nvrtc = ctypes.CDLL(str(folder / "libnvrtc.so.11.2"))
    program = c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        byref(program), source.encode(), b"device.cu", 0, None, None
    )
    assert created == 0
    options = (ctypes.c_char_p * 1)(
        "--gpu-architecture=compute_{}{}".format(*capability).encode()
    )
    assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0
    size = c_size_t()
    assert nvrtc.nvrtcGetPTXSize(program, byref(size)) == 0
    ptx = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetPTX(program, ptx) == 0
    return ptx.value
