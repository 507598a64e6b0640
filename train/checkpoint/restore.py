"""A checkpoint's arrays back into a trainer, or into a network alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mxnet import nd

from ...config.plan import build_plan
from ..network.build import statistics_arrays, weight_arrays
from ..update.optimizer import Updater
from .file import Checkpoint
from .resume import recorded_run


def restore(
    checkpoint: Checkpoint,
    net: Any,
    updater: Updater | None = None,
    *,
    rank: int = 0,
    ranks: int = 1,
    bn_stats: str | None = None,
) -> None:
    """Put what `collect` (`train/checkpointer.py`) took back into place, on one of `ranks` ranks:
    into a network of the checkpoint's own layout and types, and into the updater of a run that goes
    on.

    At another rank count every rank gets the batch-norm statistics that an evaluation would have
    made of those of the ranks that took part: their mean, or with `eval.bn_stats=batch` those of
    all their images. Raises UserError: the file is torn or damaged, or an array is missing or
    has another shape or type.

    Args:
        checkpoint: which is read.
        net: gets the weights and statistics.
        updater: gets its arrays and the loss scale, where a run goes on.
        rank: of this process.
        ranks: of this run; the checkpoint may have been written by another number.
        bn_stats: in place of the recorded run's `eval.bn_stats`.
    """
    arrays = weight_arrays(net)
    if updater is not None:
        arrays |= updater.arrays()
    statistics = statistics_arrays(net)
    meta = checkpoint.meta
    rows = meta.statistics_rows
    shapes = _shapes(arrays)
    shapes |= _shapes(statistics, rows)
    stored = checkpoint.load(shapes)
    values = dict(stored)
    active = active_ranks(checkpoint)
    recorded = recorded_run(checkpoint).eval.bn_stats
    is_of_batch = (bn_stats or recorded) == "batch"
    for name in statistics:
        of_ranks = stored[name]
        if rows == 1 or ranks == meta.ranks:
            values[name] = of_ranks[rank % rows]
            continue
        of_active = of_ranks[:active]
        values[name] = of_active.mean(axis=0, dtype=np.float64)
        # of all their images: the mean of the variances, and the variance of the means
        if is_of_batch and name.endswith("var"):
            stem = name.removesuffix("var")
            means = stored[f"{stem}mean"]
            means_of_active = means[:active]
            values[name] += means_of_active.var(axis=0, dtype=np.float64)
    for name, array in (arrays | statistics).items():
        array[:] = nd.array(values[name], dtype=array.dtype)
    nd.waitall()
    if updater is not None:
        updater.previous_lr = meta.previous_lr
        updater.scaler.restore(meta.loss_scale)


def active_ranks(checkpoint: Checkpoint) -> int:
    """How many ranks had a share of the batch when the checkpoint was written."""
    plan = build_plan(recorded_run(checkpoint))
    return plan.segment_of_step(max(1, checkpoint.meta.step)).active_ranks


def _shapes(
    arrays: Mapping[str, nd.NDArray], *rows: int
) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shapes of arrays in a file, with `rows` before each."""
    return {
        name: ((*rows, *array.shape), np.dtype(array.dtype).name)
        for name, array in arrays.items()
    }
