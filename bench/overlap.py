"""`rn50 bench overlap`: what of communication backward hides, and whether that can be told.

A step, its computing alone and its communication alone are timed in turn; exposed is the step less
its computing, hidden is 1 - exposed / communication. Where communication is a few per cent of
computing, exposed is a small difference of two large times: such figures are marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Any

from ..config.errors import UserError
from ..config.plan import build_plan
from ..config.schema import Comm
from .harness import Job, Outcome, bench, option, ratio_spread, repeated, scaled, spread
from .jobs import load_ready, measure_on_ranks

if TYPE_CHECKING:
    from ..train.trainer import Trainer

MOST_UNCERTAIN = 0.25
"""Half width of the 90 % interval of a hidden part up to which it counts: a half can then be kept
apart from nothing and from all of it."""
MARK = "?"
"""Stands in a table for a part that is not resolvable."""
_T_95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
"""Student's t that 95 % lie below, for 1 to 10 degrees of freedom; for more that of ten, which is
on the safe side of 1.64."""


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
            "most uncertain hidden part that counts": MOST_UNCERTAIN,
        },
        measurements={
            "ms a step": {
                f"{rule}: {kind}": scaled(kinds[kind], 1e3)
                for rule, kinds in seconds.items()
                for kind in ("step", "computing", "communication")
            }
        },
        ratios={
            f"{row['groups']}: hidden part of communication": row["hidden"]
            for row in rows
            if row["resolvable"]
        },
        header=OVERLAP_HEADER,
        table=overlap_table(rows),
        notes=unresolved_notes(rows),
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
    """One row a grouping, its times in seconds.

    `hidden_uncertainty` is half the width of the 90 % interval of the mean hidden part, from the
    spread of exposed from round to round, pooled over all groupings, over communication.

    Args:
        seconds: grouping -> `step`, `computing`, `communication` -> a value for each round.
    """
    exposed = {
        rule: [s - c for s, c in zip(kinds["step"], kinds["computing"], strict=True)]
        for rule, kinds in seconds.items()
    }
    rows = []
    for rule, kinds in seconds.items():
        communication = kinds["communication"]
        error_s = half_width(list(exposed.values()))
        uncertainty = None if error_s is None else error_s / median(communication)
        rows.append(
            {
                "groups": rule,
                "step_s": spread(kinds["step"]),
                "computing_s": spread(kinds["computing"]),
                "communication_s": spread(communication),
                "exposed_s": spread(exposed[rule]),
                "hidden": ratio_spread(
                    [m - e for e, m in zip(exposed[rule], communication, strict=True)],
                    communication,
                ),
                "hidden_uncertainty": uncertainty,
                "resolvable": uncertainty is not None and uncertainty <= MOST_UNCERTAIN,
                "communication_per_computing": ratio_spread(communication, kinds["computing"]),
            }
        )
    return rows


def half_width(groups: Sequence[Sequence[float]]) -> float | None:
    """Half the width of the 90 % interval of the mean of one of the `groups`: t s / sqrt(n).

    Args:
        groups: n repeated measurements each, whose standard deviation around each group's own mean
            is s; in the unit of the result.

    Returns:
        None where nothing was repeated: one measurement shows no spread.
    """
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    squares = math.fsum((value - fmean(group)) ** 2 for group in groups for value in group)
    t = _T_95[min(freedom, len(_T_95)) - 1]
    return t * math.sqrt(squares / freedom / len(groups[0]))


def unresolved_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the mark means and what would resolve it; nothing where nothing is marked."""
    marked = [row["groups"] for row in rows if not row["resolvable"]]
    if not marked:
        return []
    return [
        f"{MARK}: not resolvable: {'; '.join(marked)}: +-{MOST_UNCERTAIN:g} expected (half of the "
        "90 % interval): more --rounds (two at least) or --steps or a slower network "
        "(tests/lab/netlab.sh) would resolve it"
    ]


_KINDS = ("step", "computing", "communication", "exposed")
OVERLAP_HEADER = (
    *("groups", *(f"{kind} ms" for kind in _KINDS), "comm/comp"),
    *("hidden", "min", "max", "+-", "n"),
)


def overlap_table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Milliseconds a step (medians), then the hidden part, marked where it is not resolvable."""
    return [
        (
            row["groups"],
            *(f"{row[f'{kind}_s']['median'] * 1e3:.1f}" for kind in _KINDS),
            f"{row['communication_per_computing']['median']:.3f}",
            f"{row['hidden']['median']:.2f}" if row["resolvable"] else MARK,
            *(f"{row['hidden'][key]:.2f}" for key in ("min", "max")),
            "-" if row["hidden_uncertainty"] is None else f"{row['hidden_uncertainty']:.2f}",
            str(row["hidden"]["n"]),
        )
        for row in rows
    ]
