"""A rank of test_collectives.py: `python sum_body.py CONFIG OUT [OVERRIDES ...]`; sums, for each of
OVERRIDES (their keys apart by a space), and the statistics of batch norm, against NumPy's."""

import sys
from pathlib import Path

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import mxnet as mx
import numpy as np
from mxnet.gluon import nn

from rn50.config.load import load
from rn50.config.schema import Run
from rn50.logging.timeline import Timeline
from rn50.train.communication.communicator import Communicator, device_context
from rn50.train.communication.connection import Connection
from rn50.train.evaluate import sync_bn_statistics
from rn50.train.network.build import trainable
from rn50.train.operators import Operators
from rn50.train.process_info import read_process_info

STEPS = 3
WIDTHS = (7, 33, 100, 5)


def main(config: str, out: str, *cases: str) -> None:
    """Rank 0 writes the largest error of the sums of each case, then that of the statistics."""
    run = load(config).run
    process = read_process_info()
    connection = Connection(run, Timeline(0), over_mpi=process.over_mpi)
    connection.begin()
    ctx = device_context(run.system.device, process.local_rank)
    comm = Communicator(Operators(ctx), connection)
    comm.start()
    runs = [load(config, overrides.split()).run for overrides in cases or ("",)]
    worst = [sums_error(comm, run) for run in runs]
    of_modes = [statistics_error(comm, mode) for mode in ("average", "batch")]
    worst.append(max(of_modes))
    comm.stop()
    if comm.rank == 0:
        errors = " ".join(map(repr, worst))
        (Path(out) / "worst.txt").write_text(errors)


def sums_error(comm: Communicator, run: Run) -> float:
    """The largest error of `STEPS` sums of random gradients."""
    net = nn.Sequential(prefix="")
    for width in WIDTHS:
        net.add(nn.Dense(width, in_units=3 * width))
    net.add(nn.BatchNorm(in_channels=WIDTHS[-1]))  # stays float32 in a float16 model
    net.initialize(ctx=comm.ctx)
    net.cast(run.model.dtype)
    parameters = trainable(net)
    comm.plan_groups(run.comm.groups, parameters, run.comm.gradient_dtype)
    errors = []
    for step in range(STEPS):
        rng = np.random.default_rng(step)
        sums = []
        for p in parameters:
            of_ranks = rng.normal(size=(comm.world_size, *p.shape))
            p.grad()[:] = of_ranks[comm.rank]
            sums.append(of_ranks.sum(axis=0))
        comm.reduce()
        for p, expected in zip(parameters, sums, strict=True):
            error = p.grad().asnumpy() - expected
            errors.append(np.abs(error).max())
    return float(max(errors))


def statistics_error(comm: Communicator, mode: str) -> float:
    """The largest error of means and variances of the images of all ranks but the last, which has
    no share of the batch."""
    images = np.random.default_rng(5).normal(size=(comm.world_size, 50, 7))
    ranks = np.arange(comm.world_size)[:, None, None]
    images = images * (1 + ranks) + ranks
    layer = nn.BatchNorm(in_channels=7)
    comm.operators.initialize(layer, mx.init.Zero())
    of_rank = images[comm.rank]
    layer.running_mean.set_data(of_rank.mean(axis=0))
    layer.running_var.set_data(of_rank.var(axis=0))
    sync_bn_statistics(layer, comm, mode=mode, active_ranks=comm.world_size - 1)
    active = images[:-1]
    variances = {
        "average": active.var(axis=1).mean(axis=0),
        "batch": active.var(axis=(0, 1)),
    }
    errors = [
        layer.running_mean.data().asnumpy() - active.mean(axis=(0, 1)),
        layer.running_var.data().asnumpy() - variances[mode],
    ]
    return float(np.abs(errors).max())


if __name__ == "__main__":
    main(*sys.argv[1:])
