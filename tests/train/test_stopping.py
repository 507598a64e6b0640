"""Early stops as pure functions."""

import math
import re
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest

from rn50.train.host_reads import ALL_FINITE, NO_SHARE, LossTrail
from rn50.train.network.build import quick_digest
from rn50.train.stopping import AllRanksError, check_learning, judge_loss


@pytest.mark.parametrize(
    ("first_steps", "not_finite_step", "accused"),
    [
        ([ALL_FINITE, 8], 8, "1"),
        ([9, 8], 8, "1"),  # it travels with the gradients
        ([8, 9], 8, "0"),
        ([9, 8, 9, 8], 8, "13"),
        ([8, 8], None, ""),
        ([8, 8, 9], None, ""),
        ([8], None, ""),
        ([8, NO_SHARE], None, ""),
        ([ALL_FINITE] * 2, None, ""),  # the sum alone is too large
        ([-6, -6], 6, ""),  # summed in one array
    ],
)
def test_a_loss_that_is_no_number_is_one_ranks_or_divergence(
    first_steps: list[int], not_finite_step: int | None, accused: str
) -> None:
    names = [f"rank {rank} on h" for rank in range(len(first_steps))]
    error = judge_loss(math.nan, 10, first_steps, names)
    assert error.retryable == (not_finite_step is not None)
    assert error.not_finite_step == not_finite_step
    of_rank_0 = not_finite_step in (first_steps[0], -first_steps[0])
    assert error.agreed_step == (not_finite_step and not_finite_step - 1 - of_rank_0)
    assert "".join(re.findall(r"rank (\d) on h", str(error))) == accused


def test_the_first_step_that_was_not_finite_is_read_afterwards() -> None:
    trail = LossTrail()
    assert trail.first_not_finite() == NO_SHARE
    for step, loss in enumerate((1, 2, math.inf, math.nan), 5):
        trail(step, mx.nd.array([loss]))
    assert trail.first_not_finite() == 7
    trail.clear()
    same = mx.nd.array([0])
    for step in (5, 6):
        trail(step, same)
    assert trail.first_not_finite() == ALL_FINITE
    same[:] = math.nan
    assert trail.first_not_finite() == -5


@pytest.mark.parametrize(
    ("correct", "total", "classes", "guessed"),
    [
        (78, 50_000, 1000, True),  # four standard deviations above: 78.3
        (79, 50_000, 1000, False),
        (134, 400, 4, True),
        (135, 400, 4, False),  # 0.3366 is the limit
        (5, 10, 2, False),  # the limit is above 1
    ],
)
def test_chance_is_told_from_learning(
    correct: int, total: int, classes: int, guessed: bool
) -> None:
    ending = pytest.raises(AllRanksError) if guessed else nullcontext()
    with ending:
        check_learning(correct, total, classes, 5)


def test_one_flipped_bit_changes_the_quick_digest() -> None:
    arrays = [np.ones((7, 3), np.float32), np.ones(7, np.float32)]
    integers = arrays[0].view(np.uint32)
    digests = {quick_digest(arrays)}
    for index, bit in ((0, 0), (10, 31), (20, 17)):
        integers.flat[index] ^= np.uint32(1 << bit)
        digests.add(quick_digest(arrays))
    assert len(digests) == 4
