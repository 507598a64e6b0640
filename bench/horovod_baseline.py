"""`rn50 bench horovod-baseline`: our trainer against Horovod's own example, jobs in turn.

The pattern is that of Horovod's MXNet ResNet-50 example, written here from the public API: gluon's
loss, `hvd.broadcast_parameters`, `hvd.DistributedTrainer` with its default fusion, a metric updated
at each step and read at each log interval. Network, weights, batches and ranks are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..config.plan import build_plan
from .harness import (
    BenchJob,
    Outcome,
    bench,
    in_turn,
    option,
    ratio_spread,
    scaled,
    spread,
)
from .jobs import load_ready, measure_on_ranks

if TYPE_CHECKING:
    from ..train.trainer import Trainer

OURS = "ours"
BASELINE = "Horovod's example"
BASELINE_ENV = (
    "OMP_NUM_THREADS",
    "HOROVOD_CPU_OPERATIONS",
    "OMPI_MCA_mpi_yield_when_idle",
)
"""What the baseline gets of our settings: its cores, its backend, and that a waiting rank yields;
without the last, ranks that share cores starve each other."""


def time_contender(
    out: Path,
    contender: str,
    rounds: str,
    steps: str,
) -> list[float]:
    """Wall seconds a step of one contender, on one rank."""
    from .rank import alternate_on_ranks, next_steps, started_trainer

    count = int(steps)
    with started_trainer(out) as trainer:
        run = (
            next_steps(trainer, count)
            if contender == OURS
            else _example(trainer, count)
        )
        turns = range(int(rounds) + 1)
        return alternate_on_ranks(trainer, {contender: run}, turns, pieces=count)[
            contender
        ]


def _example(trainer: Trainer, steps: int) -> Callable[[], None]:
    """Horovod's example: `steps` of its steps at each call. No part of the trainer."""
    import horovod.mxnet as hvd
    import mxnet as mx
    from mxnet import autograd

    from ..train.network.build import build_networks
    from ..train.seeding import stream_seeds

    run = trainer.run
    log_every = trainer.plan.log_every_steps
    net, _, _ = build_networks(
        run.model,
        run.data.classes,
        crop_px=run.data.crop_px,
        seed=stream_seeds(run.seed or 0)["weights"],
        operators=trainer.comm.operators,
    )
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    metric = mx.metric.CompositeEvalMetric(
        [mx.metric.Accuracy(), mx.metric.TopKAccuracy(min(5, run.data.classes))]
    )
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    options = {"momentum": run.optimizer.momentum, "wd": run.optimizer.weight_decay}
    options["learning_rate"] = run.optimizer.base_lr
    stepper = hvd.DistributedTrainer(parameters, mx.optimizer.create("sgd", **options))

    def train() -> None:
        for number in range(1, steps + 1):
            images, labels = trainer.sources.train.next()
            with autograd.record():
                output = net(images)
                loss = cross_entropy(output, labels)
            loss.backward()
            stepper.step(run.batch.per_rank)
            metric.update([labels], [output])
            if number % log_every == 0:
                metric.get()

    return train


@bench("horovod-baseline", rank=time_contender, config="quick", takes_ranks=True)
def horovod_baseline(
    job: BenchJob,
    *,
    rounds: Annotated[int, option("Rounds of each job.", min=1)] = 10,
    steps: Annotated[int, option("Steps of each round.", min=1)] = 20,
    passes: Annotated[int, option("Jobs of each, in turn.", min=1)] = 3,
) -> Outcome:
    """Trainer against DistributedTrainer as Horovod's own MXNet example uses it, jobs in turn.

    Each has its own settings of the engines; network, weights, data, batch and ranks are the same.

    Example: `rn50 bench horovod-baseline quick --passes 3`
    """
    loaded = load_ready(job)
    step_s: dict[str, list[float]] = {OURS: [], BASELINE: []}
    progress = job.track("timing ours and Horovod's example in turn", ticks=True)
    for contender in in_turn(list(step_s), passes, progress):
        step_s[contender] += measure_on_ranks(
            loaded,
            job.launcher,
            "horovod-baseline",
            contender,
            rounds,
            steps,
            settings=None if contender == OURS else BASELINE_ENV,
        )
    step_ms = {name: scaled(values, 1e3) for name, values in step_s.items()}
    return Outcome(
        ratios={
            "our throughput / Horovod's example": ratio_spread(
                step_s[BASELINE], step_s[OURS]
            )
        },
        figures={
            **{
                f"{name}: ms a step": spread(values) for name, values in step_ms.items()
            },
            "ranks": build_plan(loaded.run).ranks,
            "batch per rank": loaded.run.batch.per_rank,
        },
        measurements={"ms a step": step_ms},
    )
