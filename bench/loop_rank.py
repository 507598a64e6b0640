"""One rank of `rn50 bench loop`: the trainer's loop and a bare loop, timed in alternation."""

from __future__ import annotations

import json
import time
from pathlib import Path

from mxnet import autograd, nd

from ..config.atomic import write_file
from ..train.loop import train_steps
from ..train.run import log_point
from ..train.trainer import Trainer
from .rank import main_of, rank_rounds, start_rank


def bare_steps(
    rank: Trainer, images: nd.NDArray, labels: nd.NDArray, first: int, last: int
) -> None:
    """Forward, backward, grouped allreduce, fused update: nothing else."""
    for step in range(first, last + 1):
        with autograd.record():
            losses = rank.model.loss(rank.model.net(images), labels)
        losses.backward(rank.model.updater.scaler.head_gradients(step, losses))
        rank.comm.reduce()
        rank.model.updater.step(step, rank.steps.settings_at(1))


def main(config: str, out: str, rounds: str, steps: str) -> None:
    """Time both loops `rounds` times; rank 0 writes the seconds of each to `out`/bench.json."""
    rank = start_rank(config, out)
    images, labels = (array.copy() for array in rank.sources.train.next())
    count = int(steps)
    seconds: dict[str, list[float]] = {"trainer_s": [], "bare_s": []}
    trainer = rank.steps
    for turn in rank_rounds(rank, out, rounds):
        first, last = turn * count + 1, (turn + 1) * count
        for name in ("trainer_s", "bare_s") if turn % 2 else ("bare_s", "trainer_s"):
            rank.comm.barrier()
            start = time.perf_counter()
            if name == "bare_s":
                bare_steps(rank, images, labels, first, last)
            else:
                for point in train_steps(trainer, first, last, rank.plan.log_every_steps):
                    log_point(rank, point)
            nd.waitall()
            rank.comm.barrier()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    rank.comm.stop()
    if rank.context.process.rank == 0:
        write_file(Path(out) / "bench.json", json.dumps(seconds))


if __name__ == "__main__":
    main_of(main)
