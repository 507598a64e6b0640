"""A checkpoint's arrays back into a trainer, or into a network alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mxnet import nd

from ...config.plan import build_plan
from ..context import RunContext
from ..network.build import statistics_arrays, weight_arrays
from ..update.optimizer import Updater
from .file import Checkpoint
from .resume import recorded_run


def restore(
    checkpoint: Checkpoint, context: RunContext, net: Any, updater: Updater
) -> None:
    """Put what `checkpointer.collect` took back into place.

    At another rank count every rank gets the batch-norm statistics that an evaluation would have
    made of those of the ranks that took part: their mean, or with `eval.bn_stats=batch` those of
    all their images. Raises UserError: the file is torn or
    damaged, or an array is missing, has another shape or type, or belongs to nothing here."""
    arrays = weight_arrays(net) | updater.arrays()
    _load(
        checkpoint,
        net,
        arrays,
        context.process.rank,
        context.plan.ranks,
    )
    updater.previous_lr = checkpoint.meta.previous_lr
    updater.scaler.restore(checkpoint.meta.loss_scale)


def restore_network(
    checkpoint: Checkpoint,
    net: Any,
    *,
    rank: int = 0,
    ranks: int = 1,
) -> None:
    """Fill the weights and batch-norm statistics of a network of the checkpoint's own layout and
    types, on one of `ranks` ranks. Statistics at another rank count, errors: as of `restore`."""
    _load(
        checkpoint,
        net,
        weight_arrays(net),
        rank,
        ranks,
        some=True,
    )


def active_ranks(checkpoint: Checkpoint) -> int:
    """How many ranks had a share of the batch when the checkpoint was written."""
    plan = build_plan(recorded_run(checkpoint))
    return plan.segment_of_step(max(1, checkpoint.meta.step)).active_ranks


def _load(
    checkpoint: Checkpoint,
    net: Any,
    arrays: dict[str, nd.NDArray],
    rank: int,
    ranks: int,
    *,
    some: bool = False,
) -> None:
    """Fill `arrays` and the statistics of a network."""
    statistics = statistics_arrays(net)
    rows = checkpoint.meta.statistics_rows
    shapes = _shapes(arrays) | _shapes(statistics, rows)
    held = checkpoint.load(shapes, some=some)
    values = dict(held)
    active = active_ranks(checkpoint)
    is_of_batch = recorded_run(checkpoint).eval.bn_stats == "batch"
    for name in statistics:
        if rows == 1:
            values[name] = held[name][0]
        elif ranks == checkpoint.meta.ranks:
            values[name] = held[name][rank]
        else:
            of_ranks = held[name][:active]
            values[name] = of_ranks.mean(axis=0, dtype=np.float64)
            if is_of_batch and name.endswith("var"):
                means = held[f"{name.removesuffix('var')}mean"][:active]
                values[name] += means.var(axis=0, dtype=np.float64)
    for name, array in (arrays | statistics).items():
        array[:] = nd.array(values[name], dtype=array.dtype)
    nd.waitall()


def _shapes(
    arrays: Mapping[str, nd.NDArray], *rows: int
) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shapes of arrays in a file, with `rows` before each."""
    return {
        name: ((*rows, *array.shape), np.dtype(array.dtype).name)
        for name, array in arrays.items()
    }
