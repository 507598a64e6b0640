"""Horovod behind a small face: who we are, reducing gradients in groups, tiny collectives.

Every operation is one of MXNet's engine: it starts when its inputs are ready, and in a step no rank
waits. `start`, `stop`, `barrier`, `gather_bytes` and `check_replicas` do: they are between steps.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.ndarray import NDArray

from ...host.errors import UserError
from ..cuda.driver import check_machine, visible_gpu
from ..operators import Operators
from ..stopping import AllRanksError
from .buckets import lay_out_gradients
from .connection import Connection
from .identity import Division, divide
from .torus import Torus

CONNECT_BYTES = 1 << 20
WIRE_SCALE = 2.0**-7
"""Applied to gradients (sums over a rank's images) that travel as float16, so that they fit."""


class Communicator:
    """The ranks of a run. `start` connects them; all ranks call everything in the same order.

    Args:
        operators: of the device where gradients live.
        connection: joined or joining. Every algorithm but the 2D torus on CPUs is the engines'
            own, chosen by variables of launch/engine_environment.py.
    """

    def __init__(self, operators: Operators, connection: Connection) -> None:
        self.operators = operators
        self.ctx = operators.ctx
        self._connection = connection
        self.rank = 0
        self.world_size = 1
        self._torus = Torus(connection) if connection.rows else None
        self._parts = self._torus.columns if self._torus else 1
        self.buckets: list[NDArray] = []
        """The gradients, group by group."""
        self.written_last: list[NDArray] = []
        """The last group of each type that backward completes (batch norm's may be its
        own)."""
        self._wire: list[NDArray] = []
        """The arrays in which the groups travel: of their own where that is as float16."""
        self.agreed_step: int | None = None
        """The last step after which all ranks held the same weights; None: never compared."""
        self.agreed_digest = b""
        """The digest of these weights, once an evaluation has compared them."""

    def start(self) -> None:
        """Join the other ranks and open the connections with a first allreduce."""
        self._connection.wait()
        # joined: the Python side alone
        hvd.init(process_sets=self._connection.process_sets)
        self.rank = hvd.rank()
        self.world_size = hvd.size()
        self._open_connections()

    def _open_connections(self) -> None:
        if self.ctx.device_type == "gpu":
            if not hvd.nccl_built():
                raise UserError(
                    "Horovod over NCCL for GPU ranks expected, found one built without it: "
                    "scripts/setup.sh --gpu"
                )
            self._check_gpus()
        size = CONNECT_BYTES // 4 // self._parts * self._parts
        first = self.operators.zeros(size)
        self.sum_(first, "connect", 0)
        first.wait_to_read()  # connecting belongs to start-up, not to the first step

    def _check_gpus(self) -> None:
        """Raise AllRanksError: ranks of a node share a GPU, which NCCL refuses, and of which
        Horovod says no more than that it has been shut down."""
        gpu = f"{hvd.cross_rank():08} {visible_gpu(self.ctx.device_id).uuid:47}"
        gpus = [row.decode() for row in self.gather_bytes(gpu.encode(), "gpus")]
        first, *more = divide(gpus).groups[0]
        if more:
            names = self.gather_names()
            raise AllRanksError(
                f"system.ranks_per_node: a GPU for each rank expected, found "
                f"{gpus[first].split()[1]} for {names[first]} and {names[more[0]]}",
                retryable=False,
            )

    def stop(self) -> None:
        """Leave in good order: everything enqueued is done first, or Horovod aborts."""
        nd.waitall()
        self.barrier()  # the first to shut down would abort what another row of a torus still sums
        hvd.shutdown()
        self._connection.leave()

    def plan_groups(
        self, rule: str, parameters: Sequence[Any], gradient_dtype: str
    ) -> None:
        """Fix the groups in which `reduce` sends the gradients, and the type on the wire.

        From here on the gradients of `parameters` are views into the groups' arrays. Needs no
        connection. Raises UserError where the rule does not fit the network.
        """
        self.buckets = lay_out_gradients(
            parameters, rule, self.operators, parts=self._parts
        )
        last_of_type = {bucket.dtype: bucket for bucket in self.buckets}
        self.written_last = list(last_of_type.values())
        self._wire = [
            self.operators.zeros(bucket.shape, gradient_dtype)
            if gradient_dtype == "float16" and bucket.dtype != np.float16
            else bucket
            for bucket in self.buckets
        ]

    @property
    def step_bytes(self) -> int:
        """What `reduce` sums, as it travels."""
        return sum(array.size * np.dtype(array.dtype).itemsize for array in self._wire)

    def reduce(self) -> None:
        """Sum the planned gradients over all ranks, in place, group by group, last layers first.

        A group leaves as soon as backward has written its gradients; names are fixed, so that
        Horovod's response cache answers instead of a negotiation.
        """
        groups = zip(self.buckets, self._wire, strict=True)
        for number, (bucket, wire) in enumerate(groups):
            if wire is not bucket:
                self.operators.narrow(bucket, wire, WIRE_SCALE)
            self.sum_(wire, f"group{number}", len(self.buckets) - number)
            if wire is not bucket:
                self.operators.widen(wire, bucket, 1 / WIRE_SCALE)

    def sum_(self, flat: NDArray, name: str, priority: int) -> None:
        """Sum a flat array over all ranks, in place."""
        if self._torus:
            self._torus.sum_(flat, name, priority)
        else:
            hvd.allreduce_(flat, op=hvd.Sum, name=name, priority=priority)

    def clear(self) -> None:
        """Zero gradients: the contribution of a rank without a share of the batch."""
        for bucket in self.buckets:
            self.operators.fill(bucket, 0)

    def add_up(self, array: NDArray, name: str) -> NDArray:
        """A few numbers summed over all ranks, in place, still on the device."""
        return hvd.allreduce_(array, op=hvd.Sum, name=name)

    def average_(self, arrays: Sequence[NDArray], active_ranks: int) -> None:
        """Replace batch-norm statistics by their mean over the first `active_ranks` ranks, on all
        ranks."""
        share = 1 / active_ranks if self.rank < active_ranks else 0.0
        for array in arrays:
            self.operators.scale(array, share)
        hvd.grouped_allreduce_(arrays, op=hvd.Sum, name="bn_statistics")

    def gather_bytes(self, data: bytes, name: str) -> list[bytes]:
        """A few bytes of every rank, as many of each (a multiple of 4), by rank."""
        numbers = np.frombuffer(data, dtype=np.int32)
        row = nd.array(numbers[None], dtype="int32")
        rows = hvd.allgather(row, name=name)
        return [row.tobytes() for row in rows.asnumpy()]

    def gather_names(self) -> list[str]:
        """Each rank with its host, for messages."""
        host = socket.gethostname().encode()[:64]
        hosts = self.gather_bytes(host.ljust(64, b"\0"), "hosts")
        return [
            f"rank {rank} on {name.rstrip(bytes(1)).decode()}"
            for rank, name in enumerate(hosts)
        ]

    def broadcast_(self, parameters: dict[str, Any]) -> None:
        """Rank 0's parameters to everybody: the usual start, kept for comparison."""
        hvd.broadcast_parameters(parameters, root_rank=0)

    def barrier(self) -> None:
        """Wait until all ranks are here (Horovod for MXNet has no barrier of its own)."""
        # In host memory: Horovod's own thread completes such a sum. That a sum on a GPU is done is
        # told by another thread, which ends with the first rank's shutdown. Where that came first,
        # a rank that was still in `stop` waited for ever.
        self.add_up(nd.zeros(1), "barrier").wait_to_read()

    def check_replicas(
        self, digests: Mapping[str, bytes], when: str, step: int
    ) -> None:
        """Compare what ranks must have in common with one small allgather: 16 bytes of each part,
        such as the weights after `step`. Raises AllRanksError: naming the ranks that differ
        from more than half of all, or those that may, their hosts, and in what."""
        rows = self.gather_bytes(b"".join(digests.values()), "digest")
        parts = defaultdict[Division, list[str]](list)
        for number, part in enumerate(digests):
            digest = slice(16 * number, 16 * number + 16)
            division = divide([row[digest] for row in rows])
            if division.differ:
                parts[division].append(part)
        if not parts:
            self.agreed_step = step
            return
        names = self.gather_names()
        reason = "; ".join(
            division.named(names, ", ".join(parts[division])) for division in parts
        )
        if len(digests) == 1:
            reason += "; a fault of memory or node, or another config"
        if self.agreed_step is not None:
            reason += f"; all ranks last agreed after step {self.agreed_step}"
        raise AllRanksError(
            f"replicas differ {when}: {reason}", agreed_step=self.agreed_step
        )


class LoneCommunicator(Communicator):
    """One rank without others: every sum is its own share, nothing is sent and nothing waits."""

    step_bytes = 0

    def _open_connections(self) -> None:
        pass

    def reduce(self) -> None:
        """The sum over one rank is there already."""

    def add_up(self, array: NDArray, name: str) -> NDArray:  # noqa: ARG002
        """The array as it is."""
        return array

    def average_(self, arrays: Sequence[NDArray], active_ranks: int) -> None:
        """The mean over one rank is there already."""

    def gather_bytes(
        self,
        data: bytes,
        name: str,  # noqa: ARG002
    ) -> list[bytes]:
        """The bytes of this rank alone."""
        return [data]


def communicator(
    operators: Operators, connection: Connection, ranks: int
) -> Communicator:
    """The communicator of one of `ranks` ranks."""
    communicator_class = Communicator if ranks > 1 else LoneCommunicator
    return communicator_class(operators, connection)


def device_context(device: str, local_rank: int) -> mx.Context:
    """The MXNet context of a rank. Raises UserError where the machine has no such device."""
    if device == "cpu":
        return mx.cpu()
    number, _ = check_machine(local_rank)
    if not mx.context.num_gpus():
        raise UserError(
            "system.device: MXNet for GPUs (scripts/setup.sh --gpu) for gpu expected, found one "
            "for CPUs"
        )
    return mx.gpu(number)
