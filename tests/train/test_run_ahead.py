"""Times of steps: which interval is a plain one, which an epoch's boundary; the queue's bound."""

from __future__ import annotations

import pytest

from rn50.train.run_ahead import RUN_AHEAD_STEPS, EpochBoundaryTimes, RunAheadLimiter, boundaries


class Loss:
    def __init__(self, waited: list[int], step: int) -> None:
        self._waited, self._step = waited, step

    def wait_to_read(self) -> None:
        self._waited.append(self._step)


def test_the_host_waits_for_the_loss_of_two_steps_ago() -> None:
    waited: list[int] = []
    limiter = RunAheadLimiter()
    for step in range(1, 8):
        limiter(Loss(waited, step), object())
        assert step - len(waited) <= RUN_AHEAD_STEPS + 1
    assert waited == [2, 3, 4, 5]
    limiter.clear()
    limiter(Loss(waited, 8), object())
    assert waited == [2, 3, 4, 5]


def test_boundaries_are_told_from_plain_steps() -> None:
    done = [(2, 0.0), (3, 1.0), (4, 2.0), (5, 3.5), (6, 4.5), (7, 5.5), (8, 6.5), (9, 9.5)]
    assert boundaries(done, [4, 8]) == EpochBoundaryTimes(1.0, (1.5, 3.0))


@pytest.mark.parametrize("done", [[], [(3, 1.0)], [(3, 1.0), (5, 2.0)], [(4, 1.0), (5, 2.0)]])
def test_nothing_is_made_up_where_no_plain_step_was_seen(done: list[tuple[int, float]]) -> None:
    assert boundaries(done, [4]) is None
