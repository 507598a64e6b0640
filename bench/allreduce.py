"""`rn50 bench allreduce`: allreduces over size, algorithm and ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ..config.errors import UserError
from ..config.load import Loaded, load
from ..launch.launchers import build_job
from ..logging.timeline import Timeline
from ..train.process_info import read_process_info
from .harness import (
    BenchJob,
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
    slowest. The first of each size is not timed."""
    import horovod.mxnet as hvd
    import mxnet as mx

    from ..train.communication.communicator import Communicator
    from ..train.communication.connection import Connection
    from ..train.operators import Operators

    run = load(str(out / "config.yaml")).run
    connection = Connection(
        run,
        Timeline(0),
        over_mpi=read_process_info().over_mpi,
    )
    comm = Communicator(Operators(mx.cpu()), connection)
    comm.start()
    seconds: dict[str, list[float]] = {}
    for size_bytes in map(int, sizes_bytes.split(",")):
        columns = max(1, len(connection.columns))
        array = mx.nd.zeros(-(-size_bytes // 4 // columns) * columns)

        def add(array: Any = array) -> None:
            comm.sum_(array, f"sum{array.size}", 0)
            array.wait_to_read()

        repeats = repeats_per_sample(size_bytes)
        contenders = {str(size_bytes): repeated(add, repeats)}
        turns = range(int(rounds) + 1)
        seconds |= alternate(contenders, turns, barrier=comm.barrier, pieces=repeats)
    # Ranks leave a barrier one after the other; the first of them sees the whole sum.
    for size, times in seconds.items():
        slowest = hvd.allreduce(
            mx.nd.array(times),
            op=hvd.Max,
            name="slowest",
        )
        seconds[size] = slowest.asnumpy().tolist()
    comm.stop()
    return seconds


def repeats_per_sample(size_bytes: int) -> int:
    """Sums that one measurement is the mean of.

    Ranks leave the barrier before it up to a latency apart, and the first waits for the last: with
    a single sum of 4 KB on two hosts one step and two steps both took 10.3 ms, at 5 ms a step.
    """
    return max(1, min(10, 1_000_000 // size_bytes))


class Case(NamedTuple):
    """One job of `bench allreduce`."""

    algorithm: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.algorithm} on {ranks_text(self.ranks)}"


@bench("allreduce", rank=time_sizes, config="smoke")
def allreduce(
    job: BenchJob,
    *,
    ranks: Annotated[str, option("Rank counts, such as `2,4,8`.")] = "2,4",
    sizes: Annotated[
        str, option("Message sizes; k and M are powers of 1000.")
    ] = "4k,64k,1M,25M",
    algorithms: Annotated[
        str, option("As in `comm.algorithm`, grids too: `torus_2d(4x2)`.")
    ] = "ring,recursive_doubling,recursive_halving_doubling,torus_2d",
    rounds: Annotated[int, option("Measurements of each size in a pass.", min=1)] = 5,
    passes: Annotated[int, option("Passes over all algorithms in turn.", min=1)] = 2,
) -> Outcome:
    """Allreduce over size x algorithm x ranks: time and bandwidth.

    As training calls it, with Horovod's negotiation. Under `tests/lab/netlab.sh run` the ranks are
    on emulated hosts.

    Example: `rn50 bench allreduce --ranks 2,4 --sizes 4k,1M,25M --plot allreduce.svg`
    """
    names = re.findall(r"[^,(]+(?:\([^)]*\))?", algorithms)
    asked = [
        Case(name, count)
        for count, name in product(parse_counts("--ranks", ranks), names)
    ]
    cases, refused = plan_allreduces(job, asked)
    sizes_bytes = ",".join(map(str, parse_sizes(sizes)))
    seconds: dict[tuple[Case, int], list[float]] = {}
    for case in in_turn(
        list(cases), passes, job.track("measuring allreduces", ticks=True)
    ):
        found = measure_on_ranks(
            cases[case], job.launcher, "allreduce", sizes_bytes, rounds
        )
        for size, times in found.items():
            seconds.setdefault((case, int(size)), []).extend(times)
    rows = allreduce_rows(seconds)
    ms = {
        f"{case}, {size:,} bytes": scaled(times, 1e3)
        for (case, size), times in seconds.items()
    }
    return Outcome(
        rows=rows,
        figures={"not possible": refused},
        measurements={"ms": ms},
        columns=COLUMNS,
        notes=[f"not possible: {one}" for one in refused],
    )


def parse_sizes(text: str) -> list[int]:
    """`4k,1M,300` -> bytes."""
    if not re.fullmatch(r"[1-9]\d{0,8}[kM]?(,[1-9]\d{0,8}[kM]?)*", text):
        raise UserError(
            f"--sizes: bytes with commas expected, such as 4k,1M; found {text}"
        )
    unit = {"k": 1_000, "M": 1_000_000}
    return [int(part.rstrip("kM")) * unit.get(part[-1], 1) for part in text.split(",")]


def plan_allreduces(
    job: BenchJob, asked: Iterable[Case]
) -> tuple[dict[Case, Loaded], list[str]]:
    """The cases to measure with their configs, and why the others cannot be measured: an algorithm
    that the backend does not offer, a grid that the ranks do not form. Raises UserError: an
    algorithm that does not exist, or no case is possible."""
    possible = {}
    refused = []
    for case in asked:
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
    for (case, n_bytes), times in seconds.items():
        ms = spread(scaled(times, 1e3))
        on_the_bus = 2 * (case.ranks - 1) / case.ranks * n_bytes
        rate = on_the_bus / ms["median"] / 1e3
        rows.append(
            {**case._asdict(), "bytes": n_bytes, "ms": ms, "bus_mb_per_s": rate}
        )
    return sorted(rows, key=lambda row: (row["ranks"], row["bytes"]))
