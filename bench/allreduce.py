"""`rn50 bench allreduce`: allreduces over size, algorithm and ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ..config.load import Loaded, load
from ..host.errors import UserError
from ..launch.launchers import build_job
from ..logging.timeline import Timeline
from ..train.process_info import read_process_info
from .harness import (
    BenchJob,
    Outcome,
    Samples,
    alternate,
    in_turn,
    parse_counts,
    ranks_text,
    repeated,
    scaled,
    spread,
)
from .jobs import measure_on_ranks


def time_sizes(out: Path, sizes_bytes: Sequence[int], rounds: int) -> Samples:
    """Seconds of an allreduce of each size on one rank, by the trainer's communicator: those of the
    slowest. The first of each size is not timed."""
    import horovod.mxnet as hvd
    import mxnet as mx

    from ..train.communication.communicator import Communicator
    from ..train.communication.connection import Connection
    from ..train.operators import Operators

    run = load(str(out / "config.yaml")).run
    over_mpi = read_process_info().over_mpi
    connection = Connection(run, Timeline(0), over_mpi=over_mpi)
    comm = Communicator(Operators(mx.cpu()), connection)
    comm.start()
    seconds: Samples = {}
    columns = max(1, len(connection.columns))
    for size_bytes in sizes_bytes:
        # a torus cuts an array into equal parts
        rows = -(-size_bytes // 4 // columns)
        array = mx.nd.zeros(rows * columns)

        def add(array: Any = array) -> None:
            """Sum the array over all ranks, to its end."""
            comm.sum_(array, f"sum{array.size}", 0)
            array.wait_to_read()

        # Ranks leave the barrier before a measurement up to a latency apart, and the first waits
        # for the last: with a single sum of 4 KB on two hosts one step and two steps both took
        # 10.3 ms, at 5 ms a step.
        repeats = max(1, min(10, 1_000_000 // size_bytes))
        seconds |= alternate(
            {str(size_bytes): repeated(add, repeats)},
            rounds,
            barrier=comm.barrier,
            pieces=repeats,
        )
    # Ranks leave a barrier one after the other; the first of them sees the whole sum.
    for size, times in seconds.items():
        slowest = hvd.allreduce(mx.nd.array(times), op=hvd.Max, name="slowest")
        seconds[size] = slowest.asnumpy().tolist()
    comm.stop()
    return seconds


class Case(NamedTuple):
    """One job of `bench allreduce`."""

    algorithm: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.algorithm} on {ranks_text(self.ranks)}"


def measure(
    job: BenchJob, *, ranks: str, sizes: str, algorithms: str, rounds: int, passes: int
) -> Outcome:
    """Allreduce over size x algorithm x ranks: time and bandwidth."""
    names = re.findall(r"[^,(]+(?:\([^)]*\))?", algorithms)
    counts = parse_counts("--ranks", ranks)
    requested = [Case(name, on_ranks) for on_ranks, name in product(counts, names)]
    cases, refused = plan_allreduces(job, requested)
    sizes_bytes = parse_sizes(sizes)
    seconds: dict[tuple[Case, int], list[float]] = defaultdict(list)
    for case in in_turn(job, "measuring allreduces", cases, passes):
        times_s = measure_on_ranks(job, cases[case], time_sizes, sizes_bytes, rounds)
        for size, times in times_s.items():
            seconds[case, int(size)] += times
    ms = {
        f"{case}, {size:,} bytes": scaled(times, 1e3)
        for (case, size), times in seconds.items()
    }
    return Outcome(
        rows=allreduce_rows(seconds),
        figures={"not possible": refused},
        measurements={"ms": ms},
        columns=COLUMNS,
        notes=[f"not possible: {reason}" for reason in refused],
    )


def parse_sizes(sizes: str) -> list[int]:
    """`4k,1M,300` -> bytes."""
    if not re.fullmatch(r"[1-9]\d{0,8}[kM]?(,[1-9]\d{0,8}[kM]?)*", sizes):
        raise UserError(
            f"--sizes: bytes with commas expected, such as 4k,1M; found {sizes}"
        )
    sizes = sizes.replace("k", "000").replace("M", "000000")
    return [int(part) for part in sizes.split(",")]


def plan_allreduces(
    job: BenchJob, requested: Iterable[Case]
) -> tuple[dict[Case, Loaded], list[str]]:
    """The cases to measure with their configs, and why the others cannot be measured: an algorithm
    that the backend does not offer, a grid that the ranks do not form. Raises UserError: an
    algorithm that does not exist, or no case is possible."""
    possible = {}
    refused = []
    for case in requested:
        loaded = job.load(f"comm.algorithm={case.algorithm}", ranks=case.ranks)
        try:
            build_job(loaded.run, job.launcher, ())
            possible[case] = loaded
        except UserError as error:
            refused.append(f"{case}: {error}")
    if not possible:
        reason = (refused or ["no algorithm"])[0]
        raise UserError(f"bench allreduce: nothing to measure: {reason}")
    return possible, refused


COLUMNS = {
    "ranks": "{ranks}",
    "bytes": "{bytes}",
    "algorithm": "{algorithm}",
    "n": "{ms[n]}",
    "ms": "{ms[median]:.2f}",
    "min": "{ms[min]:.2f}",
    "max": "{ms[max]:.2f}",
    "bus MB/s": "{bus_mb_per_s:.1f}",
}


def allreduce_rows(
    seconds: Mapping[tuple[Case, int], list[float]],
) -> list[dict[str, Any]]:
    """One row a measurement: time and bandwidth, by ranks and size.

    Bus bandwidth is 2 (p - 1) / p n / time: what a link carries where all carry the same.
    """
    rows = []
    for (case, size_bytes), times in seconds.items():
        ms = spread(scaled(times, 1e3))
        on_the_bus = 2 * (case.ranks - 1) / case.ranks * size_bytes
        rows.append(
            {
                **case._asdict(),
                "bytes": size_bytes,
                "ms": ms,
                "bus_mb_per_s": on_the_bus / ms["median"] / 1e3,
            }
        )
    return sorted(rows, key=itemgetter("ranks", "bytes"))
