"""`rn50 bench allreduce`: allreduces over size, algorithm and ranks, measured and modelled."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ..config.errors import UserError
from ..config.load import Loaded, load
from ..launch.launchers import build_job
from ..report.charts import finish, new_panels, save
from ..scaling.cost import allreduce as cost_of
from ..scaling.netlab import Point, calibrate_link, calibration_points, predict_s
from ..scaling.topology import Link, flat
from .harness import (
    Job,
    Option,
    Outcome,
    alternate,
    bench,
    in_turn,
    parse_counts,
    ranks_text,
    spread,
    wall_s,
)
from .jobs import measure_on_ranks

LAYERS = ("mpi", "horovod")


def time_sizes(out: Path, layer: str, sizes_bytes: str, rounds: str) -> dict[str, list[float]]:
    """Seconds of an allreduce of each size on one rank: those of the slowest.

    The first of each size is checked and not timed.
    """
    import numpy as np

    from .reducers import Horovod, Mpi

    run = load(str(out / "config.yaml")).run
    ranks: Any = Mpi(run.comm.algorithm) if layer == "mpi" else Horovod(run)
    seconds: dict[str, list[float]] = {}
    for size_bytes in map(int, sizes_bytes.split(",")):
        length = -(-size_bytes // 4 // ranks.columns) * ranks.columns
        flat_array = ranks.array(length)
        flat_array[:] = ranks.rank + 1
        add = ranks.prepare(flat_array)
        add()
        right = ranks.size * (ranks.size + 1) / 2
        found = flat_array if layer == "mpi" else flat_array.asnumpy()
        if not np.all(found == right):
            raise RuntimeError(f"{run.comm.algorithm}: sum {right} expected, found {found[:4]}")
        flat_array[:] = 0
        repeats = repeats_per_sample(size_bytes)
        contenders = {str(size_bytes): _repeated(add, repeats)}
        turns = range(1, int(rounds) + 1)
        seconds |= wall_s(alternate(contenders, turns, barrier=ranks.barrier), each=repeats)
    # Ranks leave a barrier one after the other; the first of them sees the whole sum.
    seconds = {size: ranks.slowest(times) for size, times in seconds.items()}
    ranks.stop()
    return seconds


def _repeated(add: Callable[[], None], repeats: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(repeats):
            add()

    return run


def repeats_per_sample(size_bytes: int) -> int:
    """Sums that one measurement is the mean of.

    Ranks leave the barrier before it up to a latency apart, and the first waits for the last: with
    a single sum of 4 KB on two hosts one step and two steps both took 10.3 ms, at 5 ms a step.
    """
    return max(1, min(10, 1_000_000 // size_bytes))


@bench(
    "allreduce",
    rank=time_sizes,
    config="smoke",
    plot="Write time against size, with the model, as SVG",
)
def allreduce(
    job: Job,
    *,
    ranks: Annotated[str, Option("Rank counts, such as `2,4,8`.")] = "2,4",
    sizes: Annotated[str, Option("Message sizes; k and M are powers of 1000.")] = "4k,64k,1M,25M",
    algorithms: Annotated[
        str, Option("As in `comm.algorithm`, grids too: `torus_2d(4x2)`.")
    ] = "ring,recursive_doubling,recursive_halving_doubling,torus_2d",
    layers: Annotated[
        str, Option("`mpi`: the algorithm alone; `horovod`: as training calls it.")
    ] = "mpi,horovod",
    rounds: Annotated[int, Option("Measurements of each size in a pass.", min=1)] = 5,
    passes: Annotated[int, Option("Passes over all algorithms in turn.", min=1)] = 2,
) -> Outcome:
    """Allreduce over size x algorithm x ranks: time, bandwidth and steps against the cost model.

    The model's latency and bandwidth come from two of the measured rings. Under
    `scripts/netlab.sh run` the ranks are on emulated hosts.

    Example: `rn50 bench allreduce --ranks 2,4 --sizes 4k,1M,25M --plot allreduce.svg`
    """
    wanted = layers.split(",")
    if not set(wanted) <= set(LAYERS):
        raise UserError(f"--layers: mpi or horovod or both expected, found {layers}")
    cases, refused = plan_allreduces(
        *(job.load, job.launcher),
        layers=wanted,
        algorithms=re.findall(r"[^,(]+(?:\([^)]*\))?", algorithms),
        ranks=parse_counts("--ranks", ranks),
    )
    samples = _measure(job, cases, parse_sizes(sizes), rounds, passes)
    link = fit_link(samples)
    rows = allreduce_rows(samples, link)
    return Outcome(
        figures={
            "link": link and link._asdict(),
            "rows": rows,
            "not_possible": [one._asdict() for one in refused],
        },
        header=ALLREDUCE_HEADER,
        table=allreduce_table(rows, refused),
        notes=[*refusal_lines(refused), *([_link_line(link)] if link else [])],
        shows_figures=False,
        draw=lambda path: plot_allreduce(samples, link, path),
    )


def _link_line(link: Link) -> str:
    rate = 1 / link.beta_s_per_byte / 1e6
    return f"model: {link.alpha_s * 1e6:.0f} us a message, {rate:.1f} MB/s, from two rings"


def parse_sizes(text: str) -> list[int]:
    """`4k,1M,300` -> bytes."""
    if not re.fullmatch(r"[1-9]\d{0,8}[kM]?(,[1-9]\d{0,8}[kM]?)*", text):
        raise UserError(f"--sizes: bytes with commas expected, such as 4k,1M; found {text}")
    unit = {"k": 1_000, "M": 1_000_000}
    return [int(part.rstrip("kM")) * unit.get(part[-1], 1) for part in text.split(",")]


class AllreduceSample(NamedTuple):
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
    load: Callable[..., Loaded],
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
                loaded = load(f"comm.algorithm={algorithm}", ranks=count)
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


def _measure(
    job: Job, cases: Mapping[Case, Loaded], sizes_bytes: Sequence[int], rounds: int, passes: int
) -> list[AllreduceSample]:
    """Every size of every case, the cases in turn, `passes` times."""
    seconds: dict[tuple[str, str, int, int], list[float]] = {}
    sizes = ",".join(map(str, sizes_bytes))
    for case in in_turn(list(cases), passes, job.track("measuring allreduces")):
        measured = measure_on_ranks(
            cases[case], job.launcher, "allreduce", case.layer, sizes, rounds
        )
        for size, found in measured.items():
            seconds.setdefault((*case, int(size)), []).extend(found)
    return [AllreduceSample(*key, found) for key, found in seconds.items()]


def fit_link(samples: Iterable[AllreduceSample]) -> Link | None:
    """The network's latency and bandwidth from two rings, a small and a large one, of MPI alone
    where it was measured; None where the points do not tell."""
    rings = [s for s in samples if s.algorithm == "ring"]
    pure = [s.point for s in rings if s.layer == "mpi"] or [s.point for s in rings]
    largest = max((point.ranks for point in pure), default=0)
    try:
        return calibrate_link(
            calibration_points([point for point in pure if point.ranks == largest])
        )
    except ValueError:
        return None


def allreduce_rows(samples: Sequence[AllreduceSample], link: Link | None) -> list[dict[str, Any]]:
    """One row a measurement: time, bandwidth, steps, the model's time and its error.

    Bus bandwidth is 2 (p - 1) / p n / time: what a link carries where all carry the same.
    """
    rows = []
    for s in samples:
        time_s = s.point.seconds
        network = flat(s.ranks, link or Link(1.0, 1.0))
        model_s = predict_s(s.point, link) if link else None
        rows.append(
            {
                "layer": s.layer,
                "algorithm": s.algorithm,
                "ranks": s.ranks,
                "bytes": s.n_bytes,
                "steps": cost_of(_modelled(s.algorithm), network, s.n_bytes).steps,
                **{f"{name}_s": value for name, value in spread(s.seconds).items() if name != "n"},
                "n": len(s.seconds),
                "bus_bytes_per_s": 2 * (s.ranks - 1) / s.ranks * s.n_bytes / time_s,
                "model_s": model_s,
                "model_error": model_s / time_s - 1 if model_s else None,
            }
        )
    return rows


ALLREDUCE_HEADER = (
    *("layer", "ranks", "bytes", "algorithm", "steps", "ms", "min", "max", "n"),
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


def plot_allreduce(samples: Sequence[AllreduceSample], link: Link | None, path: Path) -> None:
    """Time against size, one panel for each layer and rank count; the model as dashed lines."""
    panels = sorted({(s.ranks, s.layer) for s in samples})
    algorithms = list(dict.fromkeys(s.algorithm for s in samples))
    figure, axes = new_panels(len(panels), 4.4)
    for axis, (ranks, layer) in zip(axes, panels, strict=True):
        for number, algorithm in enumerate(algorithms):
            mine = sorted(
                (
                    s
                    for s in samples
                    if (s.ranks, s.layer, s.algorithm) == (ranks, layer, algorithm)
                ),
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
    axes[0].set_ylabel("seconds (median, min, max); dashed: model")
    save(figure, path)


def _modelled(algorithm: str) -> str:
    """What stands for `auto` in the cost model: the ring, the engines' choice for gradients."""
    return "ring" if algorithm == "auto" else algorithm
