"""The kernels of device.cu on a CPU, with threads as a GPU has them (emulated.h)."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from rn50.train.gpu.calls import data_address
from rn50.train.gpu.module import SOURCE, CudaModule, Launch, parameters
from rn50.train.gpu.plan_operators import PlanOperators

HEADER = Path(__file__).with_name("emulated.h")
THREADS = 64
_NUMBERS = {"int": ctypes.c_int, "float": ctypes.c_float}
_DTYPES = {
    "half_t": np.float16,
    "float": np.float32,
    "int": np.int32,
    "long long": np.int64,
    "unsigned char": np.uint8,
}


def wrapper(source: Path = SOURCE) -> str:
    """C++ that has the kernels: run_NAME, and how many parameters it has."""
    text = f'#define EMULATED\n#include "{HEADER}"\n#include "{source}"\n'
    for name, named in parameters(source.read_text()).items():
        text += (
            f'extern "C" {{ extern const int parameters_{name} = {len(named)}; }}\n'
            f'extern "C" void run_{name}(int blocks, int threads, void** arguments) '
            f"{{ emulate({name}, blocks, threads, arguments); }}\n"
        )
    return text


def compile_text(text: str, made: Path, *options: str) -> None:
    source = made.with_suffix(".cc")
    source.write_text(text)
    command = [
        "g++",
        "-std=c++20",
        "-O1",
        "-pthread",
        "-Wall",
        "-Werror",
        *options,
    ]
    subprocess.run([*command, str(source), "-o", str(made)], check=True)


def build() -> Path:
    """The text of the kernels, compiled by g++ once."""
    text = wrapper()
    whole = text + SOURCE.read_text() + HEADER.read_text()
    digest = hashlib.sha256(whole.encode()).hexdigest()
    built = Path(tempfile.gettempdir()) / f"rn50_emulated_{digest[:16]}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder) / "kernels.so"
            compile_text(text, made, "-fPIC", "-shared")
            made.replace(built)
    return built


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(build()))


class EmulatedModule(CudaModule):
    """The kernels on the CPU. A launch waits for its arrays and for its end."""

    device: Any = None

    def __init__(self) -> None:
        self._parameters = parameters(SOURCE.read_text())

    def launch(self, launch: Launch) -> None:
        mx.nd.waitall()
        kinds = self._parameters[launch.name]
        words = [
            _argument(kind, value)
            for kind, value in zip(kinds, launch.arguments, strict=True)
        ]
        places = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        library()[f"run_{launch.name}"](launch.blocks, THREADS, places)

    def sequence(
        self,
        launches: Sequence[Launch],
        settings: mx.nd.NDArray,
        reads: Sequence[mx.nd.NDArray],  # noqa: ARG002
        writes: Sequence[mx.nd.NDArray],  # noqa: ARG002
    ) -> Callable[[Sequence[int]], None]:
        def run(words: Sequence[int]) -> None:
            settings[: len(words)] = mx.nd.array(words, dtype="int64")
            for launch in launches:
                self.launch(launch)

        return run


def _argument(kind: str, value: object) -> ctypes._SimpleCData:  # type: ignore[type-arg]
    if "*" not in kind:
        return _NUMBERS[kind.split()[0]](value)
    if value is None:
        return ctypes.c_void_p()
    assert isinstance(value, mx.nd.NDArray)
    dtype, _, _ = kind.removeprefix("const ").partition("*")
    assert value.dtype == _DTYPES[dtype], (kind, value.dtype)
    return ctypes.c_void_p(data_address(value))


def operators() -> PlanOperators:
    """Our own operators, on the CPU."""
    return PlanOperators(mx.cpu(), EmulatedModule())
