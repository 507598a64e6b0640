"""MXNet imports without SciPy and setuptools, and leaves both as they were."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["mxnet", "horovod.mxnet"])
def test_mxnet_loads_without_what_it_does_not_need(first: str) -> None:
    code = f"""
import importlib.util, sys, rn50
assert importlib.util.find_spec("mxnet").origin  # looking for it, as the trainer does, is no import
assert not {{"mxnet", "numpy"}} & set(sys.modules)
import {first}, mxnet
assert not {{"scipy", "distutils", "setuptools"}} & set(sys.modules)
assert mxnet.nd.ones((2, 3)).sum().asscalar() == 6
import scipy.stats
assert scipy.stats.norm.cdf(0) == 0.5
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_loaded_module_stays() -> None:
    code = "import scipy, rn50, mxnet.test_utils as t; assert t.ss is scipy.stats"
    subprocess.run([sys.executable, "-c", code], check=True)
