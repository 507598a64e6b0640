"""One rank of `rn50 bench faults`: epochs with all guards and without any, in alternation."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mxnet import nd

from ..config.atomic import write_file
from ..train.checkpointer import Checkpointer
from ..train.heartbeat import WATCHDOG_ENV, HeartbeatClient
from ..train.loop import train_steps
from ..train.run import log_point
from ..train.weights import quick_digest
from .rank import main_of, rank_rounds, start_rank


def main(config: str, out: str, rounds: str) -> None:
    """Time an epoch each way `rounds` times; rank 0 writes the seconds to `out`/bench.json.

    Guarded: a checkpoint and a comparison of replicas at the end of the epoch, and a watchdog.
    """
    rank = start_rank(config, out)
    trainer, plan = rank.steps, rank.plan
    checkpointer = Checkpointer(rank)
    steps = plan.epoch_end_step(1)
    seconds: dict[str, list[float]] = {"guarded_s": [], "bare_s": []}
    step = 0
    for turn in rank_rounds(rank, out, rounds):
        for name in ("guarded_s", "bare_s") if turn % 2 else ("bare_s", "guarded_s"):
            heartbeat = None
            if name == "guarded_s":
                heartbeat = HeartbeatClient(os.environ[WATCHDOG_ENV], rank.context, sys.exit)
            rank.comm.barrier()
            start = time.perf_counter()
            for point in train_steps(trainer, step + 1, step + steps, plan.log_every_steps):
                log_point(rank, point)
            step += steps
            if heartbeat is not None:
                rank.comm.check_replicas(quick_digest(rank.model.net), f"after epoch {turn}")
                checkpointer.save()
            nd.waitall()
            rank.comm.barrier()
            if turn:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
            if heartbeat is not None:
                heartbeat.stop()
    checkpointer.finish()
    rank.comm.stop()
    if rank.context.process.rank == 0:
        write_file(Path(out) / "bench.json", json.dumps(seconds))


if __name__ == "__main__":
    main_of(main)
