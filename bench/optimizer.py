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
from typing import TYPE_CHECKING, Any

from .harness import BenchJob, Outcome, alternate, ratio_spread, scaled
from .jobs import measure_on_ranks

if TYPE_CHECKING:
    from mxnet import gluon

BATCH = 3264
LR = 10.5
MOMENTUM = 0.9
DECAY = 5e-5
PASSES = 7  # over all parameters


def time_steps(_: Path, rounds: int) -> dict[str, Any]:
    """Seconds of every contender, and the bytes of the parameters."""
    from mxnet import nd

    contenders, parameter_bytes = _contenders()
    seconds = alternate(contenders, rounds, finish=nd.waitall)
    # A copy moves every byte twice: read and written.
    seconds["floor"] = scaled(seconds.pop("copy"), PASSES / 2)
    return {"seconds": seconds, "parameter_bytes": parameter_bytes}


def measure(job: BenchJob, *, rounds: int) -> Outcome:
    """One LARS step of ResNet-50: ours, MXNet's own, and the memory floor."""
    progress = job.track("timing LARS steps", ticks=True)
    progress(0, 1)
    loaded = job.load(ranks=1)
    measured = measure_on_ranks(job, loaded, time_steps, rounds)
    progress(1, 1)
    ms = {}
    figures = {}
    for name, times in measured["seconds"].items():
        ms[name] = scaled(times, 1e3)
        figures[f"{name} ms (median)"] = statistics.median(ms[name])
    figures["parameter MB"] = measured["parameter_bytes"] / 1e6
    seconds = measured["seconds"]
    ours = seconds["ours"]
    return Outcome(
        ratios={
            "MXNet's LARS / ours": ratio_spread(seconds["MXNet's LARS"], ours),
            "ours / memory floor": ratio_spread(ours, seconds["floor"]),
        },
        figures=figures,
        measurements={"ms": ms},
    )


def _contenders() -> tuple[dict[str, Callable[[], None]], int]:
    import mxnet as mx
    from mxnet import gluon, nd

    from ..config.schema import Optimizer
    from ..train.operators import Operators
    from ..train.schedule import Settings
    from ..train.update.optimizer import Updater

    parameters = _parameters()
    ours = Updater(
        parameters,
        Optimizer(variant="nvidia", weight_decay=DECAY),
        operators=Operators(mx.cpu()),
    )
    step_settings = Settings(LR, MOMENTUM, BATCH)
    of_theirs = _parameters()
    settings = {
        "learning_rate": LR,
        "momentum": MOMENTUM,
        "wd": DECAY,
        "eta": 0.001,
        "eps": 0,
    }
    by_name = {p.name: p for p in of_theirs}
    stock = gluon.Trainer(by_name, "lars", settings, kvstore=None)
    size = sum(p.data().size for p in parameters)
    source = nd.ones(size)
    target = nd.zeros(size)
    contenders = {
        "ours": lambda: ours.step(1, step_settings),
        "MXNet's LARS": lambda: _trainer_step(stock, of_theirs),
        "copy": lambda: source.copyto(target),
    }
    return contenders, size * 4


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
        p.grad()[:] = nd.random.normal(shape=p.shape)
    nd.waitall()
    return parameters


def _trainer_step(trainer: gluon.Trainer, parameters: list[Any]) -> None:
    for p in parameters:
        # what backward does; without it the step would do nothing
        p.data()._fresh_grad = True
    trainer.step(BATCH)
