"""The rate for people: of the last minute, whatever the length of its intervals."""

import pytest

from rn50.train.run_log import RecentRate


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([(10.0, 100)], 10.0),
        ([(30.0, 300), (10.0, 0)], 7.5),  # one slow interval does not decide
        # the first is over a minute ago
        ([(60.0, 6000), (30.0, 300), (30.0, 300)], 10.0),
        ([(60.0, 600), (100.0, 4000)], 40.0),  # the last one always counts
    ],
)
def test_the_rate_is_of_the_last_minute(
    intervals: list[tuple[float, int]], expected: float
) -> None:
    rate = RecentRate()
    rates = [rate.add(*interval) for interval in intervals]
    assert rates[-1] == expected
