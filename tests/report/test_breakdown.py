"""Where a step went, in a report: phases, ranks, hosts; of files that anybody may have written."""

from __future__ import annotations

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
    return [
        {
            "kind": "steps",
            "step": 20 * n,
            **{f"{name}_p50_ms": 10.0 * n for name in PHASES},
            **{f"{name}_p90_ms": 20.0 * n for name in PHASES},
            "step_p50_ms": 60.0 * n,
            "step_p90_ms": 120.0 * n,
            "step_max_ms": 200.0 * n,
        }
        for n in range(1, points + 1)
    ]


def table(hosts: list[str], **columns: list[Any]) -> dict[str, Any]:
    default = {name: [10.0] * len(hosts) for name in FIGURES}
    return {"ranks": {"host": hosts, **default, **columns}}


def test_the_phases_are_those_that_are_measured() -> None:
    assert set(PHASES) == set(MEASURED)


def test_shares() -> None:
    found = step_breakdown(records())
    assert [row.share for row in found] == pytest.approx([1 / 6] * 6)
    by_name = {row.name: row for row in found}
    assert by_name["forward"].median_ms == 20
    assert by_name["forward"].slow_ms == 40
    assert step_breakdown([]) == []
    assert step_breakdown([{"kind": "steps", "step_p50_ms": 1.0}]) == []


def test_the_slowest_rank_is_named() -> None:
    hosts = ["a", "a", "b", "b"]
    found = rank_spread(table(hosts, backward_p50_ms=[10.0, 11.0, 30.0, 31.0]))
    computing = found[0]
    assert computing.least == "20.00 ms"
    assert computing.most == "41.00 ms"
    assert computing.at == "rank 3 on b"
    assert found[-1].name == "CPU time"
    assert found[-1].middle == "10.00 s"


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
