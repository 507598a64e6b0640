"""The CUDA kernels of device.cu: compiled by NVRTC for the GPU that is there."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from mxnet import nd

from ...host.errors import UserError
from .calls import Call, Device, checked, cuda, data_address, float_bits

SOURCE = Path(__file__).with_name("device.cu")
TRAINED_NORMS = "#ifdef TRAINED_NORMS"
"""The line before the kernels of steps with norms of ours. NVRTC takes 3 s for them."""
WITH_NORMS = "#define TRAINED_NORMS\n"
THREADS = 256
"""The threads of a block (step.c). A power of two: sums over a block halve it."""
_C_TYPES = {"half": "half_t", "float": "float"}
"""The type T of a TYPED_KERNEL, by the end of the kernel's name."""
_NO_COMPILER = 221  # CUDA_ERROR_JIT_COMPILER_NOT_FOUND
LARGEST_GRID = 4096
"""The most blocks of a kernel that walks over an array."""


def parameters(source: str) -> dict[str, list[str]]:
    """The parameters of each kernel, as `const half_t* logits`."""
    kernels = {}
    for name, listed in re.findall(r"^KERNEL (\w+)\(([^)]*)\)", source, re.M):
        kernels[name] = re.split(r",\s+", listed)
    typed = re.findall(r"^TYPED_KERNEL\((\w+), \(([^)]*)\)", source, re.M)
    for name, listed in typed:
        for suffix, c_type in _C_TYPES.items():
            of_type = re.sub(r"\bT\b", c_type, listed)
            kernels[f"{name}_{suffix}"] = re.split(r",\s+", of_type)
    return kernels


class CudaModule:
    """The kernels compiled for a GPU of a compute capability such as (9, 0)."""

    def __init__(self, device: Device, capability: tuple[int, int]) -> None:
        self._source = SOURCE.read_text()
        self.device = device
        self.capability = capability
        self._parameters = parameters(self._source)
        _, _, of_norms = self._source.partition(TRAINED_NORMS)
        self._trained_norms = parameters(of_norms)
        self._functions: dict[str, int] = {}
        self._module = self._load("")

    @cached_property
    def _norms(self) -> ctypes.c_void_p:
        """All kernels once more, with those of TRAINED_NORMS, from the first that is asked for."""
        return self._load(WITH_NORMS)

    def _load(self, defines: str) -> ctypes.c_void_p:
        major, minor = self.capability
        architecture = f"--gpu-architecture=compute_{major}{minor}"
        module = ctypes.c_void_p()
        status = cuda().cuModuleLoadData(
            ctypes.byref(module), compiled(defines + self._source, architecture)
        )
        if status == _NO_COMPILER:
            raise UserError(
                "the NVIDIA driver: its compiler (libnvidia-ptxjitcompiler.so) expected, found "
                "none; a container gets it by NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            )
        checked("cuModuleLoadData", status)
        return module

    def call(self, name: str, blocks: int, arguments: Sequence[Any]) -> Call:
        """The launch of a kernel as an entry of a table. `arguments`: in the order of its
        parameters; arrays, addresses or numbers."""
        parameters = self._parameters[name]
        argument_words = [
            _word(parameter, value)
            for parameter, value in zip(parameters, arguments, strict=True)
        ]
        # A kernel gets the address of each word: what is narrower lies in its lower bytes.
        call = Call(function=self._function(name), blocks=blocks)
        call.words[: len(argument_words)] = argument_words
        return call

    def launch(self, name: str, blocks: int, *arguments: Any) -> None:
        """Enqueue a kernel that finds all its arrays among its arguments."""
        reads = []
        writes = []
        for parameter, value in zip(self._parameters[name], arguments, strict=True):
            if not isinstance(value, nd.NDArray):
                continue
            # by which MXNet's engine knows what has to wait for what
            if parameter.startswith("const "):
                reads.append(value)
            else:
                writes.append(value)
        self.device.push(
            "rn50_launch", self.call(name, blocks, arguments), reads, writes
        )

    def _function(self, name: str) -> int:
        if name not in self._functions:
            module = self._norms if name in self._trained_norms else self._module
            function = ctypes.c_void_p()
            status = cuda().cuModuleGetFunction(
                ctypes.byref(function), module, name.encode()
            )
            checked(f"kernel {name}", status)
            self._functions[name] = function.value or 0
        return self._functions[name]


def compiled(source: str, architecture: str) -> bytes:
    """The PTX of CUDA's text. Raises UserError: NVRTC does not take it."""
    nvrtc = cuda()
    program = ctypes.c_void_p()
    size = ctypes.c_size_t()
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.encode(), SOURCE.name.encode(), 0, None, None
    )
    checked("nvrtcCreateProgram", status)
    options = (ctypes.c_char_p * 1)(architecture.encode())
    if nvrtc.nvrtcCompileProgram(program, 1, options):
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        line, _, _ = log.value.decode(errors="replace").strip().partition("\n")
        raise UserError(f"{SOURCE.name}: NVRTC failed: {line}")
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx.raw


def blocks_for(size: int) -> int:
    """Blocks of a kernel that walks over `size` elements."""
    return min(LARGEST_GRID, -(-size // THREADS))


def type_name(dtype: Any) -> str:
    """The end of the name of a kernel that is there for several types."""
    return "half" if np.dtype(dtype) == np.float16 else "float"


def _word(parameter: str, value: Any) -> int:
    if "*" in parameter:
        is_array = value is None or isinstance(value, nd.NDArray)
        return data_address(value) if is_array else int(value)
    if parameter.startswith("float "):
        return float_bits(value)
    return int(value) & 0xFFFFFFFFFFFFFFFF  # of a negative number its two's complement
