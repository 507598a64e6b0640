"""Wait-free backpropagation: the recurrence against its bounds and hand-made cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.scaling.step import exposed

GROUPS = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=20)


def test_a_group_that_fits_behind_backward_costs_nothing() -> None:
    assert exposed([1.0, 3.0], [1.5, 0.25]).exposed_s == 0.25
    assert exposed([1.0, 3.0], [1.5, 0.25]).launched_s == (1.0, 3.0)


def test_a_group_waits_for_the_one_before() -> None:
    result = exposed([1.0, 2.0, 3.0], [4.0, 1.0, 1.0])
    assert result.launched_s == (1.0, 5.0, 6.0)
    assert (result.finish_s, result.exposed_s) == (7.0, 4.0)


def test_backward_may_end_after_the_last_group_is_ready() -> None:
    assert exposed([1.0], [1.0], backward_s=5.0) == (5.0, 0.0, (1.0,))
    assert exposed([], []).exposed_s == 0.0


@given(groups=GROUPS)
def test_between_the_last_group_and_all_of_them(groups: list[tuple[float, float]]) -> None:
    ready_s = sorted(ready for ready, _ in groups)
    cost_s = [cost for _, cost in groups]
    result = exposed(ready_s, cost_s)
    assert cost_s[-1] - 1e-12 <= result.exposed_s <= sum(cost_s) + 1e-12
    chains = [start + sum(cost_s[i:]) for i, start in enumerate(ready_s)]
    assert result.finish_s == pytest.approx(max(chains))
