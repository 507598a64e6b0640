"""Throughput against ranks: jobs of several rank counts in turn, what follows from their times.

Efficiency is against the fewest ranks of a curve. Against ranks it is throughput over that of the
fewest, rank by rank; against cores, core by core of those that the ranks can have, which is what
remains to be judged where ranks share cores; against CPU-seconds, images for each of them, which
other work on the machine hardly changes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config.load import Loaded
from ..config.schema import Run
from ..report.charts import error_bars
from ..train.capabilities import check_supported
from .harness import Job, Outcome, in_turn, machine, spread
from .jobs import measure_on_ranks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from matplotlib.axes import Axes

    from ..train.trainer import Trainer

Row = dict[str, Any]
Curves = Mapping[tuple[str, ...], Sequence[Row]]
"""Names of each curve -> its rows (`curve_rows`)."""
LOW_LR = "optimizer.base_lr=0.001"
"""One at which every network stays finite."""


class Case(NamedTuple):
    """One job: a network on `ranks` ranks with `per_rank` images each."""

    model: str
    ranks: int
    per_rank: int


class Point(NamedTuple):
    """One measured job; each list has a value for each pass."""

    case: Case
    images_per_s: list[float]
    busy_cores: list[float]

    @property
    def images_per_cpu_s(self) -> list[float]:
        """What other work on the machine leaves as it is."""
        return _ratios(self.images_per_s, self.busy_cores)


def time_rounds(
    started: AbstractContextManager[Trainer], out: Path, rounds: str, steps: str
) -> dict[str, list[float]]:
    """Train on one rank, round after round, each until the last rank has finished.

    `step_s`: wall seconds a step; `busy_cores`: CPU-seconds of all ranks together a wall second.
    """
    from mxnet import nd

    from .rank import alternate_on_ranks, next_steps, rank_rounds

    count = int(steps)
    with started as trainer:
        contenders = {"steps": next_steps(trainer, count)}
        (samples,) = alternate_on_ranks(
            trainer, contenders, rank_rounds(trainer, out, rounds)
        ).values()
        mine = nd.array([sample.cpu_s for sample in samples], trainer.ctx)
        cpu_s = trainer.comm.sum_losses(mine).asnumpy().tolist()
    return {
        "step_s": [sample.wall_s / count for sample in samples],
        "busy_cores": [s / sample.wall_s for s, sample in zip(cpu_s, samples, strict=True)],
    }


def measure_in_turn(
    job: Job, name: str, loaded: Mapping[Case, Loaded], *, passes: int, rounds: int, steps: int
) -> dict[Case, Point]:
    """Run the rank body of benchmark `name` (`time_rounds`) for each case, `passes` times in turn;
    a job's figure is the median of its rounds."""
    for one in loaded.values():
        check_supported(one.run)
    points = {case: Point(case, [], []) for case in loaded}
    for case in in_turn(list(loaded), passes, job.track("training")):
        measured = measure_on_ranks(loaded[case], job.launcher, name, rounds, steps)
        step_s = statistics.median(measured["step_s"])
        points[case].images_per_s.append(case.ranks * case.per_rank / step_s)
        points[case].busy_cores.append(statistics.median(measured["busy_cores"]))
    return points


def curve_rows(curve: Sequence[Point], run: Run) -> list[Row]:
    """One row a point, by rising ranks, each figure with median, extremes and n.

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
        speedups = _ratios(point.images_per_s, least.images_per_s)
        more, more_cores = ranks / least.case.ranks, with_cores / min(least.case.ranks, own)
        rows.append(
            {
                "ranks": ranks,
                "per_rank": point.case.per_rank,
                "global_batch": ranks * point.case.per_rank,
                "images_per_s": spread(point.images_per_s),
                "images_per_s_a_rank": spread([rate / ranks for rate in point.images_per_s]),
                "epoch_s": spread([run.data.train_samples / rate for rate in point.images_per_s]),
                "speedup": spread(speedups),
                "efficiency_ranks": spread([s / more for s in speedups]),
                "efficiency_cores": spread([s / more_cores for s in speedups]),
                "efficiency_cpu": spread(_ratios(point.images_per_cpu_s, least.images_per_cpu_s)),
                "busy_cores": spread(point.busy_cores),
                "ranks_with_own_cores": with_cores,
            }
        )
    return rows


def ranks_with_own_cores(run: Run) -> int:
    """How many ranks can have their cores to themselves. One with a GPU computes there."""
    if run.system.device == "gpu":
        return sys.maxsize
    return max(1, machine()["cores"] // run.system.cores_per_rank)


def _ratios(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(mine, others, strict=True)]


_HEADER = (
    *("ranks", "batch", "global", "images/s", "min", "max", "n", "a rank", "s/epoch"),
    *("speed-up", "eff./ranks", "eff./cores", "eff./CPU-s", "busy cores"),
)


def curves_outcome(
    curves: Curves,
    labels: Sequence[str],
    run: Run,
    draw: Callable[[Path], None],
    **settings: object,
) -> Outcome:
    """What both benchmarks print.

    Args:
        curves: their names -> their rows.
        labels: titles of the names that the table has columns for.
        run: the config that all share.
        draw: for `--plot`.
        settings: said beside the rows in JSON.
    """
    named = [(names, row) for names, rows in curves.items() for row in rows]
    shared = any(_shares_cores(row) for _, row in named)
    return Outcome(
        ratios={
            f"{', '.join(names)}, {row['ranks']} ranks: efficiency against cores": row[
                "efficiency_cores"
            ]
            for names, row in named
            if row is not curves[names][0]
        },
        figures={
            "rows": [dict(zip(labels, names, strict=False)) | row for names, row in named],
            "config": run.name,
            "classes": run.data.classes,
            "crop_px": run.data.crop_px,
            "train_samples": run.data.train_samples,
            **settings,
        },
        header=(*labels, *_HEADER),
        table=[(*names[: len(labels)], *_cells(row)) for names, row in named],
        notes=[f"* more ranks than the {machine()['cores']} cores: they share them"] * shared,
        shows_figures=False,
        draw=draw,
    )


def _cells(row: Row) -> tuple[str, ...]:
    """A row for people; `*` marks ranks that share cores."""
    return (
        f"{row['ranks']}{'*' * _shares_cores(row)}",
        *(str(row["per_rank"]), str(row["global_batch"])),
        *(f"{row['images_per_s'][key]:.1f}" for key in ("median", "min", "max")),
        str(row["images_per_s"]["n"]),
        *(f"{row[key]['median']:.1f}" for key in ("images_per_s_a_rank", "epoch_s")),
        *(f"{row[key]['median']:.2f}" for key in ("speedup", "efficiency_ranks")),
        *(f"{row[key]['median']:.2f}" for key in ("efficiency_cores", "efficiency_cpu")),
        f"{row['busy_cores']['median']:.2f}",
    )


def _shares_cores(row: Row) -> bool:
    return row["ranks_with_own_cores"] < row["ranks"]


def draw_curve(axes: Axes, rows: Sequence[Row], label: str) -> None:
    """Throughput against ranks, with the efficiency against cores; dashed: that of the fewest
    ranks, for each rank that can have its own cores."""
    ranks = [row["ranks"] for row in rows]
    medians, bars = error_bars([row["images_per_s"] for row in rows])
    drawn = axes.errorbar(ranks, medians, bars, marker="o", ms=4, capsize=3, label=label)
    own = [row["ranks_with_own_cores"] for row in rows]
    ideal = [medians[0] * count / own[0] for count in own]
    axes.plot(ranks, ideal, "--", color=drawn.lines[0].get_color(), lw=1, alpha=0.6)
    for row, rate in list(zip(rows, medians, strict=True))[1:]:
        text = f"{row['efficiency_cores']['median']:.0%}"
        axes.annotate(text, (row["ranks"], rate), (4, -12), textcoords="offset points")
    axes.set(xlabel="ranks", ylim=(0, None), xticks=ranks)
