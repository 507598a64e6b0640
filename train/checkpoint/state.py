"""What a run has come to: the trainer's memory. Loads no framework.

Every other part of a trainer that changes gives its state as arrays or a dictionary; this one, part
of a checkpoint's metadata, records how far training has come. The place in the data follows from
it: order and windows of images are pure functions of the seed and the number of samples consumed
(`data/sampling.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...config.plan import Plan

Count = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """A part of a checkpoint's metadata: what is written is read, and nothing else."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )


class TrainState(Strict):
    """Progress of a run: the same on all ranks."""

    model_config = ConfigDict(frozen=False)

    step: Count = 0
    """Optimizer steps that are known to be enqueued, from 1."""
    samples: Count = 0
    """Samples consumed after `step`, padding included."""
    epochs_trained: Count = 0
    epochs_evaluated: Count = 0
    """The last epoch after which an evaluation was done."""
    accuracy: float | None = None
    """The accuracy of the last evaluation."""
    best_accuracy: float | None = None

    def advance(self, plan: Plan, step: int) -> None:
        """Steps up to `step` are enqueued."""
        self.step = step
        self.samples = plan.images_after(step)

    def record_evaluation(self, epoch: int, accuracy: float) -> bool:
        """Note the accuracy after `epoch`; returns whether it is the best so far."""
        self.epochs_evaluated = epoch
        self.accuracy = accuracy
        if self.best_accuracy is not None and accuracy <= self.best_accuracy:
            return False
        self.best_accuracy = accuracy
        return True


class LossScaleState(Strict):
    """What `LossScaler.state` gives."""

    value: float
    growth_tracker: Count = 0
    checks: tuple[tuple[Count, float, bool], ...] = ()
    """(step, scale, were its gradients finite?), not applied yet."""


class Meta(Strict):
    """The state of a run when it was saved: everything but the arrays."""

    state: TrainState
    """How far training had come; with the seed it is the place in the data as well."""
    log_bytes: Count
    metrics_bytes: Count
    run_started_unix_s: float
    previous_lr: float
    """The learning rate of the last step: what momentum correction goes by."""
    loss_scale: LossScaleState
    ranks: Annotated[int, Field(ge=1)]
    statistics_rows: Annotated[int, Field(ge=1)]
    """Sets of batch-norm statistics: one for each rank, or 1 where all ranks have the same."""
    config_sha256: str
    config: dict[str, Any]
    """The tree that `Loaded.to_dict` gave."""
    image_set: str
    """The digest of the image set's manifest."""

    @model_validator(mode="after")
    def _fits(self) -> Meta:
        if self.statistics_rows not in (1, self.ranks):
            raise ValueError(f"1 or {self.ranks} sets of statistics expected")
        return self

    @property
    def step(self) -> int:
        """The last step in the weights."""
        return self.state.step


def blocks_left(plan: Plan, state: TrainState) -> Iterator[tuple[int, int]]:
    """First and last epoch (from 1) of the blocks that still have to be trained or evaluated. A
    block ends with an evaluation; the first may be partly trained."""
    first_epoch = 1
    for last_epoch in plan.eval_epochs:
        # one that is trained and not evaluated is a block too, without epochs to train
        if last_epoch > state.epochs_evaluated:
            yield first_epoch, last_epoch
        first_epoch = last_epoch + 1


def is_within_epoch(plan: Plan, state: TrainState) -> bool:
    """Are some steps of the next epoch done?"""
    return state.step > plan.epoch_end_step(state.epochs_trained)


def is_between_blocks(plan: Plan, state: TrainState) -> bool:
    """Has all that was trained been evaluated, so that no block of the MLPerf log is open?"""
    is_evaluated = state.epochs_trained <= state.epochs_evaluated
    return is_evaluated and not is_within_epoch(plan, state)
