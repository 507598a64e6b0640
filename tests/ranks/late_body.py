"""A rank of test_collectives.py, as `python late_body.py CONFIG OUT`.

The second row of a torus has one sum more, for which its last rank is late. The first row is done
meanwhile and leaves.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import horovod.mxnet as hvd
import mxnet as mx

from rn50.config.load import load
from rn50.logging.timeline import Timeline
from rn50.train.comm import Communicator
from rn50.train.connection import Connection
from rn50.train.operators import Operators
from rn50.train.process_info import read_process_info

LATE_S = 1.0


def main(config: str, out: str) -> None:
    connection = Connection(load(config).run, Timeline(0), over_mpi=read_process_info().over_mpi)
    comm = Communicator(Operators(mx.cpu()), connection)
    comm.start()
    row = connection.rows[1]
    if comm.rank in row.ranks:
        time.sleep(LATE_S * (comm.rank == row.ranks[-1]))
        ones = mx.nd.ones(1)
        hvd.allreduce_(ones, op=hvd.Sum, name="late", process_set=row)
    comm.stop()
    if comm.rank in row.ranks:
        assert ones.asscalar() == len(row.ranks)
        (Path(out) / f"summed_{comm.rank}").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
