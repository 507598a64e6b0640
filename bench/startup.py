"""`rn50 bench startup`: from init_start to run_start, serial and overlapped, in alternation."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

from .harness import (
    BenchJob,
    Outcome,
    bench,
    in_turn,
    option,
    parse_counts,
    ranks_text,
    ratio_spread,
    spread,
)
from .jobs import load_ready, measure_on_ranks

USUAL = "serial + broadcast"
STARTUPS = {
    USUAL: ("startup.serial=true", "startup.weights=broadcast"),
    "serial + seed": ("startup.serial=true", "startup.weights=seed"),
    "overlapped + seed": ("startup.serial=false", "startup.weights=seed"),
}
DELAYS_S = (0.0, 3.0)
"""Time that connecting takes longer, asleep: the stand-in for NCCL's connections between many
ranks, in which no rank computes."""


def time_start_up(out: Path, connect_delay_s: str) -> float:
    """Start up as a run does, on one rank: the seconds of init."""
    from .rank import quiet_context

    context = quiet_context(out)
    context.connection.delay_s = float(connect_delay_s)
    context.prepare()
    context.begin_connecting()
    with context.timeline.span("load MXNet and Horovod"):
        from ..train.trainer import start_up

    start_up(context).comm.stop()
    return context.init_s


@bench("startup", rank=time_start_up, config="quick")
def startup(
    job: BenchJob,
    *,
    ranks: Annotated[str, option("Rank counts, such as `2,4,8`.")] = "2,4",
    rounds: Annotated[int, option("Rounds; each times every start-up.", min=1)] = 5,
) -> Outcome:
    """init_start to run_start: serial + broadcast (the usual way), serial + seed, overlapped.

    Also with connecting delayed by 3 s, as between many ranks.

    Example: `rn50 bench startup quick --ranks 4 --rounds 5`
    """
    counts = parse_counts("--ranks", ranks)
    load_ready(job, ranks=counts[0])
    seconds: dict[str, dict[str, list[float]]] = {}
    cases = list(product(counts, DELAYS_S, STARTUPS))
    for count, delay, name in in_turn(
        cases, rounds, job.track("starting up", ticks=True)
    ):
        loaded = job.load(*STARTUPS[name], ranks=count)
        init_s = measure_on_ranks(
            loaded,
            job.launcher,
            "startup",
            delay,
        )
        label = f"{ranks_text(count)}, connecting +{delay:g} s"
        seconds.setdefault(label, {name: [] for name in STARTUPS})[name].append(init_s)
    ratios = {}
    figures = {}
    for label, by_name in sorted(seconds.items()):
        for name, values in by_name.items():
            figures[f"{label}, {name}: seconds"] = spread(values)
            if name != USUAL:
                ratios[f"{label}: {name} / {USUAL}"] = ratio_spread(
                    values, by_name[USUAL]
                )
    measurements = {f"s, {label}": by_name for label, by_name in seconds.items()}
    return Outcome(
        ratios=ratios,
        figures=figures,
        measurements=measurements,
    )
