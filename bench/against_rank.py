"""One rank of `rn50 bench loop --against horovod`: our trainer, or Horovod's own example.

The pattern is that of Horovod's MXNet ResNet-50 example, written here from the public API: gluon's
loss, `hvd.broadcast_parameters`, `hvd.DistributedTrainer` with its default fusion, a metric updated
at each step and read at each log interval. Network, weights, batches and ranks are the same.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
from mxnet import autograd, nd

from ..config.atomic import write_file
from ..train.loop import train_steps
from ..train.networks import build_networks
from ..train.run import log_point
from ..train.seeding import stream_seeds
from ..train.trainer import Trainer
from .rank import main_of, rank_rounds, start_rank


class Example:
    """Horovod's example: the baseline, not part of the trainer."""

    def __init__(self, rank: Trainer) -> None:
        run = rank.run
        self.net, _, _ = build_networks(
            run.model,
            run.data.classes,
            crop_px=run.data.crop_px,
            seed=stream_seeds(run.seed or 0)["weights"],
            ctx=rank.ctx,
        )
        self.next_batch = rank.sources.train.next
        self.batch, self.log_every = run.batch.per_rank, rank.plan.log_every_steps
        self.loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.metric = mx.metric.CompositeEvalMetric(
            [mx.metric.Accuracy(), mx.metric.TopKAccuracy(min(5, run.data.classes))]
        )
        parameters = self.net.collect_params()
        hvd.broadcast_parameters(parameters, root_rank=0)
        options = {"momentum": run.optimizer.momentum, "wd": run.optimizer.weight_decay}
        options["learning_rate"] = run.optimizer.base_lr
        self.trainer = hvd.DistributedTrainer(parameters, mx.optimizer.create("sgd", **options))

    def train(self, steps: int) -> None:
        for number in range(1, steps + 1):
            images, labels = self.next_batch()
            with autograd.record():
                output = self.net(images)
                loss = self.loss(output, labels)
            loss.backward()
            self.trainer.step(self.batch)
            self.metric.update([labels], [output])
            if number % self.log_every == 0:
                self.metric.get()


def main(config: str, out: str, contender: str, rounds: str, steps: str) -> None:
    """Time `rounds` rounds of `steps` steps of the contender, `ours` or `horovod`; rank 0 writes
    wall and processor seconds a step to `out`/bench.json."""
    rank = start_rank(config, out)
    count = int(steps)
    figures: dict[str, list[float]] = {"wall_s": [], "cpu_s": []}
    example = Example(rank) if contender == "horovod" else None
    trainer = rank.steps
    for turn in rank_rounds(rank, out, rounds):
        rank.comm.barrier()
        start, start_cpu = time.perf_counter(), time.process_time()
        if example:
            example.train(count)
        else:
            for point in train_steps(
                trainer, turn * count + 1, (turn + 1) * count, rank.plan.log_every_steps
            ):
                log_point(rank, point)
        nd.waitall()
        rank.comm.barrier()
        if turn:  # the first round warms up
            figures["wall_s"].append((time.perf_counter() - start) / count)
            figures["cpu_s"].append((time.process_time() - start_cpu) / count)
    rank.comm.stop()
    if rank.context.process.rank == 0:
        write_file(Path(out) / "bench.json", json.dumps(figures))


if __name__ == "__main__":
    main_of(main)
