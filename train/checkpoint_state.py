"""A checkpoint's arrays back into a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mxnet import nd
from numpy.typing import NDArray

from .checkpoint import Checkpoint, Shapes
from .context import RunContext
from .networks import BatchNormStatistics, Weights
from .optimizer import PREVIOUS_LR, Updater


def restore(
    found: Checkpoint,
    context: RunContext,
    net: Any,
    updater: Updater,
    statistics: BatchNormStatistics,
) -> None:
    """Put what `checkpointer.collect` took back into place.

    At another rank count every rank gets the mean of the batch-norm statistics of the ranks that
    took part: what an evaluation would have made of them. Raises UserError: a part is torn or
    damaged, or an array is missing, has another shape or type, or belongs to nothing here."""
    weights, plan = Weights(net), context.plan
    shapes = _shapes(statistics.state_dict())
    expected = {**shapes, **_shapes(weights.state_dict()), **_shapes(updater.arrays())}
    model = found.load(found.parts[0], expected)
    weights.load_state_dict(model)
    updater.load_state_dict({**model, PREVIOUS_LR: found.meta.previous_lr})
    updater.scaler.load_state_dict(found.meta.loss_scale.model_dump())

    def of_rank(rank: int) -> Mapping[str, NDArray[Any]]:
        part = found.part_of(rank)
        return model if part.rank == 0 else found.load(part, shapes)

    if plan.ranks == found.meta.ranks:
        statistics.load_state_dict(of_rank(context.process.rank))
    else:
        epoch = max(1, round(plan.epoch_at(found.meta.step)))
        active = min(plan.segment_of_epoch(epoch).active_ranks, found.meta.ranks)
        sums = {name: np.zeros(shape) for name, (shape, _) in shapes.items()}
        for rank in range(active):  # one part in memory at a time
            values = of_rank(rank)
            for name, total in sums.items():
                total += values[name]
        statistics.load_state_dict({name: total / active for name, total in sums.items()})
    nd.waitall()


def _shapes(arrays: Mapping[str, nd.NDArray]) -> Shapes:
    return {name: (array.shape, np.dtype(array.dtype).name) for name, array in arrays.items()}
