"""Throughput against ranks: jobs of several rank counts in turn, what follows from their times.

Efficiency is against the fewest ranks of a curve. Against ranks it is throughput over that of the
fewest, rank by rank; against cores, core by core of those that the ranks can have, which is what
remains to be judged where ranks share cores.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config.load import Loaded
from ..config.schema import Run
from ..train.capabilities import check_supported
from .harness import Job, Outcome, in_turn, machine, spread
from .jobs import measure_on_ranks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..train.trainer import Trainer

Row = dict[str, Any]
LOW_LR = "optimizer.base_lr=0.001"
"""One at which every network stays finite."""


class Case(NamedTuple):
    """One job: a network on `ranks` ranks with `per_rank` images each."""

    model: str
    ranks: int
    per_rank: int


class Point(NamedTuple):
    """One measured job, its throughput in each pass."""

    case: Case
    images_per_s: list[float]


class Timing(NamedTuple):
    """How often and how long each job is timed."""

    passes: int
    rounds: int
    steps: int


def time_rounds(started: AbstractContextManager[Trainer], rounds: str, steps: str) -> list[float]:
    """Train on one rank, round after round, each until the last rank has finished: wall seconds a
    step."""
    from .rank import alternate_on_ranks, next_steps

    count = int(steps)
    with started as trainer:
        contenders = {"steps": next_steps(trainer, count)}
        turns = range(int(rounds) + 1)
        return alternate_on_ranks(trainer, contenders, turns, pieces=count)["steps"]


def measure_curves(
    job: Job,
    name: str,
    curves: Mapping[str, Sequence[Case]],
    load: Callable[[Case], Loaded],
    timing: Timing,
) -> Outcome:
    """Measure the jobs of all curves in turn; a job's figure is the median of its rounds.

    Args:
        name: the benchmark whose rank body is `time_rounds`.
        curves: a curve's label -> its jobs; equal jobs of several curves are run once.
        load: a job -> its config.
    """
    loaded = {case: load(case) for cases in curves.values() for case in cases}
    for one in loaded.values():
        check_supported(one.run)
    points = {case: Point(case, []) for case in loaded}
    for case in in_turn(list(loaded), timing.passes, job.track("training")):
        step_s = measure_on_ranks(loaded[case], job.launcher, name, timing.rounds, timing.steps)
        rate = case.ranks * case.per_rank / statistics.median(step_s)
        points[case].images_per_s.append(rate)
    run = next(iter(loaded.values())).run
    rows = {
        label: curve_rows([points[case] for case in cases], run) for label, cases in curves.items()
    }
    return curves_outcome(rows, run, timing)


def curve_rows(curve: Sequence[Point], run: Run) -> list[Row]:
    """What follows from a curve, by rising ranks, each figure with median, min, max and n.

    A pass's efficiency is against the same pass's fewest ranks.

    Args:
        curve: the points of one curve.
        run: the config that they share.
    """
    curve = sorted(curve, key=lambda point: point.case.ranks)
    least, own = curve[0], ranks_with_own_cores(run)
    rows = []
    for point in curve:
        ranks = point.case.ranks
        with_cores = min(ranks, own)
        pairs = zip(point.images_per_s, least.images_per_s, strict=True)
        speedups = [rate / least_rate for rate, least_rate in pairs]
        more, more_cores = ranks / least.case.ranks, with_cores / min(least.case.ranks, own)
        figures = {
            "images_per_s": point.images_per_s,
            "images_per_s_a_rank": [rate / ranks for rate in point.images_per_s],
            "epoch_s": [run.data.train_samples / rate for rate in point.images_per_s],
            "speedup": speedups,
            "efficiency_ranks": [speedup / more for speedup in speedups],
            "efficiency_cores": [speedup / more_cores for speedup in speedups],
        }
        rows.append(
            {
                "ranks": ranks,
                "per_rank": point.case.per_rank,
                "global_batch": ranks * point.case.per_rank,
                "ranks_with_own_cores": with_cores,
                **{name: spread(values) for name, values in figures.items()},
            }
        )
    return rows


def ranks_with_own_cores(run: Run) -> int:
    """How many ranks can have their cores to themselves. One with a GPU computes there."""
    if run.system.device == "gpu":
        return sys.maxsize
    return max(1, machine()["cores"] // run.system.cores_per_rank)


_MEDIANS = {
    "a rank": ("images_per_s_a_rank", 1),
    "s/epoch": ("epoch_s", 1),
    "speed-up": ("speedup", 2),
    "eff./ranks": ("efficiency_ranks", 2),
    "eff./cores": ("efficiency_cores", 2),
}
"""Column -> a figure of a row, whose median it shows, and its decimals."""


def curves_outcome(curves: Mapping[str, Sequence[Row]], run: Run, timing: Timing) -> Outcome:
    """What is printed and drawn of `curves`: label -> rows, of the config `run`."""
    shared = any(_shares_cores(row) for rows in curves.values() for row in rows)
    return Outcome(
        ratios={
            f"{label}, {row['ranks']} ranks: efficiency against cores": row["efficiency_cores"]
            for label, rows in curves.items()
            for row in rows[1:]
        },
        rows=[{"curve": label} | row for label, rows in curves.items() for row in rows],
        figures={
            "config": run.name,
            "classes": run.data.classes,
            "crop_px": run.data.crop_px,
            "train_samples": run.data.train_samples,
            "steps_per_round": timing.steps,
            "rounds_per_pass": timing.rounds,
        },
        header=("curve", "ranks", "batch", "global", "images/s", "min", "max", "n", *_MEDIANS),
        table=[(label, *_cells(row)) for label, rows in curves.items() for row in rows],
        notes=[f"* more ranks than the {machine()['cores']} cores: they share them"] * shared,
    )


def _cells(row: Row) -> tuple[str, ...]:
    """A row for people; `*` marks ranks that share cores."""
    return (
        f"{row['ranks']}{'*' * _shares_cores(row)}",
        *(str(row["per_rank"]), str(row["global_batch"])),
        *(f"{row['images_per_s'][key]:.1f}" for key in ("median", "min", "max")),
        str(row["images_per_s"]["n"]),
        *(f"{row[name]['median']:.{decimals}f}" for name, decimals in _MEDIANS.values()),
    )


def _shares_cores(row: Row) -> bool:
    return row["ranks_with_own_cores"] < row["ranks"]
