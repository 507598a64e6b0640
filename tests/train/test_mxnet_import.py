"""MXNet imports without SciPy and setuptools and over any NumPy, and leaves them as they were."""

import signal
import subprocess
import sys
from pathlib import Path

from rn50.train.mxnet_import import restore_numpy_names
from tests.waiting import finished


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


def test_a_python_without_rn50_loads_mxnet_and_prints_nothing_else(
    tmp_path: Path,
) -> None:
    """Horovod's build needs it (scripts/setup.sh), whose CMake reads what Python prints."""
    source = Path(restore_numpy_names.__code__.co_filename)
    (tmp_path / "mxnet_import.py").symlink_to(source)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, mxnet_import; sys.meta_path.insert(0, mxnet_import.MXNetFinder())"
    )
    code = "import sys, mxnet as mx; print(mx.__version__); assert 'rn50' not in sys.modules"
    done = finished([sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("1.9.1\n", "")


CRASH = """
import os, signal, sys
from contextlib import nullcontext
from types import SimpleNamespace
from rn50.train import __main__ as rank

class Finder:
    def find_spec(self, name, *_):
        if name == "mxnet.gluon":
            os.kill(os.getpid(), signal.SIGSEGV)

sys.meta_path.insert(0, Finder())
timeline = SimpleNamespace(span=nullcontext)
rank._train(SimpleNamespace(begin_connecting=dict, timeline=timeline))
"""


def test_a_crash_while_mxnet_loads_ends_the_rank() -> None:
    """MXNet's own handler would run what is to run at a usual exit, and might wait for a lock."""
    done = finished([sys.executable, "-c", CRASH])
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr
