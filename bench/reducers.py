"""What `rn50 bench allreduce` times on a rank: MPI alone, or the trainer's communicator.

`mpi` calls MPI's C functions and nothing else: the network and the algorithm. `horovod` is the
trainer's communicator: the same plus Horovod's negotiation and MXNet's engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from ..config.errors import UserError
from ..logging.timeline import Timeline
from ..scaling.cost import torus_grid
from ..train.mpi_library import handles, horovods_mpi
from ..train.process_info import read_process_info


class Mpi:
    """MPI by ctypes: allreduce, or the torus in three steps on communicators of its own."""

    def __init__(self, algorithm: str) -> None:
        found = horovods_mpi()
        if found is None or found.family is None:
            what = "none" if found is None else found.product
            raise UserError(f"--layers mpi: a Horovod over a known MPI expected, found {what}")
        self._mpi = ctypes.CDLL(found.path, mode=ctypes.RTLD_GLOBAL)
        self._call("Init", None, None)
        self._handles = handles(self._mpi, found.family)
        self._world = self._handles.constant("COMM_WORLD")
        self._float, self._sum = map(self._handles.constant, ("FLOAT", "SUM"))
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
        kind, add, in_place = self._float, self._sum, self._handles.in_place
        if self.columns == 1:
            return lambda: self._call("Allreduce", in_place, out, count, kind, add, self._world)
        part = np.empty(count // self.columns, np.float32)
        here = ctypes.c_void_p(part.ctypes.data)
        counts = (ctypes.c_int * self.columns)(*[len(part)] * self.columns)

        def torus() -> None:
            self._call("Reduce_scatter", out, here, counts, kind, add, self._row)
            self._call("Allreduce", in_place, here, len(part), kind, add, self._column)
            self._call("Allgather", here, len(part), kind, out, len(part), kind, self._row)

        return torus

    def barrier(self) -> None:
        self._call("Barrier", self._world)

    def slowest(self, seconds: list[float]) -> list[float]:
        values = np.array(seconds, np.float32)
        out, largest = ctypes.c_void_p(values.ctypes.data), self._handles.constant("MAX")
        self._call(
            *("Allreduce", self._handles.in_place, out, len(values), self._float),
            *(largest, self._world),
        )
        return values.tolist()

    def stop(self) -> None:
        self._call("Finalize")

    def _split(self, color: int) -> ctypes.c_int | ctypes.c_void_p:
        new = self._handles.communicator()
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
        from ..train.operators import Operators

        connection = Connection(run, Timeline(0), over_mpi=read_process_info().over_mpi)
        self._comm = Communicator(Operators(mx.cpu()), connection)
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
