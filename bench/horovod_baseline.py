"""`rn50 bench horovod-baseline`: our trainer against Horovod's own example, jobs in turn.

The pattern is that of Horovod's MXNet ResNet-50 example, written here from the public API: gluon's
loss, `hvd.broadcast_parameters`, `hvd.DistributedTrainer` with its default fusion, a metric updated
at each step and read at each log interval. Network, weights, batches and ranks are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.plan import build_plan
from .harness import BenchJob, Outcome, Samples, in_turn, ratio_spread, scaled, spread
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


def time_contender(out: Path, contender: str, rounds: int, steps: int) -> list[float]:
    """Wall seconds a step of one contender, on one rank."""
    from .rank import alternate_on_ranks, next_steps, started_trainer

    makers = {OURS: next_steps, BASELINE: _example}
    with started_trainer(out) as trainer:
        contenders = {contender: makers[contender](trainer, steps)}
        seconds = alternate_on_ranks(trainer, contenders, rounds, pieces=steps)
        return seconds[contender]


def _example(trainer: Trainer, steps: int) -> Callable[[], None]:
    """Horovod's example: `steps` of its steps at each call. No part of the trainer."""
    import horovod.mxnet as hvd
    import mxnet as mx
    from mxnet import autograd

    from ..train.network.build import build_networks

    run = trainer.run
    log_every = trainer.plan.log_every_steps
    net, _, _ = build_networks(
        run.model,
        run.data.classes,
        crop_px=run.data.crop_px,
        seed=trainer.context.seeds["weights"],
        operators=trainer.comm.operators,
    )
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    top_5 = mx.metric.TopKAccuracy(min(5, run.data.classes))
    metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), top_5])
    parameters = net.collect_params()
    hvd.broadcast_parameters(parameters, root_rank=0)
    sgd = mx.optimizer.create(
        "sgd",
        momentum=run.optimizer.momentum,
        wd=run.optimizer.weight_decay,
        learning_rate=run.optimizer.base_lr,
    )
    stepper = hvd.DistributedTrainer(parameters, sgd)

    def train() -> None:
        """Train on the next batches as the example does."""
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


def measure(job: BenchJob, *, rounds: int, steps: int, passes: int) -> Outcome:
    """Trainer against DistributedTrainer as Horovod's own MXNet example uses it, jobs in turn."""
    loaded = load_ready(job)
    step_s: Samples = {OURS: [], BASELINE: []}
    work = "timing ours and Horovod's example in turn"
    for contender in in_turn(job, work, step_s, passes):
        step_s[contender] += measure_on_ranks(
            job,
            loaded,
            time_contender,
            contender,
            rounds,
            steps,
            settings=None if contender == OURS else BASELINE_ENV,
        )
    ratio = ratio_spread(step_s[BASELINE], step_s[OURS])
    step_ms = {name: scaled(values, 1e3) for name, values in step_s.items()}
    return Outcome(
        ratios={"our throughput / Horovod's example": ratio},
        figures={
            f"{OURS}: ms a step": spread(step_ms[OURS]),
            f"{BASELINE}: ms a step": spread(step_ms[BASELINE]),
            "ranks": build_plan(loaded.run).ranks,
            "batch per rank": loaded.run.batch.per_rank,
        },
        measurements={"ms a step": step_ms},
    )
