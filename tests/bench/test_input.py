"""`rn50 data bench` and `rn50 bench pack`, small: all ways are run, and the ratios are of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_every_way_in_is_measured_and_drawn_against_a_machine(
    rn50, smoke_data: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "roofline.svg"
    done = rn50(
        *("data", "bench", "smoke", f"data.path={smoke_data}", "--passes", "1", "--images", "40"),
        *("--system", "dgxa100", "--plot", str(plot), "--json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rates = {
        kind: found["figures"][f"{kind}: images per CPU-second"]["median"]
        for kind in ("read", "decode", "full", "mxnet", "jpeg")
    }
    assert min(rates.values()) > 0
    for name, kind in (("mx.io.ImageRecordIter", "mxnet"), ("bare JPEG decoding", "jpeg")):
        ratio = found["ratios"][f"our pipeline / {name}"]
        assert ratio["n"] == 1
        assert ratio["median"] == pytest.approx(rates["full"] / rates[kind])
    assert "is the limit" in found["figures"]["limit"]
    assert "read_bytes_per_s" in plot.read_text()


def test_packing_is_timed_beside_plain_copies(rn50, tmp_path: Path) -> None:
    images = tmp_path / "images"
    made = rn50("data", "make", str(images), "--train", "40", "--val", "10")
    assert made.returncode == 0, made.stderr
    done = rn50("bench", "pack", str(images), "--passes", "2", "--json")
    assert done.returncode == 0, done.stderr
    ratios = json.loads(done.stdout)["ratios"]
    assert len(ratios) == 2
    assert all(ratio["n"] == 2 and ratio["median"] > 0 for ratio in ratios.values())
    assert [path.name for path in tmp_path.iterdir()] == ["images"]  # nothing is left of it
