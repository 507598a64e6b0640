"""A rank of test_nodes.py: `python step_body.py CONFIG OUT`. Steps of our own kernels on gradients
summed over ranks, on lazy streams, against the sums and the update of NumPy."""

import sys
from pathlib import Path
from typing import Any

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.gluon import nn

from rn50.config.load import load
from rn50.config.schema import Optimizer
from rn50.train.devices import updater_for
from rn50.train.network.build import trainable
from rn50.train.schedule import Settings
from rn50.train.update.loss_scale import LossScaler
from tests.gpu.steps import join
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
    comm = join(run)
    net = nn.Sequential(prefix="")
    inputs = 50
    for width in WIDTHS:
        net.add(nn.Dense(width, in_units=inputs))
        inputs = width
    net.add(nn.BatchNorm(in_channels=inputs))  # stays float32 in a float16 model
    net.cast(run.model.dtype)
    np.random.seed(1)
    mx.random.seed(1)
    comm.operators.initialize(net, mx.init.Normal(0.1))
    parameters = trainable(net)
    comm.plan_groups(run.comm.groups, parameters, run.comm.gradient_dtype)
    rule = Optimizer(variant="sgd", base_lr=LR, weight_decay=0)
    scaler = LossScaler(SCALE)
    updater = updater_for(comm.operators, parameters, rule, comm.buckets, scaler=scaler)
    weights = [values_of(p) for p in parameters]
    velocities = [np.zeros(w.shape) for w in weights]
    for step in range(1, STEPS + 1):
        gradients = [np.zeros(w.shape) for w in weights]
        for rank in range(run.system.world_size):
            rng = np.random.default_rng([step, rank])
            for p, gradient in zip(parameters, gradients, strict=True):
                rank_gradient = rng.normal(size=p.shape)
                gradient += rank_gradient / (BATCH * SCALE)
                if rank == comm.rank:
                    on_host = nd.array(rank_gradient, mx.cpu(), dtype=p.dtype)
                    on_host.copyto(p.grad())  # does not wait
        comm.reduce()
        updater.step(step, Settings(LR, MOMENTUM, BATCH))
        for arrays in zip(weights, velocities, gradients, strict=True):
            weight, velocity, gradient = arrays
            velocity *= MOMENTUM
            velocity += LR * gradient
            weight -= velocity
    errors = [
        np.abs(values_of(p) - weight).max()
        for p, weight in zip(parameters, weights, strict=True)
    ]
    of_statistics = max(statistics_error(comm, mode) for mode in ("average", "batch"))
    comm.stop()
    if comm.rank == 0:
        (Path(out) / "worst.txt").write_text(f"{max(errors)} {of_statistics}")


def values_of(parameter: Any) -> np.ndarray:
    values = parameter.data().asnumpy()
    return values.astype(np.float64)


if __name__ == "__main__":
    main(*sys.argv[1:])
