"""`rn50 bench allreduce` and `startup`: what the ranks do between them, measured and modelled."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config.errors import UserError
from ..config.load import Loaded
from ..data.atomic import write_output
from ..data.prepare import Tracker, prepare
from ..scaling.cost import allreduce
from ..scaling.netlab import Point, calibrate_link, calibration_points, predict_s
from ..scaling.topology import Link, flat
from .bench import machine, measure_on_ranks, ratio_spread, spread

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


def bench_allreduce(
    load_for: LoadFor,
    launcher: str,
    *,
    layers: Sequence[str],
    algorithms: Sequence[str],
    ranks: Sequence[int],
    sizes_bytes: Sequence[int],
    rounds: int,
    passes: int,
    progress: Callable[[int, int], None],
) -> list[Sum]:
    """Every size x algorithm x rank count, the algorithms in turn, `passes` times.

    An algorithm that the launcher's backend or a rank count does not offer is left out; one that
    fits nowhere is an error.

    Raises:
        UserError: an algorithm that nothing offers, or a rank that failed.
    """
    sums: dict[tuple[str, str, int, int], list[float]] = {}
    wanted = [(a, r, layer) for r in ranks for layer in layers for a in algorithms]
    refused: dict[str, UserError] = {}
    for number in range(passes):
        for done, (algorithm, count, layer) in enumerate(wanted):
            progress(number * len(wanted) + done, passes * len(wanted))
            loaded = load_for([f"comm.algorithm={algorithm}"], count)
            arguments = (layer, ",".join(map(str, sizes_bytes)), str(rounds))
            try:
                measured = measure_on_ranks(loaded, launcher, "bench_allreduce", *arguments)
            except UserError as error:
                if not str(error).startswith("comm.algorithm"):
                    raise
                refused[algorithm] = error
                continue
            for size, seconds in measured.items():
                sums.setdefault((layer, algorithm, count, int(size)), []).extend(seconds)
    progress(passes * len(wanted), passes * len(wanted))
    for algorithm, refusal in refused.items():
        if not any(key[1] == algorithm for key in sums):
            raise refusal
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


def plot_allreduce(sums: Sequence[Sum], link: Link | None, path: Path) -> None:
    """Time against size, one panel for each layer and rank count; the model as dashed lines."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    panels = sorted({(s.ranks, s.layer) for s in sums})
    algorithms = list(dict.fromkeys(s.algorithm for s in sums))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 4), squeeze=False, sharey=True
    )
    for axis, (ranks, layer) in zip(axes[0], panels, strict=True):
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
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("seconds (median, least, most); dashed: model")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_output(path, text.getvalue())


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
                ratios[f"{count} ranks, connecting +{delay:g} s: {name} / serial + broadcast"] = (
                    ratio_spread(seconds[count, delay, name], usual)
                )
        if delay_s:
            ours = "overlapped + seed"
            shown = statistics.median(seconds[count, delay_s, ours]) - statistics.median(
                seconds[count, 0.0, ours]
            )
            ratios[f"{count} ranks: part of the delay hidden (of medians)"] = spread(
                [1 - shown / delay_s]
            )
    figures = {
        f"{count} ranks, +{delay:g} s, {name}: seconds": spread(values)
        for (count, delay, name), values in sorted(seconds.items())
    }
    return {"ratios": ratios, "figures": figures, "machine": machine() | {"launcher": launcher}}
