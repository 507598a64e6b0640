"""`rn50 bench startup`: from init_start to run_start, serial and overlapped, in alternation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from .harness import (
    Job,
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

USUAL, OURS = "serial + broadcast", "overlapped + seed"
STARTUPS = {
    USUAL: ("startup.serial=true", "startup.weights=broadcast"),
    "serial + seed": ("startup.serial=true", "startup.weights=seed"),
    OURS: ("startup.serial=false", "startup.weights=seed"),
}
Seconds = dict[tuple[int, float, str], list[float]]
"""(ranks, seconds that connecting takes longer, start-up) -> a value for each round."""


def start_up(out: Path, connect_delay_s: str) -> dict[str, Any]:
    """Start up as a run does, on one rank: the seconds of init.

    Args:
        connect_delay_s: time that connecting takes longer, asleep: the stand-in for NCCL's
            connections between many ranks.
    """
    from .rank import quiet_context

    context = quiet_context(out)
    context.connection.delay_s = float(connect_delay_s)
    context.prepare()
    context.begin_connecting()
    with context.timeline.span("load MXNet and Horovod"):
        from ..train.trainer import start_up as start_trainer

    start_trainer(context).comm.stop()
    return {"init_s": context.init_s}


@bench("startup", rank=start_up, config="quick")
def startup(
    job: Job,
    *,
    ranks: Annotated[str, option("Rank counts, such as `2,4,8`.")] = "2,4",
    rounds: Annotated[int, option("Rounds; each times every start-up.", min=1)] = 5,
    connect_delay_s: Annotated[
        float, option("Delay of connecting in half of the runs.", min=0, max=600)
    ] = 3.0,
) -> Outcome:
    """init_start to run_start: serial + broadcast (the usual way), serial + seed, overlapped.

    The delay takes the place of connecting many ranks, in which no rank computes.

    Example: `rn50 bench startup quick --ranks 4 --rounds 5`
    """
    counts = parse_counts("--ranks", ranks)
    delays = [0.0, connect_delay_s] if connect_delay_s else [0.0]
    load_ready(job, ranks=counts[0])
    cases = [(count, delay, name) for count in counts for delay in delays for name in STARTUPS]
    seconds: Seconds = {case: [] for case in cases}
    for count, delay, name in in_turn(cases, rounds, job.track("starting up")):
        loaded = job.load(*STARTUPS[name], ranks=count)
        measured = measure_on_ranks(loaded, job.launcher, "startup", delay)
        seconds[count, delay, name].append(measured["init_s"])
    ratios: dict[str, Any] = {}
    for count in counts:
        for delay in delays:
            usual = seconds[count, delay, USUAL]
            ratios |= {
                f"{ranks_text(count)}, connecting +{delay:g} s: {name} / {USUAL}": ratio_spread(
                    seconds[count, delay, name], usual
                )
                for name in list(STARTUPS)[1:]
            }
    return Outcome(
        ratios=ratios,
        figures={
            f"{ranks_text(count)}, +{delay:g} s, {name}: seconds": spread(found)
            for (count, delay, name), found in sorted(seconds.items())
        },
        measurements={
            f"s, {ranks_text(count)}, connecting +{delay:g} s": {
                name: seconds[count, delay, name] for name in STARTUPS
            }
            for count in counts
            for delay in delays
        },
    )
