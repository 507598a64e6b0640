"""The kernels of device.cu on a CPU, with threads as a GPU has them (emulated.h)."""

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from rn50.train.gpu.calls import WORDS, Call, address_of
from rn50.train.gpu.module import SOURCE, THREADS, WITH_NORMS, CudaModule, parameters
from rn50.train.gpu.plan_operators import PlanOperators
from rn50.train.operators import Operators

CPU = Operators(mx.cpu())
"""MXNet's operators."""
HEADER = Path(__file__).with_name("emulated.h")
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_DTYPES = {
    "half_t": np.float16,
    "float": np.float32,
    "int": np.int32,
    "long long": np.int64,
    "unsigned char": np.uint8,
}


def wrapper(source: Path = SOURCE) -> str:
    """C++ that has the kernels: run_NAME, and how many parameters it has."""
    code = f'#define EMULATED\n{WITH_NORMS}#include "{HEADER}"\n#include "{source}"\n'
    for name, named in parameters(source.read_text()).items():
        code += (
            f'extern "C" {{ extern const int parameters_{name} = {len(named)}; }}\n'
            f'extern "C" void run_{name}(int blocks, int threads, void** arguments) '
            f"{{ emulate({name}, blocks, threads, arguments); }}\n"
        )
    return code


def compile_text(code: str, target: Path, *options: str) -> None:
    source = target.with_suffix(".cc")
    source.write_text(code)
    command = ["g++", "-std=c++20", "-O1", "-pthread", "-Wall", "-Werror", *options]
    subprocess.run([*command, str(source), "-o", str(target)], check=True)


def build() -> Path:
    """The text of the kernels, compiled by g++ once."""
    code = wrapper()
    all_code = code + SOURCE.read_text() + HEADER.read_text()
    digest = hashlib.sha256(all_code.encode()).hexdigest()
    built = Path(tempfile.gettempdir()) / f"rn50_emulated_{digest[:16]}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            target = Path(folder) / "kernels.so"
            # An access that a GPU refuses for its alignment ends the process.
            alignment = ("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
            compile_text(code, target, "-fPIC", "-shared", *alignment)
            target.replace(built)
    return built


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(build()))


class EmulatedDevice:
    """Makes the calls that step.c makes, on the CPU. Waits for their arrays and for their end."""

    def check(self) -> None:
        """A kernel that fails here ends the process."""

    def push(self, _: str, parameter: ctypes.Structure, *_arrays: object) -> None:
        mx.nd.waitall()
        if isinstance(parameter, Call):
            _make(parameter)
            return
        table = parameter.table.contents
        size = ctypes.sizeof(parameter.settings)
        ctypes.memmove(table.settings, parameter.settings, size)
        for number in range(table.count):
            _make(table.calls[number])


def _make(call: Call) -> None:
    first = ctypes.addressof(call) + Call.words.offset
    end = first + ctypes.sizeof(call.words)
    addresses = range(first, end, ctypes.sizeof(ctypes.c_uint64))
    _KERNEL(call.function)(call.blocks, THREADS, (ctypes.c_void_p * WORDS)(*addresses))


class EmulatedModule(CudaModule):
    """The kernels on the CPU."""

    device: Any = EmulatedDevice()

    def __init__(self) -> None:
        self._parameters = parameters(SOURCE.read_text())

    def call(self, name: str, blocks: int, arguments: Sequence[Any]) -> Call:
        mx.nd.waitall()  # the arrays have their memory then
        for parameter, value in zip(self._parameters[name], arguments, strict=True):
            if isinstance(value, mx.nd.NDArray):
                dtype, _, _ = parameter.removeprefix("const ").partition("*")
                assert value.dtype == _DTYPES[dtype], (parameter, value.dtype)
        return super().call(name, blocks, arguments)

    def _function(self, name: str) -> int:
        return address_of(library()[f"run_{name}"])


def operators() -> PlanOperators:
    """Our own operators, on the CPU."""
    return PlanOperators(mx.cpu(), EmulatedModule())
