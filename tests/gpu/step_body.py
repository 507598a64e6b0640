"""A rank of test_nodes.py: `python step_body.py CONFIG OUT`. Steps of our own kernels on gradients
summed over ranks, on lazy streams, against the sums and the update of NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.gluon import nn

from rn50.config.load import load
from rn50.config.schema import Optimizer
from rn50.logging.timeline import Timeline
from rn50.train.communication.communicator import Communicator
from rn50.train.communication.communicator import device_context as context
from rn50.train.communication.connection import Connection
from rn50.train.devices import operators_for, updater_for
from rn50.train.network.build import trainable
from rn50.train.process_info import read_process_info
from rn50.train.schedule import Settings
from rn50.train.update.loss_scale import LossScaler
from tests.ranks.sum_body import statistics_error

STEPS = 3
WIDTHS = (300, 100, 700, 200)
LR = 0.25
MOMENTUM = 0.5
BATCH = 4
SCALE = 2.0


def main(config: str, out: str) -> None:
    """Rank 0 writes the largest errors of the weights and of the statistics of batch norm."""
    run = load(config).run
    connection = Connection(
        run,
        Timeline(0),
        over_mpi=read_process_info().over_mpi,
    )
    connection.begin()
    operators = operators_for(run.model, context("gpu", read_process_info().local_rank))
    comm = Communicator(operators, connection)
    comm.start()
    net = nn.Sequential(prefix="")
    for width, inputs in zip(WIDTHS, (50, *WIDTHS), strict=False):
        net.add(nn.Dense(width, in_units=inputs))
    net.add(nn.BatchNorm(in_channels=WIDTHS[-1]))  # stays float32 in a float16 model
    net.cast(run.model.dtype)
    np.random.seed(1)
    mx.random.seed(1)
    operators.initialize(net, mx.init.Normal(0.1))
    parameters = trainable(net)
    comm.plan_groups(run.comm.groups, parameters, run.comm.gradient_dtype)
    rule = Optimizer(variant="sgd", base_lr=LR, weight_decay=0)
    scaler = LossScaler(SCALE)
    updater = updater_for(
        operators,
        parameters,
        rule,
        comm.buckets,
        scaler=scaler,
    )
    weights = [p.data().asnumpy().astype(np.float64) for p in parameters]
    velocities = [np.zeros(w.shape) for w in weights]
    for step in range(1, STEPS + 1):
        ranks = [
            np.random.default_rng([step, rank]) for rank in range(run.system.world_size)
        ]
        drawn = [[rng.normal(size=w.shape) for w in weights] for rng in ranks]
        for p, values in zip(parameters, drawn[comm.rank], strict=True):
            nd.array(
                values,
                mx.cpu(),
                dtype=p.dtype,
            ).copyto(p.grad())  # does not wait
        comm.reduce()
        updater.step(step, Settings(LR, MOMENTUM, BATCH))
        for n, (weight, velocity) in enumerate(zip(weights, velocities, strict=True)):
            gradient = sum(values[n] for values in drawn) / (BATCH * SCALE)
            velocity *= MOMENTUM
            velocity += LR * gradient
            weight -= velocity
    worst = max(
        float(np.abs(p.data().asnumpy() - wanted).max())
        for p, wanted in zip(parameters, weights, strict=True)
    )
    of_statistics = max(statistics_error(comm, mode) for mode in ("average", "batch"))
    comm.stop()
    if comm.rank == 0:
        (Path(out) / "worst.txt").write_text(f"{worst!r} {of_statistics!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
