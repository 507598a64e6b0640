"""`rn50 bench scaling`: networks x rank counts, weak and strong; throughput and efficiency.

Brookhaven's experiment. Weak: the batch of a rank is fixed; strong: the global batch is. Efficiency
against ranks is throughput over that of one rank times the ranks; against cores, times the cores
that the ranks can have, which is what remains to be judged where ranks share cores; against
CPU-seconds, images for each of them, which other work on the machine hardly changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ..config.errors import UserError
from ..config.load import Loaded
from ..data.prepare import prepare
from ..report.charts import error_bars, finish, new_panels, save
from .harness import Job, Outcome, bench, in_turn, machine, option, parse_counts, spread
from .jobs import measure_on_ranks

_PLAIN = ("model.width=64", "model.stem=imagenet", "model.zero_gamma=false", "model.depth=50")
MODELS: dict[str, tuple[str, ...]] = {
    "alexnet": ("model.network=alexnet", *_PLAIN),
    "googlenet": ("model.network=googlenet", *_PLAIN),
    "resnet50": ("model.network=resnet", *_PLAIN),
}
"""What makes each network of a config: the real ones, whatever its own is narrowed to."""
MODES = ("weak", "strong")
_LR = "optimizer.base_lr=0.001"  # one at which each of them stays finite


class Case(NamedTuple):
    """One job: a network on `ranks` ranks with `per_rank` images each."""

    model: str
    ranks: int
    per_rank: int


class Point(NamedTuple):
    """One measured point of one curve; `images_per_s` has a value for each pass."""

    model: str
    mode: str
    case: Case
    images_per_s: list[float]
    busy_cores: list[float]

    @property
    def images_per_cpu_s(self) -> list[float]:
        """What other work on the machine leaves as it is."""
        return _ratios(self.images_per_s, self.busy_cores)


def per_rank(mode: str, ranks: int, batch: int, global_batch: int) -> int:
    """Images of a rank in a step. Raises UserError where the global batch does not divide."""
    if mode == "weak":
        return batch
    if global_batch % ranks:
        raise UserError(
            f"--global-batch: a multiple of {ranks} ranks expected, found {global_batch}"
        )
    return global_batch // ranks


def common_batch(batch: int, ranks: Sequence[int]) -> int:
    """The smallest global batch that every rank count divides, from `batch` on each of the most."""
    together = math.lcm(*ranks)
    return -(-batch * ranks[-1] // together) * together


def plan_cases(
    models: Sequence[str],
    modes: Sequence[str],
    ranks: Sequence[int],
    batch: int,
    global_batch: int,
) -> dict[tuple[str, str, int], Case]:
    """(model, mode, ranks) -> its job; weak and strong share the job in which they are the same."""
    return {
        (model, mode, count): Case(model, count, per_rank(mode, count, batch, global_batch))
        for model in models
        for mode in modes
        for count in ranks
    }


def time_rounds(out: Path, rounds: str, steps: str) -> dict[str, list[float]]:
    """Train on one rank, round after round, each until the last rank has finished.

    `step_s`: wall seconds a step; `busy_cores`: CPU-seconds of all ranks together a wall second.
    """
    from mxnet import nd

    from .rank import alternate_on_ranks, next_steps, rank_rounds, started_trainer

    count = int(steps)
    with started_trainer(out) as trainer:
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


@bench(
    "scaling",
    rank=time_rounds,
    config="cpu_small",
    plot="Write throughput against ranks as SVG",
)
def scaling(
    job: Job,
    *,
    models: Annotated[str, option("alexnet, googlenet, resnet50.")] = "alexnet,googlenet,resnet50",
    ranks: Annotated[str, option("Rank counts from 1 on.")] = "1,2,4",
    modes: Annotated[
        str, option("weak: a rank's batch is fixed; strong: the global batch.")
    ] = "weak,strong",
    global_batch: Annotated[
        int | None,
        option(
            "For strong; default: `batch.per_rank` x the most ranks, so that all divide it.", min=1
        ),
    ] = None,
    passes: Annotated[int, option("Jobs of each case, in turn.", min=1)] = 3,
    rounds: Annotated[int, option("Rounds of a job.", min=1)] = 3,
    steps: Annotated[int, option("Steps of a round.", min=1)] = 4,
) -> Outcome:
    """Networks x rank counts, weak and strong: images/s, seconds per epoch, efficiency.

    The real trainer on the config's images, with networks of full width. If ranks share cores
    (marked `*`), only the efficiency per core is meaningful.

    Example: `rn50 bench scaling cpu_small --models resnet50 --ranks 1,2,4 --plot scaling.svg`
    """
    counts, names, kinds = parse_counts("--ranks", ranks), models.split(","), modes.split(",")
    _check("--models", names, tuple(MODELS))
    _check("--modes", kinds, MODES)
    if counts[0] != 1 or counts != sorted(set(counts)):
        raise UserError(
            f"--ranks: 1 and rising counts expected, found {ranks}: efficiency is against one rank"
        )
    base = job.load(ranks=1)
    batch = base.run.batch.per_rank
    cases = plan_cases(names, kinds, counts, batch, global_batch or common_batch(batch, counts))
    loaded = {case: _load(job, case) for case in dict.fromkeys(cases.values())}
    prepare(base.run.data, job.track, base.origins)
    images_per_s: dict[Case, list[float]] = {case: [] for case in loaded}
    busy: dict[Case, list[float]] = {case: [] for case in loaded}
    for case in in_turn(list(loaded), passes, job.track("training")):
        measured = measure_on_ranks(loaded[case], job.launcher, "scaling", rounds, steps)
        step_s = statistics.median(measured["step_s"])
        images_per_s[case].append(case.ranks * case.per_rank / step_s)
        busy[case].append(statistics.median(measured["busy_cores"]))
    points = [
        Point(model, mode, case, images_per_s[case], busy[case])
        for (model, mode, _), case in cases.items()
    ]
    cores = machine()["cores"] // base.run.system.cores_per_rank
    rows = scaling_rows(points, cores=cores, train_samples=base.run.data.train_samples)
    return Outcome(
        ratios={
            f"{row['model']}, {row['mode']}, {row['ranks']} ranks: efficiency against cores": row[
                "efficiency_cores"
            ]
            for row in rows
            if row["ranks"] > 1
        },
        figures={
            "rows": rows,
            "config": base.run.name,
            "crop_px": base.run.data.crop_px,
            "train_samples": base.run.data.train_samples,
            "steps_per_round": steps,
            "rounds_per_pass": rounds,
        },
        header=TABLE_HEADER,
        table=table_rows(rows),
        notes=[f"* more ranks than the {machine()['cores']} cores: they share them"]
        if any(row["shares_cores"] for row in rows)
        else [],
        shows_figures=False,
        draw=lambda path: plot_scaling(rows, machine()["cores"], path),
    )


def _check(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise UserError(f"{option}: {', '.join(known)} expected, found {name}")


def _load(job: Job, case: Case) -> Loaded:
    settings = (*MODELS[case.model], _LR, f"batch.per_rank={case.per_rank}")
    return job.load(*settings, ranks=case.ranks)


def scaling_rows(
    points: Sequence[Point], *, cores: int, train_samples: int
) -> list[dict[str, Any]]:
    """One row a point, each figure with median, extremes and n.

    A pass's efficiency is against the same pass's one rank.

    Args:
        cores: how many ranks can have their cores to themselves.
        train_samples: images of an epoch.
    """
    alone = {(p.model, p.mode): p for p in points if p.case.ranks == 1}
    rows = []
    for point in points:
        ranks, one = point.case.ranks, alone[point.model, point.mode]
        speedups = _ratios(point.images_per_s, one.images_per_s)
        rows.append(
            {
                "model": point.model,
                "mode": point.mode,
                "ranks": ranks,
                "per_rank": point.case.per_rank,
                "global_batch": ranks * point.case.per_rank,
                "images_per_s": spread(point.images_per_s),
                "epoch_s": spread([train_samples / rate for rate in point.images_per_s]),
                "speedup": spread(speedups),
                "efficiency_ranks": spread([s / ranks for s in speedups]),
                "efficiency_cores": spread([s / min(ranks, cores) for s in speedups]),
                "efficiency_cpu": spread(_ratios(point.images_per_cpu_s, one.images_per_cpu_s)),
                "busy_cores": spread(point.busy_cores),
                "shares_cores": ranks > cores,
            }
        )
    return rows


def _ratios(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(mine, others, strict=True)]


TABLE_HEADER = (
    *("model", "mode", "ranks", "batch", "global", "images/s", "min", "max", "n", "s/epoch"),
    *("speed-up", "eff./ranks", "eff./cores", "eff./CPU-s", "busy cores"),
)


def table_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows for people; `*` marks ranks that share cores."""
    return [
        (
            *(row["model"], row["mode"], f"{row['ranks']}{'*' if row['shares_cores'] else ''}"),
            *(str(row["per_rank"]), str(row["global_batch"])),
            *(f"{row['images_per_s'][key]:.1f}" for key in ("median", "min", "max")),
            str(row["images_per_s"]["n"]),
            f"{row['epoch_s']['median']:.1f}",
            *(
                f"{row[key]['median']:.2f}"
                for key in ("speedup", "efficiency_ranks", "efficiency_cores")
            ),
            *(f"{row[key]['median']:.2f}" for key in ("efficiency_cpu", "busy_cores")),
        )
        for row in rows
    ]


def plot_scaling(rows: Sequence[Mapping[str, Any]], cores: int, path: Path) -> None:
    """Throughput against ranks, a panel for each network and mode; dashed: one rank times the
    cores that the ranks can have."""
    panels = list(dict.fromkeys((row["model"], row["mode"]) for row in rows))
    figure, axes = new_panels(len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        mine = [row for row in rows if (row["model"], row["mode"]) == panel]
        ranks = [row["ranks"] for row in mine]
        medians, bars = error_bars([row["images_per_s"] for row in mine])
        axis.errorbar(ranks, medians, bars, marker="o", ms=4, capsize=3, label="measured")
        ideal = [medians[0] * min(count, cores) for count in ranks]
        axis.plot(ranks, ideal, "--", color="grey", lw=1, label="one rank x its cores")
        for row, rate in zip(mine, medians, strict=True):
            text = f"{row['efficiency_cores']['median']:.0%}"
            axis.annotate(text, (row["ranks"], rate), (4, -12), textcoords="offset points")
        axis.set(title=", ".join(panel), xlabel="ranks", ylim=(0, None), xticks=ranks)
        finish(axis, legend=axis is axes[0])
    axes[0].set_ylabel("images/s (median, min, max)")
    save(figure, path)
