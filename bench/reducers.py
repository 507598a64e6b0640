"""What `rn50 bench allreduce` times on a rank: MPI alone, or the trainer's communicator.

`mpi` calls Open MPI's C functions and nothing else: the network and the algorithm. `horovod` is the
trainer's communicator: the same plus Horovod's negotiation and MXNet's engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ..logging.timeline import Timeline
from ..scaling.cost import torus_grid
from ..train.process_info import read_process_info

IN_PLACE = ctypes.c_void_p(1)  # MPI_IN_PLACE of Open MPI


class Mpi:
    """MPI by ctypes: allreduce, or the torus in three steps on communicators of its own."""

    def __init__(self, algorithm: str) -> None:
        self._mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
        self._call("Init", None, None)
        self._world = ctypes.c_void_p(ctypes.addressof(self._constant("ompi_mpi_comm_world")))
        self._float = ctypes.byref(self._constant("ompi_mpi_float"))
        self._sum = ctypes.byref(self._constant("ompi_mpi_op_sum"))
        rank, size = ctypes.c_int(), ctypes.c_int()
        self._call("Comm_rank", self._world, ctypes.byref(rank))
        self._call("Comm_size", self._world, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value
        self.columns = 1
        if algorithm.startswith("torus_2d"):
            _, self.columns = torus_grid(algorithm, self.size)
            self._row = self._split(self.rank // self.columns)
            self._column = self._split(self.rank % self.columns)

    def array(self, length: int) -> Any:
        return np.empty(length, np.float32)

    def prepare(self, flat: Any) -> Callable[[], None]:
        count = len(flat)
        out = ctypes.c_void_p(flat.ctypes.data)
        kind, add = self._float, self._sum
        if self.columns == 1:
            return lambda: self._call("Allreduce", IN_PLACE, out, count, kind, add, self._world)
        part = np.empty(count // self.columns, np.float32)
        here = ctypes.c_void_p(part.ctypes.data)
        counts = (ctypes.c_int * self.columns)(*[len(part)] * self.columns)

        def torus() -> None:
            self._call("Reduce_scatter", out, here, counts, kind, add, self._row)
            self._call("Allreduce", IN_PLACE, here, len(part), kind, add, self._column)
            self._call("Allgather", here, len(part), kind, out, len(part), kind, self._row)

        return torus

    def barrier(self) -> None:
        self._call("Barrier", self._world)

    def slowest(self, seconds: list[float]) -> list[float]:
        values = np.array(seconds, np.float32)
        out, largest = ctypes.c_void_p(values.ctypes.data), self._constant("ompi_mpi_op_max")
        self._call(
            *("Allreduce", IN_PLACE, out, len(values), self._float),
            *(ctypes.byref(largest), self._world),
        )
        return values.tolist()

    def stop(self) -> None:
        self._call("Finalize")

    def _constant(self, name: str) -> ctypes.c_char:
        return ctypes.c_char.in_dll(self._mpi, name)

    def _split(self, color: int) -> ctypes.c_void_p:
        new = ctypes.c_void_p()
        self._call("Comm_split", self._world, color, self.rank, ctypes.byref(new))
        return new

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._mpi, f"MPI_{name}")(*arguments):
            raise RuntimeError(f"MPI_{name}: error {code}")


class Horovod:
    """The trainer's communicator."""

    def __init__(self, run: Any) -> None:
        import mxnet as mx

        from ..train.comm import Communicator
        from ..train.connection import Connection

        connection = Connection(run, Timeline(0), over_mpi=read_process_info().over_mpi)
        self._comm = Communicator(mx.cpu(), connection)
        self._comm.start()
        self.rank, self.size = self._comm.rank, self._comm.world_size
        self.columns = max(1, len(connection.columns))
        self._zeros = mx.nd.zeros

    def array(self, length: int) -> Any:
        return self._zeros(length)

    def prepare(self, flat: Any) -> Callable[[], None]:
        def run() -> None:
            self._comm.sum_(flat, f"sum{flat.size}", 0)
            flat.wait_to_read()

        return run

    def barrier(self) -> None:
        self._comm.barrier()

    def slowest(self, seconds: list[float]) -> list[float]:
        import horovod.mxnet as hvd
        from mxnet import nd

        return hvd.allreduce(nd.array(seconds), op=hvd.Max, name="slowest").asnumpy().tolist()

    def stop(self) -> None:
        self._comm.stop()
