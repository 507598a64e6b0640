"""The first `import mxnet` of a process, without packages that MXNet imports and a run never uses.

Importing MXNet 1.9.1 takes 1.5 CPU-seconds. Half of that is SciPy, which MXNet treats as optional
(statistics of its quantization and of its test helpers), and setuptools, which stands in for
`distutils` to compare three version numbers. Every rank pays for both, and a shared file system for
some 600 files a rank. `rn50/__init__.py` installs the finder, so Horovod's import counts too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class MXNetFinder(MetaPathFinder):
    """Finds MXNet as Python would, and executes it with `stand_ins`."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "mxnet":
            return None
        spec = PathFinder.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with stand_ins():
                execute(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextmanager
def stand_ins() -> Iterator[None]:
    """No SciPy, and `distutils.version` with the two classes that MXNet imports from it. A module
    that is loaded already stays what it is; afterwards all of them can be imported as usual."""
    version = ModuleType("distutils.version")
    version.LooseVersion = version.StrictVersion = _Version  # type: ignore[attr-defined]
    modules = {"scipy": None, "distutils": ModuleType("distutils"), "distutils.version": version}
    placed = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(placed)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in placed:
            sys.modules.pop(name, None)


class _Version(tuple[int, ...]):
    """The leading numbers of a version, compared one by one."""

    def __new__(cls, text: str) -> _Version:
        numbers = (part for part in text.split(".") if part.isdecimal())
        return super().__new__(cls, map(int, numbers))
