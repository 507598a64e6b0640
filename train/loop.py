"""The hot loop: fetch, forward, backward, reduce, update. It runs ahead of the device.

`times` notes on the device when each phase is done; the host waits for none of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from mxnet import nd

from .trainer import Trainer


class LogPoint(NamedTuple):
    """The losses of this rank's images, summed over the last `steps` steps, on the device."""

    step: int
    steps: int
    loss_sum: nd.NDArray


def train_steps(
    trainer: Trainer, first: int, last: int, log_every: int
) -> Iterator[LogPoint]:
    """Train steps `first` to `last`, both included, counted from 1; yield every `log_every`. Ends
    before a step that may not begin.

    Args:
        trainer: one rank after start-up.
        first: the step to begin with.
        last: the last step to train.
        log_every: steps from one log point to the next.
    """
    comm = trainer.comm
    criterion = trainer.model.criterion
    updater = trainer.model.updater
    times = trainer.times
    operators = comm.operators
    loss_sum = None
    steps = 0
    for step in takewhile(trainer.context.stop.may_begin, range(first, last + 1)):
        trainer.profile(step)
        times.begin(step)
        batch = trainer.next_batch()
        times.have_batch()
        scale = updater.scaler.value_at(step)
        losses = criterion.forward(batch.images, batch.labels, scale)
        times.after("forward", [losses])
        criterion.backward(losses, scale)
        times.after("backward", comm.written_last)
        comm.reduce()
        times.after("reduction", comm.buckets)
        trainer.update(step, trainer.settings_at(step))
        times.after("update", updater.written_last)
        loss_sum = operators.add_losses(losses, loss_sum)
        trainer.loss_trail(step, loss_sum)
        steps += 1
        trainer.limit_run_ahead(losses, batch)
        if step % log_every == 0:
            yield LogPoint(step, steps, loss_sum)
            loss_sum = None
            steps = 0


def zero_gradient_steps(
    trainer: Trainer, first: int, last: int, log_every: int
) -> Iterator[LogPoint]:
    """The same steps on a rank without a share of the batch: zeros to the sum, the same update.

    Args:
        trainer: one rank after start-up.
        first: the step to begin with.
        last: the last step to train.
        log_every: steps from one log point to the next.
    """
    comm = trainer.comm
    zero = comm.operators.zeros(1)
    steps = 0
    for step in takewhile(trainer.context.stop.may_begin, range(first, last + 1)):
        trainer.profile(step)
        comm.clear()
        comm.reduce()
        trainer.update(step, trainer.settings_at(step))
        nd.waitall()  # this rank computes nothing that could overlap; bounds the queue
        steps += 1
        if step % log_every == 0:
            yield LogPoint(step, steps, zero)
            steps = 0
