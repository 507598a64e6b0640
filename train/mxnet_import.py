"""The first `import mxnet` of a process: over any NumPy, with the CUDA libraries that set-up
installed, without packages that a run never uses.

MXNet 1.9.1 is from 2022. Names that NumPy has dropped since are set on numpy before MXNet executes.

Importing MXNet 1.9.1 takes 1.5 CPU-seconds. Half of that is SciPy, which MXNet treats as optional
(statistics of its quantization and of its test helpers), and setuptools, which stands in for
`distutils` to compare three version numbers. Every rank pays for both, and a shared file system for
some 600 files a rank. ONNX, where it is installed, would crash them: it loads protobuf while
another thread loads MXNet's library.
`rn50/__init__.py` installs the finder, so Horovod's import counts too; `scripts/setup.sh` does it
for Horovod's build, to whose CMake Python must print nothing else.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_CUDA_PARTS = (
    "libcublasLt.so.11",
    "libnvrtc-builtins.so.11.8",
    "libcudnn_ops_infer.so.8",
    "libcudnn_ops_train.so.8",
    "libcudnn_cnn_infer.so.8",
    "libcudnn_cnn_train.so.8",
    "libcudnn_adv_infer.so.8",
    "libcudnn_adv_train.so.8",
)
"""What NVIDIA's libraries open by name themselves, each after those that it needs."""
_CUDA_LIBRARIES = (
    "libcudart.so.11.0",
    "libnvrtc.so.11.2",
    "libcublas.so.11",
    "libcudnn.so.8",
    "libnccl.so.2",
)


class MXNetFinder:
    """Finds MXNet as Python would, and executes it with `stand_ins`.

    It is a `MetaPathFinder` by its method: importlib.abc would load importlib.resources and
    tempfile, 8 ms in every process.
    """

    def find_spec(
        self,
        name: str,
        _path: Sequence[str] | None = None,
        _target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec of MXNet, executed with stand-ins; None of any other module."""
        if name != "mxnet":
            return None
        spec = PathFinder.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module
        folder = Path(str(spec.origin)).parent

        def exec_module(module: ModuleType) -> None:
            """Execute MXNet once its libraries and NumPy's names are there."""
            load_cuda(folder)
            restore_numpy_names()
            with stand_ins():
                execute(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def load_cuda(folder: Path) -> None:
    """Load the CUDA libraries that set-up linked into MXNet's `folder`, if it did. Threads may call
    it side by side.

    The loader gives a library that is loaded to whoever asks for its name. Else cuDNN, cuBLAS and
    NVRTC would find their parts by their DT_RUNPATH, before which comes LD_LIBRARY_PATH: a part of
    the cuDNN of a cluster's module ends the process. What the libraries offer becomes visible to
    `ctypes.CDLL(None)`. 0.11 s, of which MXNet's own library would take 0.06 s.
    """
    names = (*_CUDA_PARTS, *_CUDA_LIBRARIES)
    if not all((folder / name).is_symlink() for name in names):
        return
    import ctypes

    for name in names:
        is_part = name in _CUDA_PARTS
        ctypes.CDLL(
            str(folder / name), ctypes.RTLD_LOCAL if is_part else ctypes.RTLD_GLOBAL
        )


def load_library(path: Path) -> None:
    """Load MXNet's library, which takes the signals of a crash, as `import mxnet` will. Threads may
    call it side by side."""
    import ctypes

    load_cuda(path.parent)
    ctypes.CDLL(str(path))


@contextmanager
def stand_ins() -> Iterator[None]:
    """No SciPy, no ONNX, and `distutils.version` with the two classes that MXNet imports from it. A
    module that is loaded already stays what it is; afterwards all can be imported as usual."""
    version = ModuleType("distutils.version")
    version.LooseVersion = version.StrictVersion = _Version  # type: ignore[attr-defined]
    modules = {
        "scipy": None,
        "onnx": None,
        "distutils": ModuleType("distutils"),
        "distutils.version": version,
    }
    missing = {
        name: module for name, module in modules.items() if name not in sys.modules
    }
    sys.modules.update(missing)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            sys.modules.pop(name, None)


def restore_numpy_names() -> None:
    """Set on numpy what it lacks of the names that MXNet's sources use; they stay, for some are
    used later. A test reads the sources."""
    import numpy as np

    names = {
        # mxnet/numpy/utils.py copies these seven; NumPy 2.0 removed them (bool: only 1.24 to 1.26).
        "PZERO": 0.0,
        "NZERO": -0.0,
        "PINF": np.inf,
        "NINF": -np.inf,
        "NAN": np.nan,
        "NaN": np.nan,
        "bool": bool,
        # The estimator's event handlers; removed in 2.0.
        "Inf": np.inf,
        # mxnet/numpy_dispatch_protocol.py looks these three up by their names; removed in 2.0.
        "round_": np.round,
        "product": np.prod,
        "sometrue": np.any,
        # mxnet/numpy/fallback.py copies what follows, up to `rate`. Removed in 2.0 or later:
        "alltrue": np.all,
        "in1d": lambda a, b, **settings: np.isin(np.ravel(a), b, **settings),
        "msort": lambda a: np.sort(a, axis=0),
        "trapz": getattr(np, "trapezoid", None),
        # Finance, which NumPy 1.20 to 1.23 have as functions that raise, and later ones not at all:
        **dict.fromkeys(("mirr", "npv", "pmt", "ppmt", "pv", "rate")),
    }
    with warnings.catch_warnings():
        # some NumPy versions have a name still, and warn of it
        warnings.simplefilter("ignore")
        for name, meaning in names.items():
            if not hasattr(np, name):
                setattr(np, name, meaning)


class _Version(tuple[int, ...]):
    """The leading numbers of a version, compared one by one."""

    def __new__(cls, version: str) -> _Version:
        numbers = (part for part in version.split(".") if part.isdecimal())
        return super().__new__(cls, map(int, numbers))
