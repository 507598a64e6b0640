"""Sets of runs that are one run, and honest sets that look alike: published ones, edited."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.logging.test_nonsense import LOGS, SETS, load, of_set, severities

HONEST = (
    "v4.0/tinycorp/tinybox_green",
    "v2.1/Intel-HabanaLabs/HLS-Gaudi2-PT",
    "v1.0/Google/tpu-v4-256-JAX-Distributed-Shampoo",
)
published = pytest.mark.skipif(
    not all((LOGS / folder).is_dir() for folder in HONEST),
    reason="no published logs beside this checkout",
)


@published
@SETS
@given(
    st.sampled_from(HONEST),
    st.sampled_from([5, 20, 50, 100, 250, 1000, 3000, 10_000, 60_000]),
    st.sampled_from(["down", "but the run's", "to the nearest"]),
)
def test_coarse_stamps_make_no_copies(tmp_path: Path, folder: str, unit_ms: int, how: str) -> None:
    """Honest runs as a logger writes them that knows no milliseconds."""
    runs = []
    for number in range(5):
        ruleset, run = load(f"{folder}/result_{number}.txt")
        for record in run:
            if how != "but the run's" or record.key not in ("run_start", "run_stop"):
                more_ms = unit_ms / 2 if how == "to the nearest" else 0
                record.time_ms = (record.time_ms + more_ms) // unit_ms * unit_ms
        runs.append((ruleset, run))
    assert severities(of_set(tmp_path, runs), "SAME_RUN", "SAME_CURVE") == set()
