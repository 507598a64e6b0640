"""The control plane with few thin ranks: the ends, and that totals grow no faster than ranks."""

from functools import partial
from pathlib import Path

from tests.lab.control_plane import ENDS, Measured, load_thin, measure


def measured(data: Path, results: Path, ranks: int, end: str) -> Measured:
    overrides = [f"data.path={data}", f"system.results={results}"]
    job = measure(load_thin("smoke", overrides, ranks), end)
    assert list(results.iterdir()) == []
    return job


def test_each_end_of_a_job(smoke_data: Path, tmp_path: Path) -> None:
    on_eight_ranks = partial(measured, smoke_data, tmp_path, 8)
    killed, stopped, interrupted = map(on_eight_ranks, ENDS)
    assert killed.named
    assert stopped.named
    assert interrupted.named is None
    assert "its process is stopped" in stopped.reason
    assert "stopped by Ctrl-C" in interrupted.reason


def test_totals_grow_no_faster_than_ranks(smoke_data: Path, tmp_path: Path) -> None:
    """Files opened to start: what a rank adds is the same from 16 to 64 ranks as from 4 to 16.
    Counted, not timed."""
    few, some, many = (
        measured(smoke_data, tmp_path, ranks, "asked").opens for ranks in (4, 16, 64)
    )
    assert 0 < (many - some) / 48 <= 1.1 * (some - few) / 12
