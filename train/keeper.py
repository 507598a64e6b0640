"""What of a rank goes into a checkpoint, how it comes back, and the thread that writes it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import nd
from numpy.typing import NDArray

from ..config.errors import UserError
from . import checkpoint
from .checkpoint import Checkpoint, Meta
from .comm import Communicator
from .loss_scale import Scale
from .networks import bn_statistics, trainable
from .optimizer import Updater
from .progress import warn

STATISTICS = "bn_statistics"


def collect(net: Any, updater: Updater, comm: Communicator) -> dict[str, NDArray[Any]]:
    """Everything that training has made, copied to the host; {} on ranks above 0.

    Weights, velocities and masters are the same on all ranks. Batch-norm statistics are each
    rank's own between evaluations and come from all of them: (ranks, values). All ranks call this.
    """
    nd.waitall()  # batch-norm statistics change after the engine calls them readable
    statistics = [p.data() for p in bn_statistics(net)]
    gathered = None
    if statistics:
        gathered = comm.gather(nd.concat(*(s.reshape(-1) for s in statistics), dim=0))
    if comm.rank != 0:
        return {}
    arrays = {f"weight/{p.name}": p.list_data()[0].asnumpy() for p in trainable(net)}
    arrays |= {name: array.asnumpy() for name, array in updater.state().items()}
    if gathered is not None:
        arrays[STATISTICS] = gathered
    return arrays


def restore(
    found: Checkpoint, net: Any, updater: Updater, *, rank: int, ranks: int, active_ranks: int
) -> None:
    """Put the arrays of `collect` back into place.

    At another rank count every rank gets the mean of the batch-norm statistics of the ranks that
    took part: what an evaluation would have made of them.

    Raises:
        UserError: an array is missing, has another shape or type, or belongs to nothing here.
    """
    wanted: dict[str, nd.NDArray] = {f"weight/{p.name}": p.list_data()[0] for p in trainable(net)}
    wanted |= updater.state()
    statistics = [p.data() for p in bn_statistics(net)]
    total = sum(s.size for s in statistics)
    shapes = {name: (array.shape, np.dtype(array.dtype).name) for name, array in wanted.items()}
    if total:
        shapes[STATISTICS] = ((found.meta.ranks, total), "float32")
    _check_arrays(found, shapes)
    for name, array in wanted.items():
        array[:] = mx.nd.array(found.arrays[name], dtype=array.dtype)
    if total:
        rows = found.arrays[STATISTICS]
        if ranks == found.meta.ranks:
            row = rows[rank]
        else:
            row = rows[:active_ranks].mean(axis=0, dtype=np.float64).astype(np.float32)
        start = 0
        for array in statistics:
            values = row[start : start + array.size].reshape(array.shape)
            array[:] = mx.nd.array(values)
            start += array.size
    meta = found.meta
    updater.previous_lr = meta.previous_lr
    if updater.scaler.is_dynamic:
        scale = Scale(meta.loss_scale, meta.loss_scale_clean_steps)
        updater.scaler.restore(scale, meta.loss_scale_answers)
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


class Writer:
    """Writes checkpoints in a thread; keeps the newest `keep` and the best. Rank 0's.

    A checkpoint that cannot be written (a full disk) costs a warning, not the run; those before it
    stay whole.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Is the last one still being written?"""
        return self._running is not None and not self._running.done()

    def begin(self, meta: Meta, arrays: Mapping[str, NDArray[Any]], *, is_best: bool) -> None:
        """Start writing; the arrays must not change any more."""
        self._running = self._pool.submit(self._write, meta, arrays, is_best)

    def finish(self) -> None:
        """Wait until all is written."""
        if self._running is not None:
            self._running.result()

    def _write(self, meta: Meta, arrays: Mapping[str, NDArray[Any]], is_best: bool) -> None:
        path = self._folder / checkpoint.file_name(meta.step)
        try:
            self._folder.mkdir(exist_ok=True)
            checkpoint.write(path, meta, arrays)
            if is_best:
                checkpoint.mark_best(path)
            checkpoint.prune(self._folder, self._keep)
        except OSError as error:
            warn(
                f"no checkpoint of step {meta.step}: {path}: cannot write: {error.strerror}; "
                "training goes on"
            )
