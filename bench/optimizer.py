"""`rn50 bench optimizer`: one LARS step of ResNet-50, ours against others, in alternation.

ours        train/optimizer.py, variant nvidia
MXNet's     mx.optimizer.LARS under gluon.Trainer, as a user of MXNet gets it
textbook    a loop over parameters: two norms read back, one update
floor       the bytes that must move (norms read w and g; the update reads w, g, v and writes
            w, v) at the copy bandwidth measured in the same round
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..config.errors import UserError
from .harness import (
    Job,
    Outcome,
    alternate,
    bench,
    option,
    ratios_of,
    scaled,
)

if TYPE_CHECKING:
    from mxnet import gluon

RATIO = {
    "MXNet's LARS / ours": ("MXNet's LARS", "ours"),
    "textbook loop / ours": ("textbook loop", "ours"),
    "ours / memory floor": ("ours", "floor"),
}
BATCH, LR, DECAY = 3264, 10.5, 5e-5
PASSES = 7  # over all parameters


def time_steps(_: Path, rounds: str) -> dict[str, Any]:
    """Seconds of every contender, and the bytes of the parameters."""
    from mxnet import nd

    contenders, parameter_bytes = _contenders()
    turns = range(int(rounds) + 1)
    seconds = alternate(contenders, turns, finish=nd.waitall)
    # A copy moves every byte twice: read and written.
    floor = scaled(seconds.pop("copy"), PASSES / 2)
    return {"seconds": seconds | {"floor": floor}, "parameter_bytes": parameter_bytes}


@bench("optimizer", rank=time_steps)
def optimizer(
    job: Job,
    *,
    rounds: Annotated[int, option("Rounds; each times every contender.", min=1)] = 15,
    threads: Annotated[int, option("OpenMP threads.", min=1)] = 1,
) -> Outcome:
    """One LARS step of ResNet-50: ours, MXNet's own, a textbook loop, and the memory floor.

    The floor is the bytes that must move (two passes for the norms, five for the update) over the
    copy bandwidth of the same round; ours can be below it where a tensor stays in cache between its
    norms and its update.

    Example: `rn50 bench optimizer --rounds 15`
    """
    job.track("timing LARS steps")
    with tempfile.TemporaryDirectory(prefix="rn50-bench-") as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "rn50.bench", "optimizer", scratch, str(rounds)],
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise UserError(f"bench optimizer: {lines[-1]}")
        measured = json.loads((Path(scratch) / "bench.json").read_text())
    seconds: dict[str, list[float]] = measured["seconds"]
    ms = {name: scaled(found, 1e3) for name, found in seconds.items()}
    return Outcome(
        ratios=ratios_of(seconds, RATIO),
        figures={
            **{f"{name} ms (median)": statistics.median(s) for name, s in ms.items()},
            "parameter MB": measured["parameter_bytes"] / 1e6,
        },
        measurements={"ms": ms},
        machine={"OpenMP threads": threads},
    )


def _contenders() -> tuple[dict[str, Callable[[], None]], int]:
    import mxnet as mx
    from mxnet import gluon, nd

    from ..config.schema import Optimizer
    from ..train.operators import Operators
    from ..train.optimizer import Updater
    from ..train.schedule import Settings

    nets = [_parameters() for _ in range(3)]
    ours = Updater(
        nets[0], Optimizer(variant="nvidia", weight_decay=DECAY), operators=Operators(mx.cpu())
    )
    now = Settings(LR, 0.9, BATCH)
    stock = gluon.Trainer(
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
        "MXNet's LARS": lambda: _trainer_step(stock, nets[1]),
        "textbook loop": lambda: _textbook(nets[2], velocities),
        "copy": lambda: source.copyto(target),
    }, size * 4


def _parameters() -> list[Any]:
    """ResNet-50's parameters with gradients of a plausible size."""
    import mxnet as mx
    from mxnet import nd

    from ..config.schema import Model
    from ..train.networks import build_networks, trainable
    from ..train.operators import Operators

    net, _, _ = build_networks(Model(), 1000, crop_px=224, seed=1, operators=Operators(mx.cpu()))
    parameters = trainable(net)
    for p in parameters:
        p.grad()[:] = nd.random.normal(scale=1.0, shape=p.shape)
    nd.waitall()
    return parameters


def _trainer_step(trainer: gluon.Trainer, parameters: list[Any]) -> None:
    for p in parameters:
        p.data()._fresh_grad = True  # what backward does; without it the step would do nothing
    trainer.step(BATCH)


def _textbook(parameters: list[Any], velocities: list[Any]) -> None:
    from mxnet import nd

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
