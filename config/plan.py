"""What follows from a config by arithmetic: ranks, batches, steps, epochs. Pure, no framework."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .duration import to_steps
from .errors import UserError
from .schema import Run

_MAX_EPOCHS = 100_000


@dataclass(frozen=True)
class Plan:
    """The numbers of a run. Epochs are 1-based, steps count optimizer updates from 1."""

    ranks: int
    global_batch_size: int
    train_samples: int
    last_batch: str
    epochs: int
    total_steps: int
    warmup_steps: int
    decay_steps: int
    log_every_steps: int
    eval_epochs: tuple[int, ...]

    @property
    def steps_per_epoch(self) -> float:
        """Mean steps per epoch; a fraction where the last partial batch mixes with the next."""
        exact = self.train_samples / self.global_batch_size
        return exact if self.last_batch == "mix" else math.ceil(exact)

    def epoch_end_step(self, epoch: int) -> int:
        """The step that completes `epoch`: all its images have been seen once by then."""
        if self.last_batch == "pad":
            return epoch * math.ceil(self.train_samples / self.global_batch_size)
        return math.ceil(epoch * self.train_samples / self.global_batch_size)


def build_plan(run: Run) -> Plan:
    """Derive the plan of `run`. Raises UserError where its parts contradict each other."""
    ranks = run.system.nodes * run.system.ranks_per_node
    batch = ranks * run.batch.per_rank
    if batch > run.data.train_samples:
        raise UserError(
            f"batch.per_rank: {run.batch.per_rank} on {ranks} ranks makes a global batch of "
            f"{batch}, more than the {run.data.train_samples} training images"
        )
    draft = Plan(ranks, batch, run.data.train_samples, run.data.last_batch, 0, 0, 0, 0, 1, ())
    per_epoch = draft.steps_per_epoch
    if run.schedule.length.unit == "epochs":
        epochs = math.ceil(run.schedule.length.value)
    else:
        steps = to_steps(run.schedule.length, per_epoch)
        epochs = math.ceil(steps / per_epoch)
        if draft.epoch_end_step(epochs - 1) >= steps:  # its last, mixed batch ends the epoch before
            epochs -= 1
    if epochs > _MAX_EPOCHS:
        raise UserError(
            f"schedule.length: at most {_MAX_EPOCHS:,} epochs expected, found {run.schedule.length}"
        )
    total = draft.epoch_end_step(epochs)
    warmup = to_steps(run.schedule.warmup, per_epoch, total)
    if warmup >= total:
        raise UserError(
            f"schedule.warmup: less than the whole run ({total} steps) expected, "
            f"found {run.schedule.warmup} = {warmup} steps"
        )
    decay = total - warmup
    if run.schedule.decay is not None:
        decay = to_steps(run.schedule.decay, per_epoch, total)
    evals = tuple(
        epoch for epoch in range(1, epochs + 1) if (epoch - 1) % run.eval.period == run.eval.offset
    )
    if not evals:
        raise UserError(
            f"eval.offset: no evaluation in {epochs} epochs with period {run.eval.period} and "
            f"offset {run.eval.offset} (epoch e is evaluated when (e - 1) mod period = offset)"
        )
    return Plan(
        ranks=ranks,
        global_batch_size=batch,
        train_samples=run.data.train_samples,
        last_batch=run.data.last_batch,
        epochs=epochs,
        total_steps=total,
        warmup_steps=warmup,
        decay_steps=decay,
        log_every_steps=max(1, to_steps(run.log.every, per_epoch, total)),
        eval_epochs=evals,
    )
