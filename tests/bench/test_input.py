"""`rn50 data bench`, small: all ways are run, and the ratios are of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Rn50

pytestmark = pytest.mark.slow


def test_every_way_in_is_measured_and_drawn_against_a_machine(
    rn50: Rn50, smoke_data: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "roofline.svg"
    out = rn50.output(
        "data",
        "bench",
        "smoke",
        f"data.path={smoke_data}",
        "--passes",
        "1",
        "--images",
        "40",
        "--system",
        "dgxa100",
        "--plot",
        str(plot),
        "--json",
    )
    found = json.loads(out)
    rates = {
        kind: found["figures"][f"{kind}: images per CPU-second"]["median"]
        for kind in ("decode", "full")
    }
    assert min(rates.values()) > 0
    ratio = found["ratios"]["whole pipeline / decoding"]
    assert ratio["n"] == 1
    assert ratio["median"] == pytest.approx(rates["full"] / rates["decode"])
    assert "is the limit" in found["figures"]["limit"]
    drawn = plot.read_text()
    for curve in (
        "pixels a side",
        "input, DGX-1",
        "training ResNet-50, DGX-1",
        "training, batch",
    ):
        assert curve in drawn
    for px in (224, 480):  # of a GPU with 16 cores
        a_core = found["figures"][f"{px} px: images per CPU-second"]["median"]
        a_gpu = found["figures"][f"input at {px} px on 16 cores: images/s a GPU"]
        assert a_gpu == pytest.approx(16 * a_core)
