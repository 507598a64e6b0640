"""The bound of the queue between host and device."""

from __future__ import annotations

from rn50.train.run_ahead import RUN_AHEAD_STEPS, RunAheadLimiter


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
