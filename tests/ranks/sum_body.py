"""A rank of test_collectives.py: `python sum_body.py CONFIG OUT [OVERRIDES ...]`; sums, for each of
OVERRIDES (their keys apart by a space), and the statistics of batch norm, against NumPy's."""

from __future__ import annotations

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
from rn50.train.operators import Operators
from rn50.train.process_info import read_process_info

STEPS = 3
WIDTHS = (7, 33, 100, 5)


def main(config: str, out: str, *kinds: str) -> None:
    """Rank 0 writes the largest error of the sums of each kind, then that of the statistics."""
    run = load(config).run
    connection = Connection(
        run,
        Timeline(0),
        over_mpi=read_process_info().over_mpi,
    )
    connection.begin()
    ctx = device_context(run.system.device, read_process_info().local_rank)
    comm = Communicator(Operators(ctx), connection)
    comm.start()
    worst = [
        sums_error(comm, load(config, kind.split()).run) for kind in kinds or ("",)
    ]
    worst.append(max(statistics_error(comm, mode) for mode in ("average", "batch")))
    comm.stop()
    if comm.rank == 0:
        (Path(out) / "worst.txt").write_text(" ".join(map(repr, worst)))


def sums_error(comm: Communicator, run: Run) -> float:
    """The largest error of `STEPS` sums of random gradients."""
    net = nn.Sequential(prefix="")
    for width in WIDTHS:
        net.add(nn.Dense(width, in_units=3 * width))
    net.add(nn.BatchNorm(in_channels=WIDTHS[-1]))  # stays float32 in a float16 model
    net.initialize(ctx=comm.ctx)
    net.cast(run.model.dtype)
    parameters = [p for p in net.collect_params().values() if p.grad_req != "null"]
    comm.plan_groups(run.comm.groups, parameters, run.comm.gradient_dtype)
    worst = 0.0
    for step in range(STEPS):
        shapes = [p.shape for p in parameters]
        drawn = [
            [
                np.random.default_rng([step, rank, n]).normal(size=s)
                for n, s in enumerate(shapes)
            ]
            for rank in range(comm.world_size)
        ]
        for p, values in zip(parameters, drawn[comm.rank], strict=True):
            p.grad()[:] = values
        comm.reduce()
        for number, p in enumerate(parameters):
            wanted = sum(values[number] for values in drawn)
            worst = max(worst, float(np.abs(p.grad().asnumpy() - wanted).max()))
    return worst


def statistics_error(comm: Communicator, mode: str) -> float:
    """The largest error of means and variances of the images of all ranks but the last, which has
    no share of the batch."""
    images = np.random.default_rng(5).normal(size=(comm.world_size, 50, 7))
    images *= 1 + np.arange(comm.world_size)[:, None, None]
    images += np.arange(comm.world_size)[:, None, None]
    layer = nn.BatchNorm(in_channels=7)
    comm.operators.initialize(layer, mx.init.Zero())
    layer.running_mean.set_data(images[comm.rank].mean(axis=0))
    layer.running_var.set_data(images[comm.rank].var(axis=0))
    sync_bn_statistics(
        layer,
        comm,
        mode=mode,
        active_ranks=comm.world_size - 1,
    )
    active = images[:-1]
    wanted = {
        "average": (active.mean(axis=(0, 1)), active.var(axis=1).mean(axis=0)),
        "batch": (active.mean(axis=(0, 1)), active.var(axis=(0, 1))),
    }[mode]
    found = [p.data().asnumpy() for p in (layer.running_mean, layer.running_var)]
    return max(float(np.abs(f - w).max()) for f, w in zip(found, wanted, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
