"""The RCP test against the official tool, point by point."""

import math
import random
from typing import Any

import pytest
from scipy import stats

from rn50.compliance.rcp import _T95, judge, kept_points, points, reference
from rn50.config import benchmark

rcp_checker = pytest.importorskip("mlperf_logging.rcp_checker.rcp_checker")
RULESETS = [name for name in benchmark.RULESETS if points(name)]


@pytest.fixture(scope="module", params=RULESETS)
def official(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, rcp_checker.RCP_Checker(
        "training", request.param, "resnet", False
    )


def test_records_and_pruning(official: tuple[str, Any]) -> None:
    ruleset, tool = official
    theirs = {record["BS"]: record for record in tool.rcp_data.values()}
    assert [point.batch for point in points(ruleset)] == sorted(theirs)
    for point in points(ruleset):
        assert sorted(point.epochs) == sorted(theirs[point.batch]["Epochs to converge"])
        assert point.mean == pytest.approx(theirs[point.batch]["RCP Mean"], abs=1e-12)
        assert point.stdev == pytest.approx(theirs[point.batch]["RCP Stdev"], abs=1e-12)
    their_batches = [record["BS"] for record in tool.pruned_rcp_data.values()]
    assert [point.batch for point in kept_points(ruleset)] == their_batches


@pytest.mark.slow
def test_means_and_limits_are_those_of_the_tool(official: tuple[str, Any]) -> None:
    ruleset, tool = official
    rng = random.Random(ruleset)
    batches = [point.batch for point in kept_points(ruleset)]
    batches += [rng.randrange(1633, batches[-1]) for _ in range(25)]
    for batch in batches:
        record = tool._find_rcp(batch, "pruned_rcps")
        if record is None:
            low = tool._find_top_min_rcp(batch, "pruned_rcps")
            high = tool._find_bottom_max_rcp(batch, "pruned_rcps")
            _, record = tool._create_interp_rcp(batch, low, high)
        ours = reference(batch, ruleset)
        assert ours is not None
        assert ours.mean == pytest.approx(record["RCP Mean"], abs=1e-9)
        limit = record["RCP Mean"] / record["Max Speedup"]
        assert ours.minimum == pytest.approx(limit, abs=1e-9)


@pytest.mark.parametrize(
    ("batch", "epochs", "passed", "factor"),
    [
        (2048, [35] * 5, True, 1.0011204481792717),
        (1536, [None, 35, 35, 35, 35], True, 1.0),
        (816, [30] * 5, False, 35 / 30),
        (86016, [90] * 5, False, 1.0),
        (2048, [None, None, 35, 35, 35], False, 1.0),
    ],
)
def test_verdicts(
    batch: int, epochs: list[float | None], passed: bool, factor: float
) -> None:
    verdict = judge(epochs, batch, "4.0.0")
    assert verdict.passed == passed
    assert verdict.factor == pytest.approx(factor, abs=1e-12)
    assert verdict.reason


def test_rounds_without_reference() -> None:
    assert reference(2048, "0.7.0") is None
    assert not judge([35] * 5, 2048, "0.7.0").passed
    above = reference(70_000, "4.0.0")
    assert above is not None
    assert math.isnan(above.mean)


def test_the_limit_is_that_of_a_one_sided_t_test() -> None:
    for freedom, quantile in _T95.items():
        assert quantile == pytest.approx(stats.t.ppf(0.95, freedom), abs=1e-6)
