"""`rn50 bench loop`: the trainer's loop and bare loops, timed in alternation."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.plan import build_plan
from .harness import BenchJob, Outcome, Samples, ratio_spread
from .jobs import load_ready, measure_on_ranks

if TYPE_CHECKING:
    from ..data.pipeline import Batch
    from ..train.trainer import Trainer


def time_loops(out: Path, rounds: int, steps: int) -> Samples:
    """Seconds of the loops on one rank."""
    from .rank import alternate_on_ranks, next_steps, started_trainer

    with started_trainer(out) as trainer:
        next_batch = trainer.next_batch
        first = next_batch()
        copied_batch = first._replace(
            images=first.images.copy(), labels=first.labels.copy()
        )
        contenders = {
            "trainer": next_steps(trainer, steps),
            "bare loop": _bare_steps(trainer, steps, next_batch),
            "one batch": _bare_steps(trainer, steps, lambda: copied_batch),
        }
        return alternate_on_ranks(trainer, contenders, rounds)


def _bare_steps(
    trainer: Trainer, count: int, next_batch: Callable[[], Batch]
) -> Callable[[], None]:
    """Batch, forward, backward, grouped allreduce, fused update, bounded queue: nothing else."""
    from ..train.host_reads import RunAheadLimiter

    _, _, criterion, updater = trainer.model
    limit_run_ahead = RunAheadLimiter()
    numbers = itertools.count(1)

    def run() -> None:
        """Train the next steps."""
        for step in itertools.islice(numbers, count):
            batch = next_batch()
            scale = updater.scaler.value_at(step)
            losses = criterion.forward(batch.images, batch.labels, scale)
            criterion.backward(losses, scale)
            trainer.comm.reduce()
            updater.step(step, trainer.settings_at(1))
            limit_run_ahead(losses, batch)

    return run


def measure(job: BenchJob, *, rounds: int, steps: int) -> Outcome:
    """Trainer against a bare loop: the same model, ranks and pipeline."""
    loaded = load_ready(job)
    progress = job.track("timing rounds", ticks=True)
    progress(0, 1)
    seconds = measure_on_ranks(job, loaded, time_loops, rounds, steps)
    progress(1, 1)
    ranks = build_plan(loaded.run).ranks
    per_rank = loaded.run.batch.per_rank
    images = steps * ranks * per_rank
    images_per_s = {}
    figures = {}
    for name, times in seconds.items():
        rates = [images / loop_s for loop_s in times]
        images_per_s[name] = rates
        figures[f"{name} images/s (median)"] = statistics.median(rates)
    figures |= {"ranks": ranks, "batch per rank": per_rank}
    bare = seconds["bare loop"]
    return Outcome(
        ratios={
            "trainer / bare loop throughput": ratio_spread(bare, seconds["trainer"]),
            "bare loop / one batch throughput": ratio_spread(
                seconds["one batch"], bare
            ),
        },
        figures=figures,
        measurements={"images/s": images_per_s},
    )
