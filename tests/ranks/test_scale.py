"""`rn50 bench scale` with few thin ranks: the ends, and that totals grow no faster than ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rn50.bench.scale import fit_growth

pytestmark = pytest.mark.slow


def measured(rn50: Any, data: Path, tmp_path: Path, *options: str) -> dict[str, Any]:
    done = rn50(
        *("bench", "scale", "smoke", *options, "--watch-s", "0.1", "--model-mb", "0.1", "--json"),
        *(f"data.path={data}", f"system.results={tmp_path / 'results'}"),
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "results").iterdir()) == []
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_end_of_a_job(rn50: Any, smoke_data: Path, tmp_path: Path) -> None:
    plot = tmp_path / "scale.svg"
    rows = measured(rn50, smoke_data, tmp_path, "--ranks", "8", "--plot", str(plot))["rows"]
    assert [(row["ranks"], row["end"], row["named"]) for row in rows] == [
        *((8, "killed", True), (8, "stopped", True), (8, "asked", None))
    ]
    asked = rows[-1]
    assert "stopped by Ctrl-C" in asked["reason"] and "checkpoint of step" in asked["reason"]
    assert asked["checkpoint_files"] == 9  # a part of each rank and the manifest
    assert 8 * 212_480 < asked["checkpoint_bytes"] < 8 * 220_000 + 150_000
    assert "its process is stopped" in rows[1]["reason"]
    assert all(row["connected_s"] > 0 and row["messages"] >= 8 for row in rows)
    assert "all connected" in plot.read_text()


def test_totals_grow_no_faster_than_ranks(rn50: Any, smoke_data: Path, tmp_path: Path) -> None:
    """Files opened and bytes read to start, and the bytes of a checkpoint: what a rank adds is the
    same from 16 to 64 ranks as from 4 to 16. Counted, not timed."""
    few, some, many = measured(rn50, smoke_data, tmp_path, "--ranks", "4,16,64", "--ends", "asked")[
        "rows"
    ]

    def added(name: str) -> tuple[float, float]:
        return (some[name] - few[name]) / 12, (many[name] - some[name]) / 48

    for name in ("opens", "checkpoint_bytes"):
        first, then = added(name)
        assert 0 < then <= 1.1 * first, name
    # The first rank of a node besides drops caches and looks after the data.
    others = {row["ranks"]: row["read_bytes"] / (row["ranks"] * 3 / 4) for row in (few, some, many)}
    assert 0 < others[64] <= 1.1 * others[4]
    # One set of its own, and one message a second and for each change, of every rank.
    assert many["opens_by_place"]["config"] == 64
    assert many["opens_by_place"]["data"] == 16 / 4 * some["opens_by_place"]["data"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--ends", "bored"), r"--ends: killed, stopped, asked expected, found bored"),
        (("--ranks", "19000"), r"--ranks: at most \d+ processes|ulimit -n: at least 19032"),
        (("--ranks", "99999"), r"ulimit -n: at least 100031 .* found \d+|--ranks: at most"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    rn50: Any, options: tuple[str, ...], expected: str
) -> None:
    done = rn50("bench", "scale", *options)
    assert done.returncode == 2 and re.search(expected, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_growth_is_a_line_and_a_power() -> None:
    line = fit_growth([(n, 3 + 0.5 * n) for n in (16, 64, 256)])
    assert line["constant"] == pytest.approx(3) and line["per_rank"] == pytest.approx(0.5)
    assert line["exponent"] is not None and 0.9 < line["exponent"] < 1
    square = fit_growth([(n, 1e-3 * n * n) for n in (16, 64, 256)])
    assert square["exponent"] == pytest.approx(2)
    assert fit_growth([(16, 0.0), (64, 0.0), (256, 1.0)])["exponent"] is None
