"""`rn50 bench guard-overhead`: epochs with all guards and without any, in alternation."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from pathlib import Path
from typing import Annotated

from ..config.plan import build_plan
from .harness import Job, Outcome, bench, option, spread, wall_s
from .jobs import load_ready, measure_on_ranks

RATIO = {"guarded / bare epoch": ("guarded", "bare")}


def time_epochs(out: Path, rounds: str) -> dict[str, list[float]]:
    """Seconds of an epoch each way on one rank.

    Guarded: a checkpoint and a comparison of replicas at the end of the epoch, and a watchdog.
    """
    from ..train.checkpointer import Checkpointer
    from ..train.heartbeat import WATCHDOG_ENV, HeartbeatClient
    from ..train.weights import quick_digest
    from .rank import alternate_on_ranks, next_steps, rank_rounds, started_trainer

    with started_trainer(out) as trainer:
        epoch, epochs = next_steps(trainer, trainer.plan.epoch_end_step(1)), itertools.count()

        checkpointer = Checkpointer(trainer)

        def guarded() -> None:
            heartbeat = HeartbeatClient(os.environ[WATCHDOG_ENV], trainer.context, sys.exit)
            epoch()
            digest = quick_digest(trainer.model.net)
            trainer.comm.check_replicas(digest, f"after epoch {next(epochs)}")
            checkpointer.save()
            heartbeat.stop()

        contenders = {"guarded": guarded, "bare": epoch}
        samples = alternate_on_ranks(trainer, contenders, rank_rounds(trainer, out, rounds))
        checkpointer.finish()
        return wall_s(samples)


@bench("guard-overhead", RATIO, rank=time_epochs, config="quick", takes_ranks=True)
def guard_overhead(
    job: Job, *, rounds: Annotated[int, option("Epochs of each kind, in turn.", min=1)] = 10
) -> Outcome:
    """Cost of the guards: epochs with all of them and epochs with none, in alternation.

    The guards are a checkpoint and a comparison of all ranks' weights after the epoch, and a
    watchdog.

    Example: `rn50 bench guard-overhead quick --rounds 10`
    """
    loaded = load_ready(job)
    progress = job.track("timing epochs")
    seconds = measure_on_ranks(
        loaded, job.launcher, "guard-overhead", rounds, watch=True, progress=progress
    )
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    plan = build_plan(loaded.run)
    return Outcome(
        seconds=seconds,
        figures={
            **{f"{name} epoch s": spread(found) for name, found in seconds.items()},
            "guarded / bare, medians": medians["guarded"] / medians["bare"],
            "steps an epoch": plan.epoch_end_step(1),
            "ranks": plan.ranks,
        },
        measurements={"s an epoch": seconds},
    )
