"""The hot loop: fetch, forward, backward, reduce, update. It runs ahead of the device.

`times` notes on the device when each phase is done; the host waits for none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mxnet import nd

from ..data.pipeline import Batch
from .communication.communicator import Communicator
from .host_reads import RunAheadLimiter
from .operators import Criterion
from .profile_window import ProfileWindow
from .schedule import Settings
from .step_times import StepTimes
from .update.optimizer import Updater


class StepContext(NamedTuple):
    """All that a training step needs."""

    criterion: Criterion
    next_batch: Callable[[], Batch]
    comm: Communicator
    updater: Updater
    settings_at: Callable[[int], Settings]
    limit_run_ahead: RunAheadLimiter
    times: StepTimes
    profile: ProfileWindow
    may_begin: Callable[[int], bool]


class LogPoint(NamedTuple):
    """The losses of this rank's images, summed over the last `steps` steps, on the device."""

    step: int
    steps: int
    loss_sum: nd.NDArray


def train_steps(
    context: StepContext, first: int, last: int, log_every: int
) -> Iterator[LogPoint]:
    """Train steps `first` to `last`, both included, counted from 1; yield every `log_every`. Ends
    before a step that may not begin."""
    comm = context.comm
    criterion = context.criterion
    updater = context.updater
    times = context.times
    operators = comm.operators
    loss_sum = None
    steps = 0
    for step in range(first, last + 1):
        if not context.may_begin(step):
            return
        context.profile(step)
        times.begin(step)
        batch = context.next_batch()
        times.have_batch()
        scale = updater.scaler.value_at(step)
        losses = criterion.forward(batch.images, batch.labels, scale)
        times.after("forward", [losses])
        criterion.backward(losses, scale)
        times.after("backward", comm.written_last)
        comm.reduce()
        times.after("reduction", comm.buckets)
        updater.step(step, context.settings_at(step))
        times.after("update", updater.written_last)
        loss_sum = operators.add_losses(losses, loss_sum)
        steps += 1
        context.limit_run_ahead(losses, batch)
        if step % log_every == 0:
            yield LogPoint(step, steps, loss_sum)
            loss_sum = None
            steps = 0


def zero_gradient_steps(
    context: StepContext, first: int, last: int, log_every: int
) -> Iterator[LogPoint]:
    """The same steps on a rank without a share of the batch: zeros to the sum, the same update."""
    zero = context.comm.operators.zeros(1)
    steps = 0
    for step in range(first, last + 1):
        if not context.may_begin(step):
            return
        context.profile(step)
        context.comm.clear()
        context.comm.reduce()
        context.updater.step(step, context.settings_at(step))
        nd.waitall()  # this rank computes nothing that could overlap; bounds the queue
        steps += 1
        if step % log_every == 0:
            yield LogPoint(step, steps, zero)
            steps = 0
