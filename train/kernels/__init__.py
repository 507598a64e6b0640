"""Our own C and C++, built once beside the environment: the optimizer for CPUs, the time stamp, a
GPU's step."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from functools import cache
from pathlib import Path

import mxnet as mx
from mxnet._ctypes.ndarray import _imperative_invoke

from ...host.atomic import partial_beside
from ...host.errors import UserError
from ...host.programs import ask
from ..mxnet_package import headers, operator_source

_HERE = Path(__file__).parent
SOURCE = _HERE / "update.cc"
STAMP_SOURCE = _HERE / "stamp.c"
STEP_SOURCE = _HERE.parent / "gpu" / "step.c"
_BUILD_S = 600.0


def library_path(source: Path) -> Path:
    """The library of a source; its name changes with its making, so a stale one is never loaded."""
    digest = hashlib.sha256(
        source.read_bytes() + Path(__file__).read_bytes()
    ).hexdigest()[:12]
    return Path(sys.prefix) / "lib" / f"librn50_{source.stem}-{digest}.so"


def build(source: Path) -> Path:
    """Compile a library if it is missing (`scripts/setup.sh` does this); safe side by side."""
    path = library_path(source)
    if path.exists():
        return path
    flags = ["-x", "c"]
    if source == SOURCE:
        # Horovod makes MXNet's symbols global, and MXNet holds classes of the same names as
        # lib_api.cc: without the last two the library would use MXNet's and crash.
        flags = ["-std=c++17", "-fopenmp", "-fno-gnu-unique", "-Wl,-Bsymbolic"]
        flags += [f"-I{headers()}", str(operator_source())]
    command = ["g++", "-O2", "-fPIC", "-shared", *flags, str(source), "-o"]
    # a folder, as the linker makes its file anew
    with partial_beside(path, is_folder=True) as partial:
        library = partial / path.name
        done = ask([*command, str(library)], _BUILD_S)
        if done.code or not library.exists():
            errors = (line for line in done.err.splitlines() if "error" in line)
            raise UserError(
                f"{source.name}: {done.ended}: {done.said(next(errors, ''))}"
            )
        library.replace(path)
    return path


@cache
def load() -> int:
    """Load the operator into MXNet, once, before any other thread uses MXNet (it would crash).

    Returns its handle. `mx.library.load` would also generate every Python operator anew (1 s).
    """
    library = mx.base._LIB
    path = str(build(SOURCE)).encode()
    mx.base.check_call(library.MXLoadLib(path, 0))
    handle = ctypes.c_void_p()
    mx.base.check_call(library.NNGetOpHandle(b"rn50_update", ctypes.byref(handle)))
    assert handle.value is not None
    return handle.value


def update(arrays: list[mx.nd.NDArray], attributes: dict[str, str]) -> None:
    """Enqueue one step of all tensors.

    Args:
        arrays: weight, gradient, velocity of each tensor in turn, float32 on a CPU.
        attributes: see update.cc.
    """
    names = list(attributes)
    values = list(attributes.values())
    _imperative_invoke(load(), arrays, names, values, None, False, False)
