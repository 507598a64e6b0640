"""`rn50 bench allreduce`: allreduces over size, algorithm and ranks, measured and modelled."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from ..config.errors import UserError
from ..config.load import Loaded, load
from ..launch.launchers import build_job
from ..logging.timeline import Timeline
from ..scaling.cost import allreduce as cost_of
from ..scaling.topology import EAGER_BYTES, Link, flat
from ..train.process_info import read_process_info
from .harness import (
    Job,
    Outcome,
    alternate,
    bench,
    in_turn,
    option,
    parse_counts,
    ranks_text,
    repeated,
    scaled,
    spread,
)
from .jobs import measure_on_ranks


def time_sizes(out: Path, sizes_bytes: str, rounds: str) -> dict[str, list[float]]:
    """Seconds of an allreduce of each size on one rank, by the trainer's communicator: those of the
    slowest. The first of each size is checked and not timed."""
    import horovod.mxnet as hvd
    import mxnet as mx

    from ..train.comm import Communicator
    from ..train.connection import Connection
    from ..train.operators import Operators

    run = load(str(out / "config.yaml")).run
    connection = Connection(run, Timeline(0), over_mpi=read_process_info().over_mpi)
    comm = Communicator(Operators(mx.cpu()), connection)
    comm.start()
    seconds: dict[str, list[float]] = {}
    for size_bytes in map(int, sizes_bytes.split(",")):
        columns = max(1, len(connection.columns))
        array = mx.nd.zeros(-(-size_bytes // 4 // columns) * columns)

        def add(array: Any = array) -> None:
            comm.sum_(array, f"sum{array.size}", 0)
            array.wait_to_read()

        array[:] = comm.rank + 1
        add()
        right = comm.world_size * (comm.world_size + 1) / 2
        if not np.all((found := array.asnumpy()) == right):
            raise RuntimeError(f"{run.comm.algorithm}: sum {right} expected, found {found[:4]}")
        array[:] = 0
        repeats = repeats_per_sample(size_bytes)
        contenders = {str(size_bytes): repeated(add, repeats)}
        turns = range(1, int(rounds) + 1)
        seconds |= alternate(contenders, turns, barrier=comm.barrier, pieces=repeats)
    # Ranks leave a barrier one after the other; the first of them sees the whole sum.
    for size, times in seconds.items():
        slowest = hvd.allreduce(mx.nd.array(times), op=hvd.Max, name="slowest")
        seconds[size] = slowest.asnumpy().tolist()
    comm.stop()
    return seconds


def repeats_per_sample(size_bytes: int) -> int:
    """Sums that one measurement is the mean of.

    Ranks leave the barrier before it up to a latency apart, and the first waits for the last: with
    a single sum of 4 KB on two hosts one step and two steps both took 10.3 ms, at 5 ms a step.
    """
    return max(1, min(10, 1_000_000 // size_bytes))


@bench("allreduce", rank=time_sizes, config="smoke")
def allreduce(
    job: Job,
    *,
    ranks: Annotated[str, option("Rank counts, such as `2,4,8`.")] = "2,4",
    sizes: Annotated[str, option("Message sizes; k and M are powers of 1000.")] = "4k,64k,1M,25M",
    algorithms: Annotated[
        str, option("As in `comm.algorithm`, grids too: `torus_2d(4x2)`.")
    ] = "ring,recursive_doubling,recursive_halving_doubling,torus_2d",
    rounds: Annotated[int, option("Measurements of each size in a pass.", min=1)] = 5,
    passes: Annotated[int, option("Passes over all algorithms in turn.", min=1)] = 2,
) -> Outcome:
    """Allreduce over size x algorithm x ranks: time, bandwidth and steps against the cost model.

    As training calls it, with Horovod's negotiation. The model's latency and bandwidth come from
    two of the measured rings. Under `tests/lab/netlab.sh run` the ranks are on emulated hosts.

    Example: `rn50 bench allreduce --ranks 2,4 --sizes 4k,1M,25M --plot allreduce.svg`
    """
    names = re.findall(r"[^,(]+(?:\([^)]*\))?", algorithms)
    asked = [Case(name, count) for count, name in product(parse_counts("--ranks", ranks), names)]
    cases, refused = plan_allreduces(job.load, job.launcher, asked)
    measured = _measure(job, cases, parse_sizes(sizes), rounds, passes)
    link = fit_link(one.point for one in measured)
    rows = allreduce_rows(measured, link)
    return Outcome(
        rows=rows,
        figures={
            "link": link and link._asdict(),
            "not_possible": [case._asdict() | {"reason": why} for case, why in refused.items()],
        },
        measurements={"ms": {one.label: scaled(one.seconds, 1e3) for one in measured}},
        header=(*("ranks", "bytes", "algorithm", "steps", "n"), *_COLUMNS),
        table=allreduce_table(rows),
        notes=[*refusal_lines(refused), *([_link_line(link)] if link else [])],
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


class Case(NamedTuple):
    """One job of `bench allreduce`."""

    algorithm: str
    ranks: int


class Measured(NamedTuple):
    """Repeated measurements of one allreduce."""

    case: Case
    n_bytes: int
    seconds: list[float]

    @property
    def label(self) -> str:
        """Of a plot."""
        return f"{self.case.algorithm}, {ranks_text(self.case.ranks)}, {self.n_bytes:,} bytes"

    @property
    def point(self) -> Timed:
        """Its median, for the model, in which `auto` is the ring: the engines' own choice."""
        algorithm = self.case.algorithm.replace("auto", "ring")
        return Timed(self.n_bytes, statistics.median(self.seconds), algorithm, self.case.ranks)


def plan_allreduces(
    load: Callable[..., Loaded], launcher: str, asked: Iterable[Case]
) -> tuple[dict[Case, Loaded], dict[Case, str]]:
    """The cases to measure with their configs, and why the others cannot be measured: an algorithm
    that the backend does not offer, a grid that the ranks do not form, one rank alone. Raises
    UserError: an algorithm that does not exist, or no case is possible."""
    possible: dict[Case, Loaded] = {}
    refused: dict[Case, str] = {}
    for case in asked:
        loaded = load(f"comm.algorithm={case.algorithm}", ranks=case.ranks)
        try:
            build_job(loaded.run, launcher, ())
        except UserError as error:
            refused[case] = str(error)
        else:
            possible[case] = loaded
        if case.ranks < 2:
            refused[case] = "two ranks or more expected: one has nothing to send"
            possible.pop(case, None)
    if not possible:
        raise UserError(f"bench allreduce: nothing to measure: {next(iter(refused.values()))}")
    return possible, refused


def _measure(
    job: Job, cases: Mapping[Case, Loaded], sizes_bytes: Sequence[int], rounds: int, passes: int
) -> list[Measured]:
    """Every size of every case, the cases in turn, `passes` times."""
    seconds: dict[tuple[Case, int], list[float]] = {}
    sizes = ",".join(map(str, sizes_bytes))
    for case in in_turn(list(cases), passes, job.track("measuring allreduces")):
        found = measure_on_ranks(cases[case], job.launcher, "allreduce", sizes, rounds)
        for size, times in found.items():
            seconds.setdefault((case, int(size)), []).extend(times)
    return [Measured(*key, times) for key, times in seconds.items()]


class Timed(NamedTuple):
    """A measured allreduce: algorithm as `comm.algorithm`, with its grid if it has one."""

    n_bytes: float
    seconds: float
    algorithm: str
    ranks: int


def predict_s(point: Timed, link: Link) -> float:
    """The cost model's time for the allreduce of `point`."""
    return cost_of(point.algorithm, flat(point.ranks, link), point.n_bytes).time_s


def calibrate_link(small: Timed, large: Timed) -> Link | None:
    """alpha and beta for which the cost model gives both times; None: no positive ones do.

    Every cost is linear in both: T = A alpha + B beta, A its hops (three each where a message
    exceeds EAGER_BYTES, see `Link`), B the bytes on its path.
    """
    units = Link(1.0, 0.0, 0.0, EAGER_BYTES), Link(0.0, 1.0, 0.0, EAGER_BYTES)
    (hops, n_bytes), (more_hops, more_bytes) = (
        [predict_s(point, unit) for unit in units] for point in (small, large)
    )
    determinant = hops * more_bytes - n_bytes * more_hops
    if not determinant:
        return None
    alpha_s = (small.seconds * more_bytes - large.seconds * n_bytes) / determinant
    beta = (hops * large.seconds - more_hops * small.seconds) / determinant
    return Link(alpha_s, beta, 0.0, EAGER_BYTES) if alpha_s > 0 and beta > 0 else None


def fit_link(points: Iterable[Timed]) -> Link | None:
    """The network's latency and bandwidth from two rings of the most ranks: the smallest, and the
    one nearest to 25 MB (on a log scale); None where they do not give any."""
    rings = [point for point in points if point.algorithm == "ring"]
    most = max((point.ranks for point in rings), default=0)
    rings = [point for point in rings if point.ranks == most]
    if not rings:
        return None
    small = min(rings, key=lambda point: point.n_bytes)
    large = min(rings, key=lambda point: abs(math.log(point.n_bytes / 25e6)))
    return calibrate_link(small, large)


def allreduce_rows(measured: Sequence[Measured], link: Link | None) -> list[dict[str, Any]]:
    """One row a measurement: time, bandwidth, steps, the model's time and its error.

    Bus bandwidth is 2 (p - 1) / p n / time: what a link carries where all carry the same.
    """
    rows = []
    for one in measured:
        found, point, ranks = spread(one.seconds), one.point, one.case.ranks
        network = flat(ranks, link or Link(1.0, 1.0))
        model_s = predict_s(point, link) if link else None
        rows.append(
            {
                **one.case._asdict(),
                "bytes": one.n_bytes,
                "steps": cost_of(point.algorithm, network, point.n_bytes).steps,
                **{f"{name}_s": found[name] for name in ("median", "min", "max")},
                "n": found["n"],
                "bus_bytes_per_s": 2 * (ranks - 1) / ranks * one.n_bytes / point.seconds,
                "model_s": model_s,
                "model_error": model_s / point.seconds - 1 if model_s else None,
            }
        )
    return rows


_COLUMNS = {
    "ms": ("median_s", "{:.2f}", 1e3),
    "min": ("min_s", "{:.2f}", 1e3),
    "max": ("max_s", "{:.2f}", 1e3),
    "bus MB/s": ("bus_bytes_per_s", "{:.1f}", 1e-6),
    "model ms": ("model_s", "{:.2f}", 1e3),
    "error": ("model_error", "{:+.0%}", 1),
}
"""Column -> key of a row, format, factor."""


def allreduce_table(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows for people, by ranks and size."""
    return [
        (
            *(str(row[key]) for key in ("ranks", "bytes", "algorithm", "steps", "n")),
            *(
                "-" if row[key] is None else text.format(row[key] * factor)
                for key, text, factor in _COLUMNS.values()
            ),
        )
        for row in sorted(rows, key=lambda row: (row["ranks"], row["bytes"]))
    ]


def refusal_lines(refused: Mapping[Case, str]) -> list[str]:
    """Why what is not possible is not, a line each."""
    return [
        f"not possible: {case.algorithm} on {ranks_text(case.ranks)}: {reason}"
        for case, reason in refused.items()
    ]
