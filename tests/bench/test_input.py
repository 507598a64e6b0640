"""`rn50 data bench`, small: all ways are run, and the ratios are of them."""

from pathlib import Path

import pytest

from tests.bench.conftest import Measure

pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_every_way_in_is_measured_and_drawn_against_a_machine(
    measure: Measure, smoke_data: Path
) -> None:
    outcome, svg = measure(
        "data bench smoke --passes 1 --images 40 --system dgxa100",
        f"data.path={smoke_data}",
    )
    figures = outcome["figures"]
    decoded = figures["decode: images per CPU-second"]["median"]
    whole_pipeline = figures["full: images per CPU-second"]["median"]
    ratio = outcome["ratios"]["whole pipeline / decoding"]
    assert ratio["n"] == 1
    assert ratio["median"] == pytest.approx(whole_pipeline / decoded)
    assert "is the limit" in figures["limit"]
    for curve in (
        "pixels a side",
        "input, DGX-1",
        "training ResNet-50, DGX-1",
        "training, batch",
    ):
        assert curve in svg
    for px in (224, 480):  # of a GPU with 16 cores
        a_core = figures[f"{px} px: images per CPU-second"]["median"]
        a_gpu = figures[f"input at {px} px on 16 cores: images/s a GPU"]
        assert a_gpu == pytest.approx(16 * a_core)
