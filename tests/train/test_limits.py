"""Early stops as pure functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.train.identity import differing_ranks
from rn50.train.limits import (
    OUT_OF_TIME,
    REQUESTED,
    NonRetryableError,
    StopRequest,
    agreed_stop,
    check_learning,
    check_loss,
)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_ends_the_run(loss: float) -> None:
    with pytest.raises(NonRetryableError, match=r"a finite loss expected, found .* at step 8"):
        check_loss(loss, 8)
    check_loss(1e30, 8)


@pytest.mark.parametrize(
    ("correct", "total", "classes", "guessed"),
    [
        (50, 50_000, 1000, True),  # 0.001
        (78, 50_000, 1000, True),  # four standard deviations above: 78.3
        (79, 50_000, 1000, False),
        (134, 400, 4, True),
        (135, 400, 4, False),  # 0.3366 is the limit
    ],
)
def test_chance_is_told_from_learning(
    correct: int, total: int, classes: int, guessed: bool
) -> None:
    if guessed:
        with pytest.raises(NonRetryableError, match="above chance"):
            check_learning(correct, total, classes, 5)
    else:
        check_learning(correct, total, classes, 5)


def test_any_rank_may_ask_all_to_stop() -> None:
    ranks = [StopRequest() for _ in range(3)]
    assert agreed_stop([0.0, 0.0]) is None
    ranks[1](OUT_OF_TIME)
    totals = [sum(flags) for flags in zip(*(rank.flags for rank in ranks), strict=True)]
    assert "time budget" in (agreed_stop(totals) or "")
    ranks[2](REQUESTED)
    totals = [sum(flags) for flags in zip(*(rank.flags for rank in ranks), strict=True)]
    assert agreed_stop(totals) == "asked to stop"


class _Parameter:
    def __init__(self, values: np.ndarray) -> None:
        self.grad_req = "write"
        self._values = values

    def list_data(self) -> list[_Parameter]:
        return [self]

    def asnumpy(self) -> np.ndarray:
        return self._values


class _Net:
    def __init__(self, *arrays: np.ndarray) -> None:
        self._parameters = {str(n): _Parameter(array) for n, array in enumerate(arrays)}

    def collect_params(self) -> dict[str, _Parameter]:
        return self._parameters


@given(st.integers(1, 40), st.data())
def test_one_flipped_bit_changes_the_quick_digest(size: int, data: st.DataObject) -> None:
    from rn50.train.weights import quick_digest

    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    flipped = values.copy()
    place = data.draw(st.integers(0, 4 * size - 1))
    flipped.view(np.uint8)[place] ^= 1 << data.draw(st.integers(0, 7))
    digests = [quick_digest(_Net(v)) for v in (values, flipped, values.copy())]
    assert digests[0] == digests[2] != digests[1]
    assert differing_ranks(digests) == [1]
