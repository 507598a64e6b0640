"""The time of each phase of a step on the device, stamped by MXNet's engine; the host never waits.

After each phase of a step an operation is enqueued that reads what the phase writes and notes the
time (train/kernels/stamp.c). The four of a step cost 26 us of a core and hold up nothing: the phase
that follows reads the same arrays, and only the reduction of the gradients that backward writes
last waits for the stamp before it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import mxnet as mx
import numpy as np
from mxnet import nd
from numpy.typing import NDArray

from ..logging.clock import Moment, boot_time_s
from . import kernels
from .host_reads import RUN_AHEAD_STEPS

PHASES = ("host", "input", "forward", "backward", "reduction", "update")
"""The phases of a step, one after the other, from the end of one update to the end of the next:

host: the device waits, as the host has not asked for the batch yet (log points, checkpoints);
input: it waits for the batch; forward; backward: to the gradient that is written last; reduction:
to the last group's sum, what backward has not hidden (exposed); update.
"""
COLUMNS = (*PHASES, "input_lead")
"""What is kept of a step; input_lead: how long its batch was at hand before the device was free."""
_ASKED = PHASES.index("host")
_BATCH = PHASES.index("input")
_UPDATE = PHASES.index("update")


class EngineContext(ctypes.Structure):
    """The structure of include/mxnet/base.h."""

    _fields_ = (("device", ctypes.c_int), ("number", ctypes.c_int32))


class Stamp(NamedTuple):
    """An operation of the engine that notes the time."""

    operation: ctypes.c_void_p
    context: EngineContext
    after: list[nd.NDArray]
    """Arrays that it waits for, beside those of a phase."""


# A stamp is a plain operation of a CPU (Context::kCPU, FnProperty::kNormal of mxnet/engine.h): the
# same worker thread then runs it right after the phase, without a wake-up. On the threads for
# operations of high priority the wake-up took 4 % of a step of 18 ms on two busy cores.
_ON_CPU = EngineContext(1, 0)
_PLAIN = ctypes.c_int(0)


@cache
def _stamp_of_the_host() -> Stamp:
    library = ctypes.CDLL(str(kernels.build(kernels.STAMP_SOURCE)))
    return Stamp(ctypes.cast(library.rn50_stamp, ctypes.c_void_p), _ON_CPU, [])


class StepTimes:
    """The phases of every step of this rank.

    Args:
        most_steps: from one `log_point` to the next.
        stamp: what notes the time; None: the host's clock.
    """

    def __init__(self, most_steps: int, stamp: Stamp | None = None) -> None:
        self._stamp = stamp or _stamp_of_the_host()
        # A row for each step that is under way, or over and not yet taken.
        rows = most_steps + 2 * RUN_AHEAD_STEPS + 1
        self._stamps = np.zeros((rows, len(PHASES)))  # NaN: to be done
        self._next = 1
        self._last = 0
        """First step not yet taken, and the last one asked for."""
        self._begun_s = np.nan
        """End of the update before `_next`; NaN: something else than a step lay between."""
        self._past_ms: list[NDArray[np.float32]] = []  # 28 bytes a step
        self._stamped = -1
        self._moments: list[NDArray[np.float64]] = []
        """The engine writes into them: none may be freed before it has."""

    def begin(self, step: int) -> None:
        """The host asks for the batch of a step."""
        # the first after a resume, or epochs without this rank
        if step != self._last + 1:
            self.end_block()
            self._next = step
        self._last = step
        row = self._row
        row[:] = np.nan
        row[_ASKED] = boot_time_s()

    def have_batch(self) -> None:
        """The host has the batch."""
        self._row[_BATCH] = boot_time_s()

    def after(self, phase: str, arrays: Sequence[nd.NDArray]) -> None:
        """All of a phase of `PHASES` is enqueued and nothing that follows it; `arrays` are what it
        writes last."""
        self._enqueue_stamp(arrays, self._row[PHASES.index(phase) :])

    def moment(self, arrays: Sequence[nd.NDArray]) -> Moment:
        """When the device has written `arrays`, what the last step that is enqueued writes last.
        Waits for nothing."""
        if self._stamped != self._last:  # else the first stamp of this step says it
            self._stamped = self._last
            self._moments.append(np.full(1, np.nan))
            self._enqueue_stamp(arrays, self._moments[-1])
        return self._moments[-1].item

    def _enqueue_stamp(
        self, arrays: Sequence[nd.NDArray], cell: NDArray[np.float64]
    ) -> None:
        """Note in a cell when the arrays are written."""
        stamp = self._stamp
        handles = [array.handle for array in (*arrays, *stamp.after)]
        mx.base.check_call(
            mx.base._LIB.MXEnginePushSyncND(
                stamp.operation,
                ctypes.c_void_p(cell.ctypes.data),
                None,
                ctypes.byref(stamp.context),
                (ctypes.c_void_p * len(handles))(*handles),
                len(handles),
                None,
                0,
                ctypes.byref(_PLAIN),
                0,
                b"rn50_stamp",
            )
        )

    def log_point(self) -> NDArray[np.float32]:
        """(steps, columns) in ms of the steps done since the last call. Waits for nothing."""
        rows = len(self._stamps)
        first = max(self._next, self._last + 1 - rows)
        stamps = self._stamps[np.arange(first, self._last + 1) % rows]
        is_over = ~np.isnan(stamps[:, _UPDATE])
        over = int(np.logical_and.accumulate(is_over).sum())
        stamps = stamps[:over]
        phases = phases_ms(stamps, self._begun_s)
        if over:
            self._next = first + over
            self._begun_s = stamps[-1, _UPDATE]
            self._past_ms.append(phases)
        return phases

    def done_step(self) -> int:
        """The last step whose update is done; steps end in their order. For any thread."""
        return self._last - int(np.isnan(self._stamps[:, _UPDATE]).sum())

    def end_block(self) -> None:
        """Something else than steps comes next, such as an evaluation; all that was enqueued is
        done."""
        self.log_point()
        self._begun_s = np.nan

    def all_ms(self) -> NDArray[np.float32]:
        """(steps, columns) of all steps that were taken."""
        none = np.empty((0, len(COLUMNS)), np.float32)
        return np.concatenate([none, *self._past_ms])

    @property
    def _row(self) -> NDArray[np.float64]:
        row: NDArray[np.float64] = self._stamps[self._last % len(self._stamps)]
        return row


def phases_ms(stamps: NDArray[np.float64], begun_s: float) -> NDArray[np.float32]:
    """(steps, columns) in ms, from (steps, 6) stamps and the end of the update before them; NaN:
    the first step begins when its batch is asked for. What ends before the phase before it took 0.
    """
    previous_end_s = np.append(begun_s, stamps[:, _UPDATE])[: len(stamps)]
    previous_end_s = np.where(
        np.isnan(previous_end_s), stamps[:, _ASKED], previous_end_s
    )
    ends = np.column_stack([previous_end_s, stamps])
    phases = np.diff(np.maximum.accumulate(ends, axis=1), axis=1)
    lead = np.maximum(0.0, previous_end_s - stamps[:, _BATCH])
    return (1e3 * np.column_stack([phases, lead])).astype(np.float32)


def percentiles(ms: NDArray[np.float32]) -> dict[str, float]:
    """The median and the 90th percentile of the step and of each column of (steps, columns):
    `step_p50_ms`, `forward_p90_ms`; and the longest step."""
    step = ms[:, : len(PHASES)].sum(axis=1)
    table = np.column_stack([step, ms])
    times: dict[str, float] = {}
    for name, column in zip(("step", *COLUMNS), table.T, strict=True):
        p50, p90 = np.percentile(column, (50, 90)).tolist()
        times[f"{name}_p50_ms"] = p50
        times[f"{name}_p90_ms"] = p90
    times["step_max_ms"] = float(step.max())
    return times
