"""Early stops as pure functions."""

import math
from contextlib import nullcontext

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from rn50.train.network.build import quick_digest
from rn50.train.stopping import (
    NonRetryableError,
    check_learning,
    check_loss,
)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run(loss: float) -> None:
    with pytest.raises(NonRetryableError, match="a finite loss expected"):
        check_loss(loss, 8)
    check_loss(1e30, 8)


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
    correct: int,
    total: int,
    classes: int,
    guessed: bool,
) -> None:
    ending = pytest.raises(NonRetryableError) if guessed else nullcontext()
    with ending:
        check_learning(correct, total, classes, 5)


def test_one_flipped_bit_changes_the_quick_digest() -> None:
    net = nn.Dense(7, in_units=3)
    net.initialize()
    weight = net.weight.data()
    digests = {quick_digest(net)}
    for place, bit in ((0, 0), (10, 31), (20, 17)):
        values = weight.asnumpy()
        words = values.view(np.uint32)
        words.flat[place] ^= np.uint32(1 << bit)
        weight[:] = mx.nd.array(values)
        digests.add(quick_digest(net))
    assert len(digests) == 4
