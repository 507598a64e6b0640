"""Loss scaling: a constant, or one that halves when gradients overflow and doubles if none do.

Losses, and with them all gradients, are multiplied by it, so that small ones survive float16; the
update takes it out again. Where it is dynamic the device sets gradients that are not finite to
zero, and the host reads whether it did some steps later, when the answer is there: nobody waits.
Gradients are looked at once they are summed, so all ranks see, and do, the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mxnet import nd

from ..config.values import LOSS_SCALES, dynamic_start
from .host_reads import HostReads
from .limits import Hopeless
from .pace import RUN_AHEAD_STEPS

DOUBLE_AFTER_STEPS = 2000
"""Without an overflow, as MXNet's and NVIDIA's AMP."""
LEAST, MOST = LOSS_SCALES
LAG_STEPS = RUN_AHEAD_STEPS + 2
"""From a step to the one whose losses can heed it. `Pace` has waited for a loss that needed the
weights of that step, so its answer is read, not waited for."""


class Scale(NamedTuple):
    """The factor, and the steps without an overflow since it changed."""

    value: float
    clean_steps: int = 0


class Answer(NamedTuple):
    """Were the gradients of a step, taken at a scale, finite?"""

    step: int
    used: float
    finite: bool | nd.NDArray


def next_scale(scale: Scale, used: float, finite: bool) -> Scale | None:
    """The scale after an answer about gradients that were taken at `used`; None: at its end.

    Steps that were under way when the scale was halved overflow once more; that halves nothing.
    """
    if not finite:
        return Scale(min(scale.value, used / 2)) if used > LEAST else None
    if scale.clean_steps + 1 < DOUBLE_AFTER_STEPS or 2 * scale.value > MOST:
        return scale._replace(clean_steps=scale.clean_steps + 1)
    return Scale(2 * scale.value)


class LossScaler:
    """The scale of each step, and the guard of the weights against gradients that overflowed.

    Args:
        setting: `model.loss_scale`.
        gradients: all of them, as flat arrays; only a dynamic scale looks at them.
        batch: the largest global batch, over which gradients are summed.
        reads: brings the device's answers to the host.
    """

    def __init__(
        self,
        setting: float | str,
        gradients: Sequence[nd.NDArray] = (),
        *,
        batch: int = 1,
        reads: HostReads | None = None,
    ) -> None:
        self._reads = reads or HostReads()
        start = dynamic_start(setting, batch)
        self.is_dynamic = start is not None
        self._start = Scale(float(setting) if start is None else start)
        self._rows: list[tuple[nd.NDArray, nd.NDArray]] = []
        """Each array as one row, and zeros of its length: `where` picks rows by one number."""
        if self.is_dynamic:
            zeros = {
                g.dtype: nd.zeros(
                    max(h.size for h in gradients if h.dtype == g.dtype), g.context, dtype=g.dtype
                )
                for g in gradients
            }
            for g in gradients:
                self._rows.append((g.reshape((1, -1)), zeros[g.dtype][: g.size].reshape((1, -1))))
        self._head: tuple[float, nd.NDArray] | None = None
        self.reset()

    def reset(self) -> None:
        """The state of a new run."""
        self.scale = self._start
        self._answers: deque[Answer] = deque()
        self.finite: float | nd.NDArray = 1.0
        """1, or 0 after a step whose gradients were not: a factor of its learning rates."""

    def value_at(self, step: int) -> float:
        """The factor of the losses of `step`.

        Raises:
            Hopeless: gradients overflow at the smallest scale too.
        """
        while self._answers and self._answers[0].step <= step - LAG_STEPS:
            asked, used, finite = self._answers.popleft()
            following = next_scale(self.scale, used, self._reads.finite(finite))
            if following is None:
                raise Hopeless(
                    f"finite gradients expected, found others at step {asked} though the loss "
                    f"scale (model.loss_scale) has come down to {used:g}"
                )
            self.scale = following
        return self.scale.value

    def head_gradients(self, step: int, losses: nd.NDArray) -> nd.NDArray | None:
        """What backward starts from: the factor, one for each loss; None for ones."""
        value = self.value_at(step)
        if value == 1:
            return None
        if self._head is None or (self._head[0], self._head[1].shape) != (value, losses.shape):
            self._head = value, nd.full(losses.shape, value, losses.context)
        return self._head[1]

    def guard(self, step: int) -> None:
        """Enqueue: all summed gradients of `step` become zero if any is not finite."""
        if not self.is_dynamic:
            return
        used = self.value_at(step)
        finite = 1.0
        for row, _ in self._rows:
            finite = nd.all_finite(row) * finite
        for row, zeros in self._rows:
            nd.where(finite, row, zeros, out=row)
        self.finite = finite
        self._answers.append(Answer(step, used, finite))

    def state(self) -> tuple[Scale, tuple[tuple[int, float, bool], ...]]:
        """For a checkpoint, when everything enqueued is done: what the next steps will heed."""
        return self.scale, tuple(
            (a.step, a.used, self._reads.finite(a.finite)) for a in self._answers
        )

    def restore(self, scale: Scale, answers: Sequence[tuple[int, float, bool]]) -> None:
        """Go on where `state` was."""
        self.scale, self._answers = scale, deque(Answer(*answer) for answer in answers)
