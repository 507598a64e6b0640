"""Arrays of a trainer to and from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mxnet import nd
from numpy.typing import NDArray

from ..config.errors import UserError
from .checkpoint import Checkpoint
from .comm import Communicator
from .context import RunContext
from .networks import BatchNormStatistics, load_arrays, trainable
from .optimizer import PREVIOUS_LR, Updater

WEIGHT, STATISTICS = "weight/", "bn_statistics"


def replicated_arrays(net: Any, updater: Updater) -> dict[str, nd.NDArray]:
    """Weights, velocities and masters: the same on all ranks."""
    arrays = {WEIGHT + p.name: p.list_data()[0] for p in trainable(net)}
    return arrays | updater.arrays()


def collect(
    net: Any, updater: Updater, statistics: BatchNormStatistics, comm: Communicator
) -> dict[str, NDArray[Any]]:
    """Everything that training has made, copied to the host; {} on ranks above 0.

    Batch-norm statistics are each rank's own between evaluations and come from all of them:
    (ranks, values). All ranks call this.
    """
    nd.waitall()  # batch-norm statistics change after the engine calls them readable
    own = [array.reshape(-1) for array in statistics.state_dict().values()]
    gathered = comm.gather(nd.concat(*own, dim=0)) if own else None
    if comm.rank != 0:
        return {}
    arrays = {name: array.asnumpy() for name, array in replicated_arrays(net, updater).items()}
    if gathered is not None:
        arrays[STATISTICS] = gathered
    return arrays


def restore(
    found: Checkpoint,
    context: RunContext,
    net: Any,
    updater: Updater,
    statistics: BatchNormStatistics,
) -> None:
    """Put the arrays of `collect` back into place.

    At another rank count every rank gets the mean of the batch-norm statistics of the ranks that
    took part: what an evaluation would have made of them.

    Raises:
        UserError: an array is missing, has another shape or type, or belongs to nothing here.
    """
    wanted, own = replicated_arrays(net, updater), statistics.state_dict()
    total = sum(array.size for array in own.values())
    shapes = {name: (array.shape, np.dtype(array.dtype).name) for name, array in wanted.items()}
    if total:
        shapes[STATISTICS] = ((found.meta.ranks, total), "float32")
    _check_arrays(found, shapes)
    load_arrays({n: array for n, array in wanted.items() if n.startswith(WEIGHT)}, found.arrays)
    updater.load_state_dict({**found.arrays, PREVIOUS_LR: found.meta.previous_lr})
    updater.scaler.load_state_dict(found.meta.loss_scale.model_dump())
    if total:
        rows = found.arrays[STATISTICS]
        if context.plan.ranks == found.meta.ranks:
            row = rows[context.process.rank]
        else:
            epoch = max(1, round(context.plan.epoch_at(found.meta.step)))
            active = context.plan.segment_of_epoch(epoch).active_ranks
            row = rows[:active].mean(axis=0, dtype=np.float64).astype(np.float32)
        parts = np.split(row, np.cumsum([array.size for array in own.values()])[:-1])
        shaped = {n: part.reshape(own[n].shape) for n, part in zip(own, parts, strict=True)}
        statistics.load_state_dict(shaped)
    nd.waitall()


def _check_arrays(found: Checkpoint, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    held = {name: (array.shape, array.dtype.name) for name, array in found.arrays.items()}
    for name in sorted(held.keys() | shapes.keys()):
        if held.get(name) != shapes.get(name):
            wanted, is_there = (
                "no such array" if pair is None else f"{pair[1]} {list(pair[0])}"
                for pair in (shapes.get(name), held.get(name))
            )
            raise UserError(f"{found.path}: {name[:200]}: {wanted} expected, found {is_there}")
