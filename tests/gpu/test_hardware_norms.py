"""The part of a page from hardware about our norm kernels, whole on the fake."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.gpu.hardware_norms import HEADER
from tests.waiting import output_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CODE = """
import json, rn50
from rn50.config.load import load
from tests.gpu.hardware_norms import rows
run = load("dgxh100_8", ["model.step=plan"]).run
for row in rows(run, 32, 1):
    print(json.dumps(row))
"""


def test_every_norm_of_the_network_is_timed_both_ways(fake_environment: Path) -> None:
    environment = {"FAKECUDA_CAPABILITY": "9.0", "FAKECUDA_COMPUTE": "0"}
    printed = output_of(
        [sys.executable, "-c", CODE],
        env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=300,
    )
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    assert {len(row) for row in rows} == {len(HEADER)}
    calls = Counter[str]()
    for kernel, _, _, number, *_ in rows:
        calls[kernel] += number
    one_launch = calls["norm_half"]
    assert calls["norm_back_half"] == one_launch > 0
    for kernel in ("norm_terms", "normalise", "norm_slopes", "normalise_back"):
        assert calls[f"{kernel}_half"] == 53 - one_launch
    megabytes = {
        (kernel, size, channels): mb for kernel, size, channels, _, _, mb, _ in rows
    }
    stem = megabytes["norm_terms_half", 32 * 112 * 112, 64]
    assert stem == pytest.approx(32 * 112 * 112 * 64 * 2 / 1e6, rel=0.01)
