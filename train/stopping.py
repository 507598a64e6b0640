"""What ends a run before its time: a request, a budget, or training that leads nowhere."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from enum import Enum

from ..host.errors import UserError
from ..logging.records import TIME_LIMIT, Stopped
from .host_reads import NO_SHARE
from .running_clock import RunningClock


class Cause(Enum):
    """Why a rank asks all ranks to stop at the next log point, as the run's result says it."""

    REQUESTED = Stopped("a signal")
    OUT_OF_TIME = Stopped(limit=TIME_LIMIT)


_MOST_NAMED = 4


class StopTraining(Exception):
    """All ranks stop here, together and in good order: checkpoint, log, exit. `cause`: its step is
    that of the run's state."""

    def __init__(self, cause: Stopped) -> None:
        super().__init__(cause)
        self.cause = cause


class AllRanksError(UserError):
    """All ranks raise this after the same step, so that none is accused by its own failure. The
    attributes are those of a Failure; one that is not `retryable` would come again from the last
    checkpoint.

    Args:
        message: one line for people.
        retryable: whether another attempt may succeed.
        agreed_step: the last step after which all ranks held the same weights.
        not_finite_step: the first step with a loss that was not finite.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = True,
        agreed_step: int | None = None,
        not_finite_step: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.agreed_step = agreed_step
        self.not_finite_step = not_finite_step


class StopRequest:
    """Why and after which step this rank is to stop: at the next log point, where the ranks add up
    their flags, or after the last step that the launcher allows.

    The launcher finds that step by asking every rank to hold. Each answers with the last step that
    it has begun, or is about to begin, and waits before the next one. The largest answer is the
    last step of all."""

    def __init__(self) -> None:
        self._flags = dict.fromkeys(Cause, 0.0)
        self.begun_step = 0
        """The step that the loop is at: the last one that has begun, or is about to."""
        self.last_step = sys.maxsize
        """The last step of all ranks, once the launcher has named it."""
        self.cause = Cause.REQUESTED.value
        """Why it is the last."""
        self._is_asked = False
        self._is_named = threading.Event()
        self.longest_step_s = 0.0
        """The longest time from one call of `may_begin` to the next, whatever lay between but a
        suspension."""
        self.clock = RunningClock()
        self._looked_s = math.inf

    def __call__(self, cause: Cause) -> None:
        self._flags[cause] = 1.0

    @property
    def flags(self) -> list[float]:
        """One for each cause in their order: 1 where this rank asks to stop for it."""
        return list(self._flags.values())

    def may_begin(self, step: int) -> bool:
        """Whether `step` is one of those that all ranks train. Called before each; waits only for
        the launcher's answer, once it has asked to hold."""
        now_s = self.clock.look_s()
        self.longest_step_s = max(self.longest_step_s, now_s - self._looked_s)
        self._looked_s = now_s
        # Before the look at `_is_asked`: a step that `hold` does not know of is not begun.
        self.begun_step = step
        if self._is_asked:
            self._is_named.wait()
        return step <= self.last_step

    def hold(self) -> int:
        """Begin no other step; returns the last one that may have been begun. Called by the
        heartbeat's thread, as `stop_after` is."""
        self._is_asked = True
        return self.begun_step

    def stop_after(self, step: int, by: str) -> None:
        """Take the last step of all ranks, and who asked for it."""
        # before the loop is let go, which reads both
        self.last_step = step
        self.cause = Stopped(by)
        self._is_named.set()


def agreed_stop(totals: Sequence[float]) -> Stopped | None:
    """What the flags of all ranks, added up, mean."""
    for cause, ranks in zip(Cause, totals, strict=True):
        if ranks:
            return cause.value
    return None


def judge_loss(
    loss: float, step: int, first_steps: Sequence[int], names: Sequence[str]
) -> AllRanksError:
    """What to raise at a log point for a loss that is not finite. By then no rank has good weights.

    If it began on at most half of the ranks that have a share of the batch, their memory or nodes
    are at fault. If it began on most in one step, training diverged. launch/resume.py takes the
    same step a second time for divergence as well.

    Args:
        loss: over all ranks.
        step: of the log point.
        first_steps: of each rank, by LossTrail.first_not_finite.
        names: of the ranks.
    """
    finding = f"a finite loss expected, found {loss} at step {step}"
    shares = [first for first in first_steps if first != NO_SHARE]
    begun_step = min(map(abs, shares), default=step)
    first = [rank for rank, of_rank in enumerate(first_steps) if of_rank == begun_step]
    is_unknown = any(of_rank < 0 for of_rank in shares)
    if len(shares) < 2 or (not is_unknown and 2 * len(first) > len(shares)):
        return AllRanksError(f"{finding}: training diverged", retryable=False)
    where = "on which rank first cannot be told"
    if not is_unknown:
        named = ", ".join(names[rank] for rank in first[:_MOST_NAMED])
        where = f"first on {len(first)} of {len(shares)} ranks, {named}"
    cause = "a fault of memory or node, or divergence if it comes again at that step"
    # of rank 0's checkpoints one with whose weights it computed a finite loss
    may_be_of_rank_0 = is_unknown or 0 in first
    return AllRanksError(
        f"{finding}, since step {begun_step}, {where}: {cause}",
        agreed_step=max(begun_step - 1 - may_be_of_rank_0, 0),
        not_finite_step=begun_step,
    )


def check_learning(correct: int, total: int, classes: int, epoch: int) -> None:
    """Raise AllRanksError for an accuracy that guessing would reach too.

    Guessing gets a binomial number right; four standard deviations above its mean it does so in
    one of 30,000 evaluations. Of so few images that all of them right are no more than that,
    guessing and learning cannot be told apart, and nothing is refused.

    Args:
        correct: images whose class was guessed.
        total: all images.
        classes: among which guessing chooses.
        epoch: after which they were counted.
    """
    chance = 1 / classes
    limit = chance + 4 * math.sqrt(chance * (1 - chance) / total)
    if limit < 1 and correct / total <= limit:
        raise AllRanksError(
            f"accuracy above chance expected after epoch {epoch} (limits.min_accuracy_by): more "
            f"than {limit:.4f}, where guessing among {classes} classes gets {chance:.4f}; found "
            f"{correct / total:.4f}",
            retryable=False,
        )
