"""`rn50 bench overlap`: what of communication backward hides.

A step, its computing alone and its communication alone are timed in turn; exposed is the step less
its computing, hidden is 1 - exposed / communication. Where communication is a few per cent of
computing, exposed is a small difference of two large times: least and most show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..config.errors import UserError
from ..config.plan import build_plan
from ..config.schema import Comm
from .harness import Job, Outcome, bench, option, ratio_spread, repeated, scaled, spread
from .jobs import load_ready, measure_on_ranks

if TYPE_CHECKING:
    from ..train.trainer import Trainer


def time_kinds(out: Path, rules: str, rounds: str, steps: str) -> dict[str, dict[str, list[float]]]:
    """Seconds of each kind of step on one rank, for each grouping in turn.

    Args:
        rules: groupings as in `comm.groups`, separated by semicolons.
    """
    from .rank import alternate_on_ranks, started_trainer

    count = int(steps)
    seconds: dict[str, dict[str, list[float]]] = {rule: {} for rule in rules.split(";")}
    with started_trainer(out) as trainer:
        kinds_of = _kinds_of_steps(trainer, count)
        for number in range(int(rounds) + 1):
            for rule in seconds:
                found = alternate_on_ranks(trainer, kinds_of(rule), [number], pieces=count)
                for kind, values in found.items():
                    seconds[rule].setdefault(kind, []).extend(values)
    return seconds


def _kinds_of_steps(trainer: Trainer, count: int) -> Callable[[str], dict[str, Callable[[], None]]]:
    """A function that regroups the gradients and returns what to time, `count` steps each.

    The learning rate is 0: the weights stay.
    """
    from mxnet import nd

    from ..train.networks import trainable
    from ..train.optimizer import Updater
    from ..train.own import updater_for
    from ..train.schedule import Settings

    net, _, criterion, _ = trainer.model
    images, labels = (array.copy() for array in trainer.sources.train.next())
    still = Settings(0.0, 0.0, trainer.plan.global_batch_size)

    def step(updater: Updater, *, reduces: bool = True) -> None:
        """As train/loop.py has it."""
        losses = criterion.forward(net, images, labels, 1.0)
        criterion.backward(losses, 1.0)
        if reduces:
            trainer.comm.reduce()
        updater.step(1, still)

    def reduce() -> None:
        trainer.comm.reduce()
        nd.waitall()  # one after the other, as steps need them

    def kinds_of(rule: str) -> dict[str, Callable[[], None]]:
        parameters = trainable(net)
        trainer.comm.plan_groups(rule, parameters, trainer.run.comm.gradient_dtype)
        net.hybridize(static_alloc=True, static_shape=True)  # gradients have moved
        comm = trainer.comm
        updater = updater_for(comm.operators, parameters, trainer.run.optimizer, comm.buckets)
        step(updater)  # compiles; places in the response cache, memory of the new arrays
        kinds: dict[str, Callable[[], object]] = {
            "step": partial(step, updater),
            "computing": partial(step, updater, reduces=False),
            "communication": reduce,
        }
        return {name: repeated(kind, count) for name, kind in kinds.items()}

    return kinds_of


@bench("overlap", rank=time_kinds, config="quick", takes_ranks=True)
def overlap(
    job: Job,
    *,
    groupings: Annotated[
        str, option("As in `comm.groups`, separated by semicolons.")
    ] = "single;equal_count(4);equal_bytes(4);equal_bytes(8);cubic(3)",
    rounds: Annotated[int, option("Rounds; each times every grouping.", min=1)] = 10,
    steps: Annotated[int, option("Steps of each kind in a round.", min=1)] = 20,
) -> Outcome:
    """How much communication backward hides: a step, its computation and its communication alone.

    For each grouping in turn. Exposed is the step less its computation, hidden is the rest of the
    communication.

    Example: `tests/lab/netlab.sh run 2 350 100 -- rn50 bench overlap quick`
    """
    rules = parse_groupings(groupings)
    loaded = job.load()
    if (ranks := build_plan(loaded.run).ranks) < 2:
        raise UserError("bench overlap: two ranks or more expected, found 1: nothing to send")
    load_ready(job)
    job.track("timing steps")
    seconds = measure_on_ranks(loaded, job.launcher, "overlap", ";".join(rules), rounds, steps)
    rows = overlap_rows(seconds)
    return Outcome(
        rows=rows,
        figures={
            "ranks": ranks,
            "batch per rank": loaded.run.batch.per_rank,
        },
        measurements={
            "ms a step": {
                f"{rule}: {kind}": scaled(kinds[kind], 1e3)
                for rule, kinds in seconds.items()
                for kind in ("step", "computing", "communication")
            }
        },
        ratios={f"{row['groups']}: hidden part of communication": row["hidden"] for row in rows},
        header=OVERLAP_HEADER,
        table=overlap_table(rows),
    )


def parse_groupings(text: str) -> list[str]:
    """`single;cubic(3)` -> rules, each as `comm.groups` takes it."""
    rules = text.split(";")
    for rule in rules:
        try:
            Comm(groups=rule if rule != "auto" else "")
        except ValueError:
            raise UserError(
                "--groupings: rules of comm.groups with semicolons expected, such as "
                f"single;cubic(3); found {rule}"
            ) from None
    return rules


def overlap_rows(seconds: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """One row a grouping, its times in seconds. `seconds`: grouping -> `step`, `computing`,
    `communication` -> a value for each round."""
    rows = []
    for rule, kinds in seconds.items():
        communication = kinds["communication"]
        exposed = [s - c for s, c in zip(kinds["step"], kinds["computing"], strict=True)]
        rows.append(
            {
                "groups": rule,
                "step_s": spread(kinds["step"]),
                "computing_s": spread(kinds["computing"]),
                "communication_s": spread(communication),
                "exposed_s": spread(exposed),
                "hidden": ratio_spread(
                    [m - e for e, m in zip(exposed, communication, strict=True)],
                    communication,
                ),
                "communication_per_computing": ratio_spread(communication, kinds["computing"]),
            }
        )
    return rows


_KINDS = ("step", "computing", "communication", "exposed")
OVERLAP_HEADER = (
    *("groups", *(f"{kind} ms" for kind in _KINDS), "comm/comp"),
    *("hidden", "min", "max", "n"),
)


def overlap_table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Milliseconds a step (medians), then the hidden part."""
    return [
        (
            row["groups"],
            *(f"{row[f'{kind}_s']['median'] * 1e3:.1f}" for kind in _KINDS),
            f"{row['communication_per_computing']['median']:.3f}",
            *(f"{row['hidden'][key]:.2f}" for key in ("median", "min", "max")),
            str(row["hidden"]["n"]),
        )
        for row in rows
    ]
