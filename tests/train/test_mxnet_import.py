"""MXNet imports without SciPy and setuptools and over any NumPy, and leaves them as they were."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from rn50.train.mxnet_import import numpy_names, restore_numpy_names

FOUND = importlib.util.find_spec("mxnet")
assert FOUND and FOUND.origin
MXNET = Path(FOUND.origin).parent
DISPATCHED = "_NUMPY_ARRAY_FUNCTION_LIST"


def test_mxnet_loads_without_what_it_does_not_need() -> None:
    """Through Horovod, which imports it."""
    code = """
import importlib.util, sys, rn50
assert importlib.util.find_spec("mxnet").origin  # looking for it, as the trainer does, is no import
assert not {"mxnet", "numpy"} & set(sys.modules)
import horovod.mxnet, mxnet
assert not {"scipy", "onnx", "distutils", "setuptools"} & set(sys.modules)
assert mxnet.nd.ones((2, 3)).sum().asscalar() == 6
import scipy.stats
assert scipy.stats.norm.cdf(0) == 0.5
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_loaded_module_stays() -> None:
    code = "import scipy, rn50, mxnet.test_utils as t; assert t.ss is scipy.stats"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- NumPy's removed names ----------------------------------------------------------------------


def numpy_names_in(tree: ast.AST) -> Iterator[str]:
    """What a module takes from numpy, such as `linalg.norm`: attributes, imports, and the strings
    that MXNet's table of dispatched functions looks up."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name == "numpy" or (name.asname and name.name.startswith("numpy.")):
                    modules[name.asname or "numpy"] = name.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            top, _, below = (node.module or "").partition(".")
            if top == "numpy":
                yield from (f"{below}.{name.name}".strip(".") for name in node.names)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == DISPATCHED:
            yield from ast.literal_eval(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            top, _, below = ast.unparse(node).partition(".")
            if top in modules and re.fullmatch(r"[\w.]+", below):
                yield f"{modules[top]}.{below}".removeprefix("numpy.")


def numpy_has(name: str) -> bool:
    found: object = numpy
    for count, part in enumerate(name.split("."), 1):
        if not hasattr(found, part):
            module = ".".join(["numpy", *name.split(".")[:count]])
            try:
                importlib.import_module(module)
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def names_used() -> set[str]:
    files = sorted(MXNET.rglob("*.py"))
    assert len(files) > 150
    return {name for file in files for name in numpy_names_in(ast.parse(file.read_text()))}


@pytest.mark.slow
def test_numpy_has_every_name_of_mxnets_sources() -> None:
    """With those that are set on it, of which each is used."""
    restore_numpy_names()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        used = names_used()
        assert {"linalg.norm", "float32", "sometrue"} <= used
        assert not {name for name in used if not numpy_has(name)}
    assert not numpy_names().keys() - {name.split(".")[0] for name in used}


def test_what_is_set_computes_what_the_name_stood_for() -> None:
    names = {name: stands for name, stands in numpy_names().items() if callable(stands)}
    table = numpy.array([[3.0, 1.0], [2.0, 5.0]])
    assert names["msort"](table).tolist() == [[2, 1], [3, 5]]
    assert names["in1d"](table, [1, 2]).tolist() == [False, True, True, False]
    with pytest.raises(RuntimeError, match=r"numpy\.npv was removed from NumPy 1\.20"):
        names["npv"](0.1, [1])


def test_a_python_without_rn50_loads_mxnet_and_prints_nothing_else(tmp_path: Path) -> None:
    """As for Horovod's build (scripts/setup.sh), whose CMake reads what Python prints."""
    source = Path(restore_numpy_names.__code__.co_filename)
    (tmp_path / "mxnet_import.py").symlink_to(source)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, mxnet_import; sys.meta_path.insert(0, mxnet_import.MXNetFinder())"
    )
    code = (
        "import mxnet as mx; print(mx.__version__); assert 'rn50' not in __import__('sys').modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("1.9.1\n", "")
