"""One rank of `rn50 bench loop --overlap`: a step with, without, and only communication."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from mxnet import autograd, nd

from ..config.atomic import write_file
from ..train.networks import trainable
from ..train.optimizer import Updater
from ..train.schedule import Settings
from .rank import main_of, rank_rounds, start_rank


def main(config: str, out: str, rules: str, rounds: str, steps: str) -> None:
    """Time three kinds of step for each grouping in turn; rank 0 writes `out`/bench.json.

    The differences tell what is hidden: exposed = whole step - computing alone; communication alone
    is a reduction that nothing else runs beside. Learning rate 0: the weights stay.

    Args:
        rules: groupings as in `comm.groups`, separated by semicolons.
    """
    rank = start_rank(config, out)
    images, labels = (array.copy() for array in rank.sources.train.next())
    still = Settings(0.0, 0.0, rank.plan.global_batch_size)

    def compute() -> None:
        with autograd.record():
            losses = rank.model.loss(rank.model.net(images), labels)
        losses.backward()

    def step() -> None:
        compute()
        rank.comm.reduce()
        updater.step(1, still)

    def step_alone() -> None:
        compute()
        updater.step(1, still)

    def reduce() -> None:
        rank.comm.reduce()
        nd.waitall()  # one after the other, as steps need them

    kinds: dict[str, Callable[[], None]] = {
        "step": step,
        "computing": step_alone,
        "communication": reduce,
    }
    seconds: dict[str, dict[str, list[float]]] = {}
    for turn in rank_rounds(rank, out, rounds):
        for rule in rules.split(";"):
            rank.comm.plan_groups(rule, trainable(rank.model.net), rank.run.comm.wire)
            rank.model.net.hybridize(static_alloc=True, static_shape=True)  # gradients have moved
            updater = Updater(trainable(rank.model.net), rank.run.optimizer, ctx=rank.ctx)
            step()  # compiles; places in the response cache, memory of the new arrays
            for name, run in kinds.items():
                nd.waitall()
                rank.comm.barrier()
                start = time.perf_counter()
                for _ in range(int(steps)):
                    run()
                nd.waitall()
                rank.comm.barrier()
                if turn:  # the first round warms up
                    mine = seconds.setdefault(rule, {}).setdefault(name, [])
                    mine.append((time.perf_counter() - start) / int(steps))
    rank.comm.stop()
    if rank.context.process.rank == 0:
        write_file(Path(out) / "bench.json", json.dumps(seconds))


if __name__ == "__main__":
    main_of(main)
