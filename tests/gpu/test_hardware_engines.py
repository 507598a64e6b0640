"""The part of `make gpu-hardware` about cuDNN's engines, whole on the fake."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.hardware_engines import HEADER
from tests.waiting import output_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CODE = """
import json, rn50
from rn50.config.load import load
from tests.gpu.hardware_engines import rows
run = load("dgxh100_8", ["model.step=plan"]).run
for row in rows(run, 4, 1):
    print(json.dumps(row))
"""


def rows_at(capability: str) -> list[Any]:
    environment = {"FAKECUDA_CAPABILITY": capability, "FAKECUDA_COMPUTE": "0"}
    printed = output_of(
        [sys.executable, "-c", CODE],
        env=os.environ | environment | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=300,
    )
    return [json.loads(line) for line in printed.splitlines() if line.startswith("[")]


@pytest.mark.parametrize(("capability", "takes"), [("9.0", True), ("7.0", False)])
def test_every_graph_of_the_network_has_its_rows(
    capability: str, takes: bool, fake_environment: Path
) -> None:
    rows = rows_at(capability)
    assert {len(row) for row in rows} == {len(HEADER)}
    fused = [row for row in rows if "sums" in row[2] or "norm" in row[2]]
    plain = [row for row in rows if row not in fused]
    assert rows == fused + plain
    taken_layers = {row[0] for row in fused if row[3] != "none"}
    layers = {row[0]: row[1] for row in plain}
    assert sum(layers.values()) == 53
    stem = {name for name in layers if name.startswith("7x7")}
    assert taken_layers == (layers.keys() - stem if takes else set())
    assert "none" not in {row[3] for row in plain}
