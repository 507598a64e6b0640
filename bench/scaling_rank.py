"""One rank of `rn50 bench scaling`: the trainer's loop on real data, round after round."""

from __future__ import annotations

import json
import time
from pathlib import Path

from mxnet import nd

from ..config.atomic import write_file
from ..train.loop import train_steps
from ..train.run import log_point
from .rank import main_of, rank_rounds, start_rank


def main(config: str, out: str, rounds: str, steps: str) -> None:
    """Train `rounds` rounds of `steps` steps; rank 0 writes to `out`/bench.json.

    `step_s`: wall seconds a step of each round, all ranks waiting for the last; `busy_cores`:
    processor seconds of all ranks together over wall seconds.
    """
    rank = start_rank(config, out)
    count, trainer = int(steps), rank.steps
    figures: dict[str, list[float]] = {"step_s": [], "busy_cores": []}
    for turn in rank_rounds(rank, out, rounds):
        rank.comm.barrier()
        start, start_cpu = time.perf_counter(), time.process_time()
        for point in train_steps(
            trainer, turn * count + 1, (turn + 1) * count, rank.plan.log_every_steps
        ):
            log_point(rank, point)
        nd.waitall()
        rank.comm.barrier()
        seconds = time.perf_counter() - start
        cpu = rank.comm.sum_losses(nd.array([time.process_time() - start_cpu], rank.ctx))
        if turn:  # the first round warms up
            figures["step_s"].append(seconds / count)
            figures["busy_cores"].append(float(cpu.asscalar()) / seconds)
    rank.comm.stop()
    if rank.context.process.rank == 0:
        write_file(Path(out) / "bench.json", json.dumps(figures))


if __name__ == "__main__":
    main_of(main)
