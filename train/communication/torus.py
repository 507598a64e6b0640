"""2D-torus allreduce on CPU ranks (Mikami et al. 2018, section 2.2) over Horovod's process sets.

Ranks form a grid of `rows` x `columns`, rank = row * columns + column: reduce-scatter along the
row, allreduce along the column on 1/columns of the data, allgather along the row. On GPUs Horovod
has its own (HOROVOD_TORUS_ALLREDUCE).
"""

from __future__ import annotations

import ctypes

import horovod.mxnet as hvd
from horovod.mxnet.mpi_ops import MPI_MXNET_LIB_CTYPES as LIBRARY
from mxnet import nd
from mxnet.base import c_str, check_call

from .connection import Connection


class Torus:
    """Sums over the grid of a `Connection`; keeps the parts in which sums stay scattered."""

    def __init__(self, connection: Connection) -> None:
        self.columns = len(connection.columns)
        self._connection = connection
        self._parts: dict[str, nd.NDArray] = {}

    def sum_(self, flat: nd.NDArray, name: str, priority: int) -> None:
        """Sum `flat`, whose length is a multiple of the columns, over all ranks, in place.

        Enqueues and returns. Horovod's Python functions for the first and the last of the three
        wait for their results, which would end the overlap with backward; the C entry points
        below them do not.
        """
        row, column = divmod(hvd.rank(), self.columns)
        if name not in self._parts:
            size = flat.size // self.columns
            self._parts[name] = nd.zeros(size, flat.context, dtype=flat.dtype)
        part = self._parts[name]
        row_set = ctypes.c_int(self._connection.rows[row].process_set_id)
        arrays = ctypes.c_int(1)
        scale = ctypes.c_double(1)  # before the sum, and after it
        check_call(
            LIBRARY.horovod_mxnet_reducescatter_async(
                ctypes.byref(flat.handle),
                ctypes.byref(part.handle),
                c_str(f"{name}.row{row}.reducescatter"),
                ctypes.c_int(priority),
                row_set,
                arrays,
                ctypes.c_int(hvd.Sum),
                scale,
                scale,
            )
        )
        hvd.allreduce_(
            part,
            op=hvd.Sum,
            name=f"{name}.column{column}.allreduce",
            priority=priority,
            process_set=self._connection.columns[column],
        )
        check_call(
            LIBRARY.horovod_mxnet_allgather_async(
                ctypes.byref(part.handle),
                ctypes.byref(flat.handle),
                c_str(f"{name}.row{row}.allgather"),
                ctypes.c_int(priority),
                row_set,
                arrays,
            )
        )
