"""`rn50 bench scaling`: networks x rank counts, weak and strong; throughput and efficiency.

Brookhaven's experiment. Weak: the batch of a rank is fixed; strong: the global batch is. Efficiency
against ranks is throughput over that of one rank times the ranks; against cores, times the cores
that the ranks can have, which is what remains to be judged where ranks share cores; against
processor time, images for each second of it, which other work on the machine hardly changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.progress import Tracker
from ..data.prepare import prepare
from ..report.drawing import error_bars, finish, new_panels, save
from .comm import LoadFor
from .harness import machine, measure_on_ranks, spread

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
    """The least global batch that every rank count divides, from `batch` on each of the most."""
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


def bench_scaling(
    load_for: LoadFor,
    launcher: str,
    *,
    models: Sequence[str],
    modes: Sequence[str],
    ranks: Sequence[int],
    global_batch: int | None,
    passes: int,
    rounds: int,
    steps: int,
    track: Tracker,
) -> dict[str, Any]:
    """Each job `passes` times, in alternating order; a pass's figure is the median of its rounds.

    Raises:
        UserError: an unknown network or mode, rank counts without 1, or a failed rank.
    """
    _check("--models", models, tuple(MODELS))
    _check("--modes", modes, MODES)
    if ranks[0] != 1 or list(ranks) != sorted(set(ranks)):
        raise UserError(
            f"--ranks: 1 and rising counts expected, found {','.join(map(str, ranks))}: "
            "efficiency is against one rank"
        )
    base = load_for([], 1)
    batch = base.run.batch.per_rank
    cases = plan_cases(models, modes, ranks, batch, global_batch or common_batch(batch, ranks))
    loaded = {case: _load(load_for, case) for case in dict.fromkeys(cases.values())}
    prepare(base.run.data, track, base.origins)
    progress = track("training")
    images_per_s: dict[Case, list[float]] = {case: [] for case in loaded}
    busy: dict[Case, list[float]] = {case: [] for case in loaded}
    for number in range(passes):
        order = list(loaded) if number % 2 == 0 else list(loaded)[::-1]
        for done, case in enumerate(order):
            progress(number * len(order) + done, passes * len(order))
            arguments = ("bench_scaling", str(rounds), str(steps))
            measured = measure_on_ranks(loaded[case], launcher, *arguments)
            step_s = statistics.median(measured["step_s"])
            images_per_s[case].append(case.ranks * case.per_rank / step_s)
            busy[case].append(statistics.median(measured["busy_cores"]))
    progress(passes * len(loaded), passes * len(loaded))
    points = [
        Point(model, mode, case, images_per_s[case], busy[case])
        for (model, mode, _), case in cases.items()
    ]
    cores = machine()["cores"] // base.run.system.cores_per_rank
    rows = scaling_rows(points, cores=cores, train_samples=base.run.data.train_samples)
    return {
        "ratios": {
            f"{row['model']}, {row['mode']}, {row['ranks']} ranks: efficiency against cores": row[
                "efficiency_cores"
            ]
            for row in rows
            if row["ranks"] > 1
        },
        "figures": {
            "rows": rows,
            "config": base.run.name,
            "crop_px": base.run.data.crop_px,
            "train_samples": base.run.data.train_samples,
            "steps_per_round": steps,
            "rounds_per_pass": rounds,
        },
        "machine": machine() | {"launcher": launcher},
    }


def _check(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise UserError(f"{option}: {', '.join(known)} expected, found {name}")


def _load(load_for: Callable[[Sequence[str], int], Loaded], case: Case) -> Loaded:
    return load_for([*MODELS[case.model], _LR, f"batch.per_rank={case.per_rank}"], case.ranks)


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
                "efficiency_processor": spread(
                    _ratios(_images_per_processor_s(point), _images_per_processor_s(one))
                ),
                "busy_cores": spread(point.busy_cores),
                "shares_cores": ranks > cores,
            }
        )
    return rows


def _ratios(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(mine, others, strict=True)]


def _images_per_processor_s(point: Point) -> list[float]:
    """Images for each second of processor time: what other work on the machine leaves as it is."""
    return _ratios(point.images_per_s, point.busy_cores)


TABLE_HEADER = (
    *("model", "mode", "ranks", "batch", "global", "images/s", "least", "most", "n", "s/epoch"),
    *("speed-up", "eff./ranks", "eff./cores", "eff./cpu s", "busy cores"),
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
            *(f"{row[key]['median']:.2f}" for key in ("efficiency_processor", "busy_cores")),
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
    axes[0].set_ylabel("images/s (median, least, most)")
    save(figure, path)
