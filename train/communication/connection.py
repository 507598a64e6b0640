"""Joining the ranks through Horovod's C library alone, so that it can go on while MXNet loads.

Yamazaki et al. (2019, section III-C) start the communicator while the framework starts.
`import horovod.mxnet` needs MXNet and with it 1 to 2 s of Python; the library itself only needs
libmxnet.so, which loads in 0.1 s. The launcher reads this module too, and loads no Horovod.
"""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...config.algorithms import parse_algorithm
from ...config.communication import with_grid
from ...config.engines import WITHOUT_HOOKS
from ...config.schema import Run
from ...config.values import profiled_steps
from ...logging.timeline import Timeline
from ..activity import talks_to_ranks
from ..mxnet_import import load_cuda, load_library
from ..mxnet_package import library
from .mpi_library import horovods_mpi

if TYPE_CHECKING:
    from horovod.common.process_sets import ProcessSet

_THREAD_MULTIPLE = 3  # what Horovod asks MPI for


class Connection:
    """The ranks of `run`, and for a torus on CPUs the process sets of its rows and columns. Raises
    UserError: the ranks do not form the grid that `comm.algorithm` asks for."""

    def __init__(self, run: Run, timeline: Timeline, *, over_mpi: bool) -> None:
        # else Horovod starts no timeline while ranks run
        if profiled_steps(run.log.profile):
            os.environ.setdefault("HOROVOD_TIMELINE", "DYNAMIC")
        self._timeline = timeline
        self._over_mpi = over_mpi
        self._mpi: ctypes.CDLL | None = None
        ranks = run.system.world_size
        self.rows: list[ProcessSet] = []
        self.columns: list[ProcessSet] = []
        if run.system.device == "cpu" and run.comm.algorithm.startswith("torus_2d"):
            from horovod.common.process_sets import ProcessSet

            algorithm = with_grid(run.comm.algorithm, run.system, ranks)
            _, sides = parse_algorithm(algorithm, ranks)
            numbers = np.arange(ranks).reshape(sides or ranks)
            self.rows = [ProcessSet(row.tolist()) for row in numbers]
            self.columns = [ProcessSet(column.tolist()) for column in numbers.T]
        self._joined: Future[None] | None = None
        self.delay_s = 0.0
        """Joining takes so much longer: what connections between many ranks cost (benchmarks)."""

    @property
    def process_sets(self) -> list[ProcessSet]:
        """The process sets of the rows and columns of a torus; empty without one."""
        return [*self.rows, *self.columns]

    def begin(self) -> None:
        """Start joining in a thread of its own.

        Over MPI that is MPI's own part, if it is an MPI that is known; else nothing. Horovod's
        waits for `wait`: from then on its thread talks to the other ranks in every cycle, waiting
        in MPI with a core that loading MXNet needs (4 ranks on 2 cores, 5 ms of latency: start-up
        in 9.4 s instead of 5.6).

        An MPI that may change code which other threads run has started when this returns.
        """
        changes_code = not WITHOUT_HOOKS.items() <= os.environ.items()
        pool = ThreadPoolExecutor(1, thread_name_prefix="join")
        self._joined = pool.submit(self._join)
        pool.shutdown(wait=self._over_mpi and changes_code)

    def wait(self) -> None:
        """Return when this rank has joined the others. Raises what joining raised."""
        if self._joined is None:
            self._join()
        else:
            self._joined.result()
        if self._over_mpi:
            self._start_horovod()

    def leave(self) -> None:
        """End MPI after Horovod's shutdown, which leaves that to who started MPI."""
        if self._mpi is not None:
            self._mpi.MPI_Finalize()

    def _join(self) -> None:
        with self._timeline.span("join ranks"):
            time.sleep(self.delay_s)
            path = library()
            # before MPI, which may be linked to another CUDA, and MXNet's library
            if path:
                load_cuda(path.parent)
            if self._over_mpi:
                self._mpi = _start_mpi()
            else:
                self._start_horovod()

    def _start_horovod(self) -> None:
        from horovod.common import process_sets
        from horovod.common.basics import HorovodBasics

        # what Horovod's links to, found by name once it is loaded
        if path := library():
            load_library(path)
        package = Path(process_sets.__file__).parents[1]
        basics = HorovodBasics(str(package / "mxnet" / "__init__.py"), "mpi_lib")
        process_sets._setup(basics)
        with talks_to_ranks():
            basics.init(process_sets=self.process_sets)


def _start_mpi() -> ctypes.CDLL | None:
    """MPI after MPI_Init_thread, whose arguments are the same in every MPI; None: the MPI's family
    is not known, and Horovod starts it."""
    library = horovods_mpi()
    if library is None or library.family is None:
        return None
    mpi = ctypes.CDLL(library.path, mode=ctypes.RTLD_GLOBAL)
    provided = ctypes.c_int()
    with talks_to_ranks():
        mpi.MPI_Init_thread(None, None, _THREAD_MULTIPLE, ctypes.byref(provided))
    return mpi
