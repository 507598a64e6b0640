"""A step's phases, ranks and hosts in a report, of files that anybody may have written."""

from typing import Any

import pytest

from rn50.report.breakdown import PHASES, rank_spread, step_breakdown
from rn50.train.step_times import PHASES as MEASURED

FIGURES = (
    "forward_p50_ms",
    "backward_p50_ms",
    "reduction_p50_ms",
    "step_p50_ms",
    "cpu_s",
)


def records(points: int = 3) -> list[dict[str, Any]]:
    records = []
    for number in range(1, points + 1):
        record: dict[str, Any] = {"kind": "steps", "step": 20 * number}
        for name in PHASES:
            record[f"{name}_p50_ms"] = 10.0 * number
            record[f"{name}_p90_ms"] = 20.0 * number
        records.append(record)
    return records


def table(hosts: list[str], **columns: list[Any]) -> dict[str, Any]:
    default = {name: [10.0] * len(hosts) for name in FIGURES}
    return {"ranks": {"host": hosts, **default, **columns}}


def test_the_phases_are_those_that_are_measured() -> None:
    assert set(PHASES) == set(MEASURED)


def test_shares() -> None:
    breakdown = step_breakdown(records())
    assert [row.share for row in breakdown] == pytest.approx([1 / 6] * 6)
    rows = {row.name: row for row in breakdown}
    forward = rows["forward"]
    assert forward.median_ms == 20
    assert forward.slow_ms == 40
    assert step_breakdown([{"step_p50_ms": 1.0}]) == []


def test_the_slowest_rank_is_named() -> None:
    hosts = ["a", "a", "b", "b"]
    ranks = table(hosts, backward_p50_ms=[10.0, 11.0, 30.0, 31.0])
    computing, *_, cpu_time = rank_spread(ranks)
    assert computing.lowest == "20.00 ms"
    assert computing.highest == "41.00 ms"
    assert computing.highest_rank == "rank 3 on b"
    assert cpu_time.name == "CPU time"
    assert cpu_time.median == "10.00 s"


@pytest.mark.parametrize(
    "content",
    [
        1,
        {"host": 3},
        {"host": ["a"], "cpu_s": 4},
        {"host": ["a"], "cpu_s": ["b"]},
        {"host": ["a"], "cpu_s": [1.0, 2.0]},
    ],
)
def test_foreign_content_is_left_out(content: Any) -> None:
    assert rank_spread({"ranks": content}) == []
