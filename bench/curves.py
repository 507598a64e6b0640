"""Throughput against ranks: jobs of several rank counts in turn, what follows from their times.

Speed-up is throughput over that of the fewest ranks of a curve; efficiency is speed-up by rank.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..config.load import Loaded
from ..config.schema import Run
from ..train.capabilities import check_supported
from .harness import BenchJob, Outcome, in_turn, machine, spread
from .jobs import measure_on_ranks
from .random_batch import time_rounds

Row = dict[str, Any]


class Case(NamedTuple):
    """One job: a network on `ranks` ranks with `per_rank` images each."""

    model: str
    ranks: int
    per_rank: int

    @property
    def global_batch(self) -> int:
        """Images of all ranks in a step."""
        return self.ranks * self.per_rank


class Timing(NamedTuple):
    """How often and how long each job is timed."""

    passes: int
    rounds: int
    steps: int


def measure_curves(
    job: BenchJob,
    curves: Mapping[str, Sequence[Case]],
    load: Callable[[Case], Loaded],
    timing: Timing,
) -> Outcome:
    """Measure the jobs of all curves in turn; a job's figure is the median of its rounds.

    Args:
        curves: a curve's label -> its jobs, by rising ranks; equal jobs of several curves are run
            once.
        load: a job -> its config.
    """
    loaded = {case: load(case) for case in chain(*curves.values())}
    runs = [config.run for config in loaded.values()]
    for run in runs:
        check_supported(run)
    rates = defaultdict(list)
    for case in in_turn(job, "training", loaded, timing.passes):
        step_s = measure_on_ranks(
            job, loaded[case], time_rounds, timing.rounds, timing.steps
        )
        rates[case].append(case.global_batch / statistics.median(step_s))
    rows = {}
    for label, cases in curves.items():
        rows[label] = curve_rows({case: rates[case] for case in cases}, runs[0])
    return curves_outcome(rows, runs[0])


def curve_rows(curve: Mapping[Case, Sequence[float]], run: Run) -> list[Row]:
    """What follows from a curve, each figure with median, min, max and n.

    Args:
        curve: the jobs by rising ranks -> images/s of each pass; a pass's speed-up is against the
            same pass's fewest ranks.
        run: the config that they share.
    """
    base = next(iter(curve))
    rows = []
    for case, rates in curve.items():
        pairs = zip(rates, curve[base], strict=True)
        speedups = [rate / of_least for rate, of_least in pairs]
        efficiencies = [speedup * base.ranks / case.ranks for speedup in speedups]
        rows.append(
            {
                "ranks": case.ranks,
                "per_rank": case.per_rank,
                "global_batch": case.global_batch,
                "images_per_s": spread(rates),
                "images_per_s_a_rank": spread([rate / case.ranks for rate in rates]),
                "epoch_s": spread([run.data.train_samples / rate for rate in rates]),
                "speedup": spread(speedups),
                "efficiency": spread(efficiencies),
            }
        )
    return rows


COLUMNS = {
    "curve": "{curve}",
    "ranks": "{ranks}",
    "batch": "{per_rank}",
    "global": "{global_batch}",
    "images/s": "{images_per_s[median]:.1f}",
    "min": "{images_per_s[min]:.1f}",
    "max": "{images_per_s[max]:.1f}",
    "n": "{images_per_s[n]}",
    "a rank": "{images_per_s_a_rank[median]:.1f}",
    "s/epoch": "{epoch_s[median]:.1f}",
    "speed-up": "{speedup[median]:.2f}",
    "efficiency": "{efficiency[median]:.2f}",
}


def curves_outcome(curves: Mapping[str, Sequence[Row]], run: Run) -> Outcome:
    """What is printed and drawn of `curves`: label -> rows, of the config `run`."""
    ratios = {}
    table: list[Row] = []
    for label, rows in curves.items():
        table += [{"curve": label} | row for row in rows]
        for row in rows[1:]:
            ratios[f"{label}, {row['ranks']} ranks: efficiency"] = row["efficiency"]
    max_ranks = max(row["ranks"] for row in table)
    cores = machine()["cores"]
    needed = max_ranks * run.system.cores_per_rank
    shared = run.system.device == "cpu" and needed > cores
    return Outcome(
        ratios=ratios,
        rows=table,
        figures={
            "config": run.name,
            "classes": run.data.classes,
            "crop_px": run.data.crop_px,
            "train_samples": run.data.train_samples,
        },
        columns=COLUMNS,
        notes=[f"{max_ranks} ranks need {needed} cores and share {cores}"]
        if shared
        else [],
    )
