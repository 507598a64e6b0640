"""The kernels of device.cu on a CPU, with threads as a GPU has them (emulated.h)."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import mxnet as mx

from rn50.train.gpu.calls import data_address
from rn50.train.gpu.module import SOURCE, CudaModule, Launch, parameters
from rn50.train.gpu.operators import PlanOperators

HEADER = Path(__file__).with_name("emulated.h")
THREADS = 64
_NUMBERS = {"int": ctypes.c_int, "float": ctypes.c_float}


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
    command = ["g++", "-std=c++20", "-O1", "-pthread", "-Wall", "-Werror", *options]
    subprocess.run([*command, str(source), "-o", str(made)], check=True)


def build() -> Path:
    """The text of the kernels, compiled by g++ once."""
    text = wrapper()
    digest = hashlib.sha256(
        (text + SOURCE.read_text() + HEADER.read_text()).encode()
    ).hexdigest()
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

    def __init__(self) -> None:
        self.launched: list[str] = []
        self._parameters = parameters(SOURCE.read_text())

    def launch(self, launch: Launch) -> None:
        mx.nd.waitall()
        self.launched.append(launch.name)
        kinds = self._parameters[launch.name]
        values = [_argument(k, a) for k, a in zip(kinds, launch.arguments, strict=True)]
        places = [ctypes.cast(ctypes.pointer(v), ctypes.c_void_p) for v in values]
        library()[f"run_{launch.name}"](
            launch.blocks, THREADS, (ctypes.c_void_p * len(places))(*places)
        )

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
    dtype = {
        "half_t": "float16",
        "float": "float32",
        "int": "int32",
        "long long": "int64",
        "unsigned char": "uint8",
    }
    words = kind.removeprefix("const ").partition("*")[0].strip()
    assert value.dtype == dtype[words] or value.dtype.__name__ == dtype[words], (
        kind,
        value.dtype,
    )
    return ctypes.c_void_p(data_address(value))


def operators() -> PlanOperators:
    """Our own operators, on the CPU."""
    return PlanOperators(mx.cpu(), EmulatedModule())
