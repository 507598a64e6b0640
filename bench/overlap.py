"""`rn50 bench overlap`: what of communication backward hides.

A step, its computing alone and its communication alone are timed in turn; exposed is the step less
its computing, hidden is 1 - exposed / communication. Where communication is a few per cent of
computing, exposed is a small difference of two large times: least and most show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.plan import build_plan
from ..host.errors import UserError
from .harness import (
    Action,
    BenchJob,
    Outcome,
    Samples,
    in_turn,
    ratio_spread,
    repeated,
    scaled,
    spread,
)
from .jobs import load_ready, measure_on_ranks

if TYPE_CHECKING:
    from ..train.trainer import Trainer


def time_kinds(out: Path, rounds: int, steps: int) -> Samples:
    """Seconds of each kind of step on one rank."""
    from .rank import alternate_on_ranks, started_trainer

    with started_trainer(out) as trainer:
        contenders = _kinds_of_steps(trainer, steps)
        return alternate_on_ranks(trainer, contenders, rounds, pieces=steps)


def _kinds_of_steps(trainer: Trainer, steps: int) -> dict[str, Action]:
    """What is timed, as train/loop.py has it. The learning rate is 0: the weights stay."""
    from mxnet import nd

    from ..train.schedule import Settings

    _, _, criterion, updater = trainer.model
    images, labels = (array.copy() for array in trainer.sources.train.next())
    still = Settings(0.0, 0.0, trainer.plan.global_batch_size)

    def backward() -> None:
        """Enqueue forward and backward of the batch."""
        losses = criterion.forward(images, labels, 1.0)
        criterion.backward(losses, 1.0)

    def step() -> None:
        """Enqueue a whole step."""
        backward()
        trainer.comm.reduce()
        updater.step(1, still)

    def compute() -> None:
        """Enqueue a step that sends nothing."""
        backward()
        updater.step(1, still)

    def reduce() -> None:
        """Send what a step sends, to its end."""
        trainer.comm.reduce()
        nd.waitall()  # one after the other, as steps need them

    return {
        "step": repeated(step, steps),
        "computing": repeated(compute, steps),
        "communication": repeated(reduce, steps),
    }


def measure(job: BenchJob, *, groupings: str, rounds: int, steps: int) -> Outcome:
    """How much communication backward hides: a step, its computation, its communication alone."""
    rules = groupings.split(";")
    loaded = {rule: job.load(f"comm.groups={rule}") for rule in rules}
    run = loaded[rules[0]].run
    if (ranks := build_plan(run).ranks) < 2:
        raise UserError(
            "bench overlap: two ranks or more expected, found 1: nothing to send"
        )
    load_ready(job)
    step_ms = {}
    measurements = {}
    for rule in in_turn(job, "timing steps", loaded, 1):
        kinds = measure_on_ranks(job, loaded[rule], time_kinds, rounds, steps)
        step_ms[rule] = {
            variant: scaled(times, 1e3) for variant, times in kinds.items()
        }
        for variant, times_ms in step_ms[rule].items():
            measurements[f"{rule}: {variant}"] = times_ms
    rows = overlap_rows({rule: step_ms[rule] for rule in loaded})
    return Outcome(
        rows=rows,
        figures={"ranks": ranks, "batch per rank": run.batch.per_rank},
        measurements={"ms a step": measurements},
        ratios={
            f"{row['groups']}: hidden part of communication": row["hidden"]
            for row in rows
        },
        columns=COLUMNS,
    )


COLUMNS = {
    "groups": "{groups}",
    "step ms": "{step[median]:.1f}",
    "computing ms": "{computing[median]:.1f}",
    "communication ms": "{communication[median]:.1f}",
    "exposed ms": "{exposed[median]:.1f}",
    "hidden": "{hidden[median]:.2f}",
    "min": "{hidden[min]:.2f}",
    "max": "{hidden[max]:.2f}",
    "n": "{hidden[n]}",
}


def overlap_rows(
    step_ms: Mapping[str, Mapping[str, Sequence[float]]],
) -> list[dict[str, Any]]:
    """One row a grouping. `step_ms`: grouping -> `step`, `computing`, `communication` -> a value
    for each round."""
    rows = []
    for rule, kinds in step_ms.items():
        step = kinds["step"]
        computing = kinds["computing"]
        communication = kinds["communication"]
        exposed = [s - c for s, c in zip(step, computing, strict=True)]
        hidden = [c - e for c, e in zip(communication, exposed, strict=True)]
        rows.append(
            {
                "groups": rule,
                "step": spread(step),
                "computing": spread(computing),
                "communication": spread(communication),
                "exposed": spread(exposed),
                "hidden": ratio_spread(hidden, communication),
            }
        )
    return rows
