"""`rn50 bench optimizer`: one LARS step of ResNet-50, ours against others, in alternation.

ours        train/optimizer.py, variant nvidia
MXNet's     mx.optimizer.LARS under gluon.Trainer, as a user of MXNet gets it
textbook    a loop over parameters: two norms read back, one update
floor       the bytes that must move (norms read w and g; the update reads w, g, v and writes
            w, v) at the copy bandwidth measured in the same round
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mxnet as mx
from mxnet import gluon, nd

from ..config.atomic import write_file
from ..config.schema import Model, Optimizer
from ..train.networks import build_networks, trainable
from ..train.optimizer import Updater
from ..train.schedule import Settings
from .rounds import count_rounds

BATCH, LR, DECAY = 3264, 10.5, 5e-5
PASSES = 7  # over all parameters


def main(out: str, rounds: str) -> None:
    """Time every contender once a round, `rounds` times; write the seconds to `out`/bench.json."""
    contenders, parameter_bytes = _contenders()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in count_rounds(Path(out), int(rounds)):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            nd.waitall()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    # A copy moves every byte twice: read and written.
    floor = [copy / 2 * PASSES for copy in seconds.pop("copy")]
    write_file(
        Path(out) / "bench.json",
        json.dumps({"seconds": seconds | {"floor": floor}, "parameter_bytes": parameter_bytes}),
    )


def _contenders() -> tuple[dict[str, Callable[[], None]], int]:
    nets = [_parameters() for _ in range(3)]
    ours = Updater(nets[0], Optimizer(variant="nvidia", weight_decay=DECAY), ctx=mx.cpu())
    now = Settings(LR, 0.9, BATCH)
    theirs = gluon.Trainer(
        {p.name: p for p in nets[1]},
        "lars",
        {"learning_rate": LR, "momentum": 0.9, "wd": DECAY, "eta": 0.001, "eps": 0},
        kvstore=None,
    )
    velocities = [nd.zeros(p.shape) for p in nets[2]]
    size = sum(p.data().size for p in nets[0])
    source, target = nd.ones(size), nd.zeros(size)
    return {
        "ours": lambda: ours.step(1, now),
        "MXNet's LARS": lambda: _trainer_step(theirs, nets[1]),
        "textbook loop": lambda: _textbook(nets[2], velocities),
        "copy": lambda: source.copyto(target),
    }, size * 4


def _parameters() -> list[Any]:
    """ResNet-50's parameters with gradients of a plausible size."""
    net, _, _ = build_networks(Model(), 1000, crop_px=224, seed=1, ctx=mx.cpu())
    parameters = trainable(net)
    for p in parameters:
        p.grad()[:] = nd.random.normal(scale=1.0, shape=p.shape)
    nd.waitall()
    return parameters


def _trainer_step(trainer: gluon.Trainer, parameters: list[Any]) -> None:
    for p in parameters:
        p.data()._fresh_grad = True  # what backward does; without it the step would do nothing
    trainer.step(BATCH)


def _textbook(parameters: list[Any], velocities: list[nd.NDArray]) -> None:
    for p, v in zip(parameters, velocities, strict=True):
        lr, decay = LR, 0.0
        if p.name.endswith("weight"):
            w = p.data().norm().asscalar()
            g = p.grad().norm().asscalar() / BATCH
            decay = DECAY
            if w > 0 and g > 0:
                lr *= 0.001 * w / (g + decay * w)
        nd.sgd_mom_update(
            p.data(), p.grad(), v, out=p.data(), lr=lr, wd=decay, momentum=0.9,
            rescale_grad=1 / BATCH,
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
