"""Loss scaling: a constant, or one that halves when gradients overflow and doubles if none do.

Losses, and with them all gradients, are multiplied by it, so that small ones survive float16; the
update takes it out again. Where it is dynamic the device sets gradients that are not finite to
zero, and the host reads whether it did some steps later, when the answer is there, without waiting.
Gradients are looked at once they are summed, so all ranks see, and do, the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mxnet import nd
from mxnet.ndarray import NDArray

from ...config.values import LOSS_SCALES, dynamic_start
from .. import host_reads
from ..checkpoint.state import LossScaleState
from ..stopping import AllRanksError

DOUBLE_AFTER_STEPS = 2000
"""Steps without an overflow, as in MXNet's and NVIDIA's AMP."""
MIN_SCALE, MAX_SCALE = LOSS_SCALES
CHECK_DELAY_STEPS = host_reads.RUN_AHEAD_STEPS + 2
"""Steps between an overflow and the first step that can use the lower scale. By then
`RunAheadLimiter` has waited for a loss that needed the weights of the first, so that its check is
read without a wait."""


class Scale(NamedTuple):
    """The factor, and the steps without an overflow since it changed."""

    value: float
    growth_tracker: int = 0


class OverflowCheck(NamedTuple):
    """Were the gradients of a step, taken at a scale, finite?"""

    step: int
    scale: float
    finite: bool | NDArray


def next_scale(scale: Scale, used: float, finite: bool) -> Scale | None:
    """The scale after a check of gradients that were taken at `used`; None: at its end.

    Steps that were under way when the scale was halved overflow once more; that halves nothing.
    """
    if not finite:
        if used <= MIN_SCALE:
            return None  # no lower scale would help
        return Scale(min(scale.value, used / 2))
    if scale.growth_tracker + 1 < DOUBLE_AFTER_STEPS or 2 * scale.value > MAX_SCALE:
        return scale._replace(growth_tracker=scale.growth_tracker + 1)
    return Scale(2 * scale.value)


class LossScaler:
    """The scale of each step, and the guard of the weights against gradients that overflowed.

    Args:
        setting: `model.loss_scale`.
        gradients: all of them, as flat arrays; only a dynamic scale looks at them.
        batch: the largest global batch, over which gradients are summed.
    """

    def __init__(
        self, setting: float | str, gradients: Sequence[NDArray] = (), *, batch: int = 1
    ) -> None:
        start = dynamic_start(setting, batch)
        self.is_dynamic = start is not None
        self._start = Scale(float(setting) if start is None else start)
        self._rows: list[tuple[NDArray, NDArray]] = []
        """Each array as one row, and zeros of its length: `where` picks rows by one number."""
        if self.is_dynamic:
            zeros = {}
            # the largest of a type comes last
            for g in sorted(gradients, key=len):
                zeros[g.dtype] = nd.zeros_like(g)
            for g in gradients:
                row = (1, g.size)
                zero = zeros[g.dtype][: g.size]
                self._rows.append((g.reshape(row), zero.reshape(row)))
        self.reset()

    def reset(self) -> None:
        """The state of a new run."""
        self.scale = self._start
        self._checks: deque[OverflowCheck] = deque()
        self.finite: float | NDArray = 1.0
        """1, or 0 after a step whose gradients were not: a factor of its learning rates."""

    def value_at(self, step: int) -> float:
        """The factor of the losses of `step`. Raises AllRanksError: gradients overflow at the
        smallest scale too."""
        while self._checks and self._checks[0].step <= step - CHECK_DELAY_STEPS:
            checked_step, used, finite = self._checks.popleft()
            following = next_scale(self.scale, used, host_reads.finite(finite))
            if following is None:
                raise AllRanksError(
                    f"finite gradients expected, found others at step {checked_step} though the "
                    f"loss scale (model.loss_scale) has come down to {used:g}",
                    retryable=False,
                )
            self.scale = following
        return self.scale.value

    def zero_nonfinite(self, step: int) -> None:
        """Enqueue: all summed gradients of `step` become zero if any is not finite."""
        if not self.is_dynamic:
            return
        finite = 1.0
        for row, _ in self._rows:
            finite = nd.all_finite(row) * finite
        for row, zeros in self._rows:
            nd.where(finite, row, zeros, out=row)
        self.note(step, finite)

    def note(self, step: int, finite: NDArray) -> None:
        """The check of the summed gradients of `step`, still being computed."""
        self.finite = finite
        self._checks.append(OverflowCheck(step, self.value_at(step), finite))

    def state(self) -> LossScaleState:
        """The scale, and the checks that the next steps will read. Everything that was enqueued has
        to be done."""
        checks = tuple(
            (c.step, c.scale, host_reads.finite(c.finite)) for c in self._checks
        )
        return LossScaleState(**self.scale._asdict(), checks=checks)

    def restore(self, state: LossScaleState) -> None:
        """Go on where `state` was taken; a constant scale stays the config's."""
        if self.is_dynamic:
            self.scale = Scale(state.value, state.growth_tracker)
            self._checks = deque(OverflowCheck(*check) for check in state.checks)
