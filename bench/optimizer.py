"""`rn50 bench optimizer`: one LARS step of ResNet-50, ours against others, in alternation.

ours        train/update/optimizer.py, variant nvidia
MXNet's     mx.optimizer.LARS under gluon.Trainer, as a user of MXNet gets it
floor       the bytes that must move (norms read w and g; the update reads w, g, v and writes
            w, v) at the copy bandwidth measured in the same round
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .harness import BenchJob, Outcome, alternate, bench, option, ratio_spread, scaled
from .jobs import measure_on_ranks

if TYPE_CHECKING:
    from mxnet import gluon

BATCH = 3264
LR = 10.5
DECAY = 5e-5
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


@bench("optimizer", rank=time_steps, config="smoke")
def optimizer(
    job: BenchJob,
    *,
    rounds: Annotated[int, option("Rounds; each times every contender.", min=1)] = 15,
) -> Outcome:
    """One LARS step of ResNet-50: ours, MXNet's own, and the memory floor.

    The floor is the bytes that must move (two passes for the norms, five for the update) over the
    copy bandwidth of the same round; ours can be below it where a tensor stays in cache between its
    norms and its update. The config gives one rank's cores.

    Example: `rn50 bench optimizer --rounds 15`
    """
    progress = job.track("timing LARS steps", ticks=True)
    progress(0, 1)
    loaded = job.load(ranks=1)
    measured = measure_on_ranks(
        loaded,
        job.launcher,
        "optimizer",
        rounds,
    )
    progress(1, 1)
    seconds: dict[str, list[float]] = measured["seconds"]
    ms = {name: scaled(values, 1e3) for name, values in seconds.items()}
    return Outcome(
        ratios={
            "MXNet's LARS / ours": ratio_spread(
                seconds["MXNet's LARS"], seconds["ours"]
            ),
            "ours / memory floor": ratio_spread(seconds["ours"], seconds["floor"]),
        },
        figures={
            **{f"{name} ms (median)": statistics.median(s) for name, s in ms.items()},
            "parameter MB": measured["parameter_bytes"] / 1e6,
        },
        measurements={"ms": ms},
    )


def _contenders() -> tuple[dict[str, Callable[[], None]], int]:
    import mxnet as mx
    from mxnet import gluon, nd

    from ..config.schema import Optimizer
    from ..train.operators import Operators
    from ..train.schedule import Settings
    from ..train.update.optimizer import Updater

    nets = [_parameters() for _ in range(2)]
    ours = Updater(
        nets[0],
        Optimizer(variant="nvidia", weight_decay=DECAY),
        operators=Operators(mx.cpu()),
    )
    now = Settings(LR, 0.9, BATCH)
    stock = gluon.Trainer(
        {p.name: p for p in nets[1]},
        "lars",
        {"learning_rate": LR, "momentum": 0.9, "wd": DECAY, "eta": 0.001, "eps": 0},
        kvstore=None,
    )
    size = sum(p.data().size for p in nets[0])
    source = nd.ones(size)
    target = nd.zeros(size)
    return {
        "ours": lambda: ours.step(1, now),
        "MXNet's LARS": lambda: _trainer_step(stock, nets[1]),
        "copy": lambda: source.copyto(target),
    }, size * 4


def _parameters() -> list[Any]:
    """ResNet-50's parameters with gradients of a plausible size."""
    import mxnet as mx
    from mxnet import nd

    from ..config.schema import Model
    from ..train.network.build import build_networks, trainable
    from ..train.operators import Operators

    net, _, _ = build_networks(
        Model(), 1000, crop_px=224, seed=1, operators=Operators(mx.cpu())
    )
    parameters = trainable(net)
    for p in parameters:
        p.grad()[:] = nd.random.normal(scale=1.0, shape=p.shape)
    nd.waitall()
    return parameters


def _trainer_step(trainer: gluon.Trainer, parameters: list[Any]) -> None:
    for p in parameters:
        p.data()._fresh_grad = (
            True  # what backward does; without it the step would do nothing
        )
    trainer.step(BATCH)
