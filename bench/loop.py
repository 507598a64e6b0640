"""`rn50 bench loop`: the trainer's loop and a bare loop, timed in alternation."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..config.plan import build_plan
from .harness import Job, Outcome, bench, option, ratio_spread
from .jobs import load_ready, measure_on_ranks

if TYPE_CHECKING:
    from ..train.trainer import Trainer


def time_loops(out: Path, rounds: str, steps: str) -> dict[str, list[float]]:
    """Seconds of both loops on one rank."""
    from .rank import alternate_on_ranks, next_steps, started_trainer

    with started_trainer(out) as trainer:
        bare = _bare_steps(trainer, int(steps))
        contenders = {"trainer": next_steps(trainer, int(steps)), "bare loop": bare}
        return alternate_on_ranks(trainer, contenders, range(int(rounds) + 1))


def _bare_steps(trainer: Trainer, count: int) -> Callable[[], None]:
    """Forward, backward, grouped allreduce, fused update on one batch: nothing else."""
    _, _, criterion, updater = trainer.model
    images, labels = (array.copy() for array in trainer.sources.train.next())
    numbers = itertools.count(1)

    def run() -> None:
        for step in itertools.islice(numbers, count):
            scale = updater.scaler.value_at(step)
            losses = criterion.forward(images, labels, scale)
            criterion.backward(losses, scale)
            trainer.comm.reduce()
            updater.step(step, trainer.steps.settings_at(1))

    return run


@bench("loop", rank=time_loops, config="quick", takes_ranks=True)
def loop(
    job: Job,
    *,
    rounds: Annotated[int, option("Rounds; each times both loops.", min=1)] = 10,
    steps: Annotated[int, option("Steps a loop in each round.", min=1)] = 20,
) -> Outcome:
    """Trainer against a bare loop: the same model, batch and ranks, data already in memory.

    The bare loop is forward, backward, grouped allreduce and fused update on one batch that never
    changes. The ratio is trainer throughput over bare throughput; 1 means that the pipeline, the
    log and everything else around the step cost nothing.

    Example: `rn50 bench loop quick --rounds 10 --steps 20`
    """
    loaded = load_ready(job)
    job.track("timing rounds")
    seconds = measure_on_ranks(loaded, job.launcher, "loop", rounds, steps)
    ranks = build_plan(loaded.run).ranks
    per_rank = loaded.run.batch.per_rank
    images = steps * ranks * per_rank
    images_per_s = {name: [images / s for s in found] for name, found in seconds.items()}
    ratio = ratio_spread(seconds["bare loop"], seconds["trainer"])
    return Outcome(
        ratios={"trainer / bare loop throughput": ratio},
        figures={
            **{
                f"{name} images/s (median)": statistics.median(r)
                for name, r in images_per_s.items()
            },
            "ranks": ranks,
            "batch per rank": per_rank,
        },
        measurements={"images/s": images_per_s},
    )
