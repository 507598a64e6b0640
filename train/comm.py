"""Horovod behind a small face: who we are, reducing gradients in groups, tiny collectives.

Every operation is one of MXNet's engine: it starts when its inputs are ready and nobody waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import nd

from ..config.errors import UserError
from ..scaling.groups import gradient_groups

CONNECT_BYTES = 1 << 20
WIRE_SCALE = 2.0**-7
"""Applied to gradients (sums over a rank's images) that travel as float16, so that they fit."""


class Communicator:
    """The ranks of a run. `start` connects them; all ranks call everything in the same order."""

    def __init__(self, ctx: mx.Context) -> None:
        self._ctx = ctx
        self.rank, self.size = 0, 1
        self._groups: list[list[nd.NDArray]] = []
        self._wire: str | None = None

    def start(self) -> None:
        """Join the other ranks and open the connections with a first allreduce."""
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()
        if self.size > 1:
            first = nd.zeros(CONNECT_BYTES // 4, self._ctx)
            hvd.allreduce(first, op=hvd.Sum, name="connect").wait_to_read()

    def stop(self) -> None:
        """Leave in good order: everything enqueued is done first, or Horovod aborts."""
        nd.waitall()
        hvd.shutdown()

    def plan_groups(self, rule: str, gradients: Sequence[nd.NDArray], wire: str) -> None:
        """Fix the groups in which `reduce` sends `gradients`, and the type on the wire.

        Gradients of another type than most (fp32 batch norm in an fp16 model) go last, in a group
        of their own.
        """
        types = [np.dtype(g.dtype) for g in gradients]
        common = Counter(types).most_common(1)[0][0]
        main = [g for g, t in zip(gradients, types, strict=True) if t == common]
        rest = [g for g, t in zip(gradients, types, strict=True) if t != common]
        sizes = [g.size * common.itemsize for g in main]
        self._groups = [[main[i] for i in group] for group in gradient_groups(rule, sizes)]
        if rest:
            self._groups.append(rest[::-1])
        self._wire = None if wire == "model" or common == np.dtype(wire) else wire

    def reduce(self) -> None:
        """Sum the planned gradients over all ranks, in place, group by group, last layers first.

        A group leaves as soon as backward has written its gradients; names are fixed, so that
        Horovod's response cache answers instead of a negotiation.
        """
        if self.size == 1:
            return
        for number, group in enumerate(self._groups):
            name, priority = f"group{number}", len(self._groups) - number
            if self._wire is None:
                hvd.grouped_allreduce_(group, op=hvd.Sum, name=name, priority=priority)
                continue
            sent = [nd.cast(g * WIRE_SCALE, dtype=self._wire) for g in group]
            hvd.grouped_allreduce_(sent, op=hvd.Sum, name=name, priority=priority)
            for g, summed in zip(group, sent, strict=True):
                g[:] = summed.astype(g.dtype) * (1 / WIRE_SCALE)

    def clear(self) -> None:
        """Zero gradients: the contribution of a rank without a share of the batch."""
        for group in self._groups:
            for g in group:
                g[:] = 0

    def sum_counts(self, counts: nd.NDArray) -> nd.NDArray:
        """Integer counts summed over all ranks, as int32."""
        return hvd.allreduce(counts.astype("int32"), op=hvd.Sum, name="counts")

    def sum_losses(self, losses: nd.NDArray) -> nd.NDArray:
        """A loss summed over all ranks, still on the device."""
        return losses if self.size == 1 else hvd.allreduce(losses, op=hvd.Sum, name="loss")

    def average_(self, arrays: Sequence[nd.NDArray], name: str, active_ranks: int) -> None:
        """Replace arrays by their mean over the first `active_ranks` ranks, on all ranks."""
        if self.size == 1:
            return
        share = 1 / active_ranks if self.rank < active_ranks else 0.0
        for array in arrays:
            array *= share
        hvd.grouped_allreduce_(list(arrays), op=hvd.Sum, name=name)

    def broadcast_(self, parameters: dict[str, Any]) -> None:
        """Rank 0's parameters to everybody: the usual start, kept for comparison."""
        hvd.broadcast_parameters(parameters, root_rank=0)

    def barrier(self) -> None:
        """Wait until all ranks are here (Horovod for MXNet has no barrier of its own)."""
        if self.size > 1:
            hvd.allreduce(nd.zeros(1, self._ctx), op=hvd.Sum, name="barrier").wait_to_read()

    def check_replicas(self, digest: bytes) -> None:
        """Compare a digest over all ranks with one small allgather.

        Raises:
            UserError: naming the ranks that differ from the majority (from rank 0 on a tie).
        """
        if self.size == 1:
            return
        mine = np.frombuffer(digest[:16], dtype=np.int32)
        everyone = hvd.allgather(nd.array(mine[None], dtype="int32"), name="digest").asnumpy()
        rows = [row.tobytes() for row in everyone]
        if odd := differing_ranks(rows):
            raise UserError(
                f"replicas differ after start-up: ranks {', '.join(map(str, odd))} of {self.size} "
                "hold other weights than the rest; same seed, config and library versions expected"
            )


def differing_ranks(digests: Sequence[bytes]) -> list[int]:
    """Ranks whose digest is not that of the majority; a tie is decided for rank 0's."""
    counts = Counter(digests)
    most = max(counts.values())
    common = digests[0] if counts[digests[0]] == most else counts.most_common(1)[0][0]
    return [rank for rank, digest in enumerate(digests) if digest != common]


def context(device: str, local_rank: int) -> mx.Context:
    """The MXNet context of a rank. Raises UserError where the machine has no such device."""
    if device == "cpu":
        return mx.cpu()
    found = mx.context.num_gpus()
    if local_rank >= found:
        raise UserError(
            f"system.device: a GPU for local rank {local_rank} expected, found {found} on this "
            "machine; use system.device=cpu, or mxnet-cu112 from requirements-gpu.txt"
        )
    return mx.gpu(local_rank)
