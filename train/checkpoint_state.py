"""Arrays of a trainer to and from a checkpoint."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from mxnet import nd
from numpy.typing import NDArray
from safetensors.numpy import save

from .checkpoint import DIGEST_BYTES, Checkpoint, Part, digest_of
from .comm import Communicator
from .context import RunContext
from .networks import BatchNormStatistics, load_arrays, trainable
from .optimizer import PREVIOUS_LR, Updater

WEIGHT = "weight/"


class Snapshot(NamedTuple):
    """What this rank writes of a checkpoint, on the host."""

    arrays: Mapping[str, NDArray[Any]]
    """Of rank 0; of the others none."""
    others: tuple[Part, ...] = ()
    """Parts that ranks above 0 write, for the manifest."""
    own: Part | None = None
    """This rank's part, `data`; none on rank 0, and where the statistics are rank 0's."""
    data: bytes = b""


def replicated_arrays(net: Any, updater: Updater) -> dict[str, nd.NDArray]:
    """Weights, velocities and masters: the same on all ranks."""
    arrays = {WEIGHT + p.name: p.list_data()[0] for p in trainable(net)}
    return arrays | updater.arrays()


def collect(
    net: Any,
    updater: Updater,
    statistics: BatchNormStatistics,
    comm: Communicator,
    *,
    busy: bool = False,
) -> Snapshot | None:
    """Everything that training has made, copied to the host. All ranks call this.

    Batch-norm statistics are each rank's own between evaluations and stay there: what the ranks
    tell each other is 48 bytes, the digest and size of each one's part.

    Args:
        busy: this rank still writes its last part.

    Returns:
        None where any rank is busy.
    """
    nd.waitall()  # batch-norm statistics change after the engine calls them readable
    own = {name: array.asnumpy() for name, array in statistics.state_dict().items()}
    data = save(own)
    header = struct.pack("<qq", len(data), busy)
    rows = comm.gather_bytes(header + bytes.fromhex(digest_of(data)), "checkpoint")
    if any(struct.unpack("<qq", row[:-DIGEST_BYTES])[1] for row in rows):
        return None
    differ = [rank for rank, row in enumerate(rows) if row != rows[0]]
    if comm.rank != 0:
        own_part = _part(comm.rank, rows[comm.rank]) if comm.rank in differ else None
        return Snapshot({}, own=own_part, data=data)
    arrays = {name: array.asnumpy() for name, array in replicated_arrays(net, updater).items()}
    return Snapshot(arrays | own, tuple(_part(rank, rows[rank]) for rank in differ))


def _part(rank: int, row: bytes) -> Part:
    size_bytes = struct.unpack("<qq", row[:-DIGEST_BYTES])[0]
    return Part(rank=rank, size_bytes=size_bytes, digest=row[-DIGEST_BYTES:].hex())


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
        UserError: a part is torn or damaged, or an array is missing, has another shape or type, or
            belongs to nothing here.
    """
    shapes = _shapes(statistics.state_dict())
    model = found.load(found.parts[0], shapes | _shapes(replicated_arrays(net, updater)))
    load_arrays({WEIGHT + p.name: p.list_data()[0] for p in trainable(net)}, model)
    updater.load_state_dict({**model, PREVIOUS_LR: found.meta.previous_lr})
    updater.scaler.load_state_dict(found.meta.loss_scale.model_dump())

    def of_rank(rank: int) -> Mapping[str, NDArray[Any]]:
        part = found.part_of(rank)
        return model if part.rank == 0 else found.load(part, shapes)

    if context.plan.ranks == found.meta.ranks:
        statistics.load_state_dict(of_rank(context.process.rank))
    else:
        epoch = max(1, round(context.plan.epoch_at(found.meta.step)))
        active = min(context.plan.segment_of_epoch(epoch).active_ranks, found.meta.ranks)
        sums = {name: np.zeros(shape) for name, (shape, _) in shapes.items()}
        for rank in range(active):  # one part in memory at a time
            values = of_rank(rank)
            for name, total in sums.items():
                total += values[name]
        statistics.load_state_dict({name: total / active for name, total in sums.items()})
    nd.waitall()


def _shapes(arrays: Mapping[str, nd.NDArray]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, np.dtype(array.dtype).name) for name, array in arrays.items()}
