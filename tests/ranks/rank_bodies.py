"""What single ranks run in tests: `python rank_bodies.py NAME[+NAME]`, then what `rn50.train` gets.

Each name replaces one function of the trainer by one that does a little more.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
import mxnet as mx
import numpy as np

from rn50.train import __main__ as entry
from rn50.train import run, trainer
from rn50.train.context import RunContext

build_model, build_sources, log_point = trainer.build_model, trainer.build_sources, run.log_point


def other_weights(context: RunContext, *more: Any) -> Any:
    """Rank 1 differs from the rest by the last bit of one weight."""
    model = build_model(context, *more)
    if context.process.rank == 1:
        weight = model.net.collect_params()["fc_weight"].data()
        weight[0, 0] = np.nextafter(weight[0, 0].asnumpy(), np.float32(np.inf))
    return model


def early_reader(context: RunContext, *more: Any) -> Any:
    """Rank 0 reads the data set before the clock starts."""
    sources = build_sources(context, *more)
    if context.process.rank == 0:
        sources.train.next()
    return sources


def late_clock(context: RunContext, *more: Any) -> Any:
    """Rank 0 starts the clock late; rank 1 notes when it asks for its first batch."""
    sources = build_sources(context, *more)
    start_clock, following = context.start_clock, sources.train.next

    def late(tensors: Sequence[str]) -> None:
        time.sleep(2)
        start_clock(tensors)

    def noting() -> Any:
        with suppress(FileExistsError), (context.out / "first_batch").open("x") as file:
            file.write(repr(time.time()))
        return following()

    if context.process.rank == 0:
        context.start_clock = late  # type: ignore[method-assign]
    else:
        sources.train.next = noting
    return sources


def stops(rank: trainer.Trainer, *more: Any) -> None:
    """Rank 0 hangs after its first log point, so that a signal finds it in the middle."""
    log_point(rank, *more)
    if rank.context.process.rank == 0:
        print("hanging", os.getpid(), flush=True)
        time.sleep(600)


def overflows(context: RunContext, comm: Any, *more: Any) -> Any:
    """Rank 1's gradients of some steps are infinite before they are summed."""
    # The first sum is that of start-up.
    reduce, steps = comm.reduce, itertools.count(context.state.step)

    def overflowing_reduce() -> None:
        if next(steps) in (18, 19, 40) and context.process.rank == 1:
            comm.buckets[1][7] = float("inf")
        reduce()

    comm.reduce = overflowing_reduce
    return build_model(context, comm, *more)


def on_second_cpu(*_: Any) -> mx.Context:
    """Trains on cpu(1): MXNet refuses an operator whose arrays are not all there."""
    return mx.cpu(1)


BODIES: dict[str, tuple[Any, str, Any]] = {
    "OtherWeights": (trainer, "build_model", other_weights),
    "EarlyReader": (trainer, "build_sources", early_reader),
    "LateClock": (trainer, "build_sources", late_clock),
    "Stops": (run, "log_point", stops),
    "Overflows": (trainer, "build_model", overflows),
    "OnSecondCpu": (trainer, "device_context", on_second_cpu),
}

if __name__ == "__main__":
    names, *arguments = sys.argv[1:]
    for name in names.split("+"):
        setattr(*BODIES[name])
    entry.main(arguments)
