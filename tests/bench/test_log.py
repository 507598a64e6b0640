"""The benchmark of the log check runs, on logs that pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.bench.harness import BENCHMARKS, Job
from rn50.bench.log import write_huge, write_ordinary
from rn50.compliance.check_log import check_log


@pytest.mark.slow
def test_both_checkers_side_by_side() -> None:
    done: list[tuple[int, int]] = []
    job = Job(lambda _: lambda *progress: done.append(progress[:2]))
    found = BENCHMARKS["log"].measure(job, megabytes=3, rounds=2).to_json()
    for what, n in (("3 MB", 1), ("ordinary log", 2), ("ordinary log, one process", 20)):
        ratio = found["ratios"][f"{what}: official / ours"]
        assert ratio["n"] == n and 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    assert found["figures"]["3 MB, ours peak MB"] < 60
    assert set(found) == {"ratios", "figures", "measurements", "machine"}
    assert done == [(number, 4) for number in range(5)]


def test_both_logs_pass(tmp_path: Path) -> None:
    ordinary = write_ordinary(tmp_path / "result_0.txt")
    huge = write_huge(ordinary, tmp_path / "huge.txt", 200_000)
    assert huge.stat().st_size > 190_000
    for path in (ordinary, huge):
        found = check_log(path, "4.0.0")
        assert found.findings == ()
        assert found.official is not None
        assert found.official.verdict == "PASS"
