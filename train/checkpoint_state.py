"""A checkpoint's arrays back into a trainer, or into a network alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mxnet import nd
from numpy.typing import NDArray

from ..config.plan import build_plan
from .checkpoint import Checkpoint, Shapes
from .context import RunContext
from .networks import load_arrays, statistics_arrays, weight_arrays
from .optimizer import Updater
from .resume import recorded_run


def restore(found: Checkpoint, context: RunContext, net: Any, updater: Updater) -> None:
    """Put what `checkpointer.collect` took back into place.

    At another rank count every rank gets the mean of the batch-norm statistics of the ranks that
    took part: what an evaluation would have made of them. Raises UserError: a part is torn or
    damaged, or an array is missing, has another shape or type, or belongs to nothing here."""
    weights, statistics = weight_arrays(net), statistics_arrays(net)
    shapes = _shapes(statistics)
    expected = {**shapes, **_shapes(weights), **_shapes(updater.arrays())}
    model = found.load(found.parts[0], expected)
    load_arrays(weights, model)
    load_arrays(updater.arrays(), model)
    updater.previous_lr = found.meta.previous_lr
    updater.scaler.load_state_dict(found.meta.loss_scale.model_dump())
    held = _statistics(found, model, shapes, context.process.rank, context.plan.ranks)
    load_arrays(statistics, held)
    nd.waitall()


def restore_network(found: Checkpoint, net: Any, *, rank: int = 0, ranks: int = 1) -> None:
    """Fill the weights and batch-norm statistics of a network of the checkpoint's own layout and
    types, on one of `ranks` ranks. Statistics at another rank count, errors: as of `restore`."""
    weights, statistics = weight_arrays(net), statistics_arrays(net)
    shapes = _shapes(statistics)
    model = found.load(found.parts[0], {**shapes, **_shapes(weights)}, some=True)
    load_arrays(weights, model)
    load_arrays(statistics, _statistics(found, model, shapes, rank, ranks))
    nd.waitall()


def active_ranks(found: Checkpoint) -> int:
    """How many ranks had a share of the batch when the checkpoint was written."""
    plan = build_plan(recorded_run(found))
    return plan.segment_of_epoch(max(1, round(plan.epoch_at(found.meta.step)))).active_ranks


def _statistics(
    found: Checkpoint, model: Mapping[str, NDArray[Any]], shapes: Shapes, rank: int, ranks: int
) -> Mapping[str, NDArray[Any]]:
    """The batch-norm statistics for a rank; `model`: the arrays of rank 0's part."""

    def of_rank(rank: int) -> Mapping[str, NDArray[Any]]:
        part = found.part_of(rank)
        return model if part.rank == 0 else found.load(part, shapes)

    if ranks == found.meta.ranks or len(found.parts) == 1:
        return of_rank(rank)
    active = active_ranks(found)
    sums = {name: np.zeros(shape) for name, (shape, _) in shapes.items()}
    for rank in range(active):  # one part in memory at a time
        values = of_rank(rank)
        for name, total in sums.items():
            total += values[name]
    return {name: total / active for name, total in sums.items()}


def _shapes(arrays: Mapping[str, nd.NDArray]) -> Shapes:
    return {name: (array.shape, np.dtype(array.dtype).name) for name, array in arrays.items()}
