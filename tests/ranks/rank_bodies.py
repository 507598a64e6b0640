"""What single ranks run in tests: `python rank_bodies.py NAME`, then what `rn50.train` gets.

A name replaces one function of the trainer by one that does a little more; an empty one, none.
"""

import os
import sys
import time
from typing import Any

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import mxnet as mx
import numpy as np

from rn50.train import __main__ as entry
from rn50.train import run, trainer
from rn50.train.context import RunContext

build_model = trainer.build_model
log_point = run.log_point


def other_weights(context: RunContext, *more: Any) -> Any:
    """Rank 1 differs from the rest by the last bit of one weight."""
    model = build_model(context, *more)
    if context.process.rank == 1:
        weight = model.net.collect_params()["fc_weight"].data()
        following = np.nextafter(weight.asnumpy(), np.float32(np.inf))
        weight[0, 0] = following[0, 0]
    return model


def stops(rank: trainer.Trainer, *more: Any) -> None:
    """Rank 0 hangs after its first log point, so that a signal finds it in the middle."""
    log_point(rank, *more)
    if rank.context.process.rank == 0:
        print("hanging", os.getpid(), flush=True)
        time.sleep(600)


def on_second_cpu(*_: Any) -> mx.Context:
    """Trains on cpu(1): MXNet refuses an operator whose arrays are not all there."""
    return mx.cpu(1)


BODIES: dict[str, tuple[Any, str, Any]] = {
    "OtherWeights": (trainer, "build_model", other_weights),
    "Stops": (run, "log_point", stops),
    "OnSecondCpu": (trainer, "device_context", on_second_cpu),
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name:
        setattr(*BODIES[name])
    entry.main(arguments)
