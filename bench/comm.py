"""`rn50 bench allreduce` and `startup`: what the ranks do between them, measured and modelled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError
from ..config.load import Loaded
from ..config.progress import Tracker
from ..data.prepare import prepare
from ..launch.launchers import build_job
from ..report.drawing import finish, new_panels, save
from ..scaling.cost import allreduce
from ..scaling.netlab import Point, calibrate_link, calibration_points, predict_s
from ..scaling.topology import Link, flat
from .harness import machine, measure_on_ranks, ratio_spread, spread
from .resolution import half_width, is_resolvable

LoadFor = Callable[[Sequence[str], int], Loaded]
"""(overrides, ranks) -> config."""


class Sum(NamedTuple):
    """Repeated measurements of one allreduce."""

    layer: str
    algorithm: str
    ranks: int
    n_bytes: int
    seconds: list[float]

    @property
    def point(self) -> Point:
        return Point(self.n_bytes, statistics.median(self.seconds), self.algorithm, self.ranks)


class Case(NamedTuple):
    """One job of `bench allreduce`."""

    layer: str
    algorithm: str
    ranks: int


class NotPossible(NamedTuple):
    """A case that cannot be measured, and why."""

    layer: str
    algorithm: str
    ranks: int
    reason: str


def plan_allreduces(
    load_for: LoadFor,
    launcher: str,
    *,
    layers: Sequence[str],
    algorithms: Sequence[str],
    ranks: Sequence[int],
) -> tuple[dict[Case, Loaded], list[NotPossible]]:
    """Every layer x algorithm x rank count: those to measure, and those that nobody can.

    Not possible is an algorithm that the backend does not offer, a grid that the ranks do not
    form, one rank alone, and MPI alone under a launcher that starts no MPI ranks.

    Raises:
        UserError: what is no algorithm at all, or nothing that is possible.
    """
    possible: dict[Case, Loaded] = {}
    refused: list[NotPossible] = []
    for count in ranks:
        for layer in layers:
            for algorithm in algorithms:
                case = Case(layer, algorithm, count)
                loaded = load_for([f"comm.algorithm={algorithm}"], count)
                reason = _why_not(loaded, launcher, case)
                if reason is None:
                    possible[case] = loaded
                else:
                    refused.append(NotPossible(*case, reason))
    if not possible:
        raise UserError(f"bench allreduce: nothing to measure: {refused[0].reason}")
    return possible, refused


def _why_not(loaded: Loaded, launcher: str, case: Case) -> str | None:
    if case.layer == "mpi" and launcher != "mpirun":
        return f"the layer mpi needs --launcher mpirun, found {launcher}"
    if case.ranks < 2:
        return "two ranks or more expected: one has nothing to send"
    try:
        build_job(loaded.run, launcher, ())
    except UserError as error:
        if not str(error).startswith("comm.algorithm: "):
            raise
        return str(error).removeprefix("comm.algorithm: ")
    return None


def bench_allreduce(
    cases: Mapping[Case, Loaded],
    launcher: str,
    *,
    sizes_bytes: Sequence[int],
    rounds: int,
    passes: int,
    progress: Callable[[int, int], None],
) -> list[Sum]:
    """Every size of every case, the cases in turn, `passes` times.

    Raises:
        UserError: a rank that failed.
    """
    sums: dict[tuple[str, str, int, int], list[float]] = {}
    arguments = (",".join(map(str, sizes_bytes)), str(rounds))
    for number in range(passes):
        for done, (case, loaded) in enumerate(cases.items()):
            progress(number * len(cases) + done, passes * len(cases))
            measured = measure_on_ranks(loaded, launcher, "bench_allreduce", case.layer, *arguments)
            for size, seconds in measured.items():
                sums.setdefault((*case, int(size)), []).extend(seconds)
    progress(passes * len(cases), passes * len(cases))
    return [Sum(*key, seconds) for key, seconds in sums.items()]


def fit_link(sums: Iterable[Sum]) -> Link | None:
    """The network's latency and bandwidth from two rings, a small and a large one, of MPI alone
    where it was measured; None where the points do not tell."""
    rings = [s for s in sums if s.algorithm == "ring"]
    pure = [s.point for s in rings if s.layer == "mpi"] or [s.point for s in rings]
    largest = max((point.ranks for point in pure), default=0)
    try:
        return calibrate_link(
            calibration_points([point for point in pure if point.ranks == largest])
        )
    except ValueError:
        return None


def allreduce_rows(sums: Sequence[Sum], link: Link | None) -> list[dict[str, Any]]:
    """One row a measurement: time, bandwidth, steps, the model's time and its error.

    Bus bandwidth is 2 (p - 1) / p n / time: what a link carries where all carry the same.
    """
    rows = []
    for s in sums:
        time_s = s.point.seconds
        network = flat(s.ranks, link or Link(1.0, 1.0))
        model_s = predict_s(s.point, link) if link else None
        rows.append(
            {
                "layer": s.layer,
                "algorithm": s.algorithm,
                "ranks": s.ranks,
                "bytes": s.n_bytes,
                "steps": allreduce(_modelled(s.algorithm), network, s.n_bytes).steps,
                **{f"{name}_s": value for name, value in spread(s.seconds).items() if name != "n"},
                "n": len(s.seconds),
                "bus_bytes_per_s": 2 * (s.ranks - 1) / s.ranks * s.n_bytes / time_s,
                "model_s": model_s,
                "model_error": model_s / time_s - 1 if model_s else None,
            }
        )
    return rows


ALLREDUCE_HEADER = (
    *("layer", "ranks", "bytes", "algorithm", "steps", "ms", "least", "most", "n"),
    *("bus MB/s", "model ms", "error"),
)


def allreduce_table(
    rows: Sequence[dict[str, Any]], refused: Sequence[NotPossible]
) -> list[tuple[str, ...]]:
    """Rows for people, by layer, ranks and size; what is not possible ends its rank count."""
    cells: list[tuple[tuple[str, int, float], tuple[str, ...]]] = [
        (
            (row["layer"], row["ranks"], row["bytes"]),
            (
                *(row["layer"], str(row["ranks"]), str(row["bytes"]), row["algorithm"]),
                str(row["steps"]),
                *(f"{row[key] * 1e3:.2f}" for key in ("median_s", "min_s", "max_s")),
                str(row["n"]),
                f"{row['bus_bytes_per_s'] / 1e6:.1f}",
                "-" if row["model_s"] is None else f"{row['model_s'] * 1e3:.2f}",
                "-" if row["model_error"] is None else f"{row['model_error']:+.0%}",
            ),
        )
        for row in rows
    ]
    for one in refused:
        texts = (one.layer, str(one.ranks), "-", one.algorithm, "-", "not possible")
        blank = ("-",) * (len(ALLREDUCE_HEADER) - len(texts))
        cells.append(((one.layer, one.ranks, math.inf), (*texts, *blank)))
    return [texts for _, texts in sorted(cells, key=lambda cell: cell[0])]


def refusal_lines(refused: Sequence[NotPossible]) -> list[str]:
    """Why what is not possible is not, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for one in refused:
        named = f"{one.algorithm} on {ranks_text(one.ranks)}"
        by_reason.setdefault(one.reason, []).append(named)
    return [
        f"not possible: {', '.join(dict.fromkeys(named))}: {reason}"
        for reason, named in by_reason.items()
    ]


def plot_allreduce(sums: Sequence[Sum], link: Link | None, path: Path) -> None:
    """Time against size, one panel for each layer and rank count; the model as dashed lines."""
    panels = sorted({(s.ranks, s.layer) for s in sums})
    algorithms = list(dict.fromkeys(s.algorithm for s in sums))
    figure, axes = new_panels(len(panels), 4.4)
    for axis, (ranks, layer) in zip(axes, panels, strict=True):
        for number, algorithm in enumerate(algorithms):
            mine = sorted(
                (s for s in sums if (s.ranks, s.layer, s.algorithm) == (ranks, layer, algorithm)),
                key=lambda s: s.n_bytes,
            )
            if not mine:
                continue
            sizes = [s.n_bytes for s in mine]
            times = [s.point.seconds for s in mine]
            low = [t - min(s.seconds) for t, s in zip(times, mine, strict=True)]
            high = [max(s.seconds) - t for t, s in zip(times, mine, strict=True)]
            axis.errorbar(
                sizes,
                times,
                [low, high],
                color=f"C{number}",
                marker="o",
                ms=3,
                lw=1.2,
                capsize=2,
                label=algorithm,
            )
            if link:
                model = [predict_s(s.point, link) for s in mine]
                axis.plot(sizes, model, color=f"C{number}", ls="--", lw=0.8)
        axis.set(xscale="log", yscale="log", xlabel="bytes", title=f"{ranks} ranks, {layer}")
        finish(axis, legend=axis is axes[0])
        axis.sharey(axes[0])
    axes[0].set_ylabel("seconds (median, least, most); dashed: model")
    save(figure, path)


def ranks_text(count: int) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} rank{'s' * (count != 1)}"


def _modelled(algorithm: str) -> str:
    """What stands for `auto` in the cost model: the ring, the engines' choice for gradients."""
    return "ring" if algorithm == "auto" else algorithm


STARTUPS = {
    "serial + broadcast": ["startup.serial=true", "startup.weights=broadcast"],
    "serial + seed": ["startup.serial=true", "startup.weights=seed"],
    "overlapped + seed": ["startup.serial=false", "startup.weights=seed"],
}


def bench_startup(
    load_for: LoadFor,
    launcher: str,
    *,
    ranks: Sequence[int],
    rounds: int,
    delay_s: float,
    track: Tracker,
) -> dict[str, Any]:
    """init_start to run_start of each start-up, in alternation, with connecting as it is and with
    `delay_s` more."""
    loaded = load_for([], ranks[0])
    prepare(loaded.run.data, track, loaded.origins)
    progress = track("starting up")
    delays = [0.0, delay_s] if delay_s else [0.0]
    seconds: dict[tuple[int, float, str], list[float]] = {}
    cases = [(count, delay, name) for count in ranks for delay in delays for name in STARTUPS]
    for turn in range(rounds):
        for done, (count, delay, name) in enumerate(cases if turn % 2 else cases[::-1]):
            progress(turn * len(cases) + done, rounds * len(cases))
            loaded = load_for(STARTUPS[name], count)
            measured = measure_on_ranks(loaded, launcher, "bench_startup", str(delay))
            seconds.setdefault((count, delay, name), []).append(measured["init_s"])
    progress(rounds * len(cases), rounds * len(cases))
    ratios: dict[str, Any] = {}
    for count in ranks:
        for delay in delays:
            usual = seconds[count, delay, "serial + broadcast"]
            for name in list(STARTUPS)[1:]:
                ratios[
                    f"{ranks_text(count)}, connecting +{delay:g} s: {name} / serial + broadcast"
                ] = ratio_spread(seconds[count, delay, name], usual)
        if delay_s:
            ours = "overlapped + seed"
            plain, late = seconds[count, 0.0, ours], seconds[count, delay_s, ours]
            hidden = 1 - (statistics.median(late) - statistics.median(plain)) / delay_s
            error_s = half_width([plain, late], len(plain), len(late))
            uncertainty = None if error_s is None else error_s / delay_s
            ratios[f"{ranks_text(count)}: part of the delay hidden (of medians)"] = {
                **spread([hidden]),
                "uncertainty": uncertainty,
                "resolvable": is_resolvable(uncertainty),
            }
    figures = {
        f"{ranks_text(count)}, +{delay:g} s, {name}: seconds": spread(values)
        for (count, delay, name), values in sorted(seconds.items())
    }
    measurements = {
        f"s, {ranks_text(count)}, connecting +{delay:g} s": {
            name: seconds[count, delay, name] for name in STARTUPS
        }
        for count in ranks
        for delay in delays
    }
    return {
        "ratios": ratios,
        "figures": figures,
        "measurements": measurements,
        "machine": machine() | {"launcher": launcher},
    }
