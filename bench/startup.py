"""`rn50 bench startup`: from init_start to run_start, serial and overlapped, in alternation."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from .harness import (
    BenchJob,
    Outcome,
    Samples,
    in_turn,
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


def time_start_up(out: Path, connect_delay_s: float) -> float:
    """Start up as a run does, on one rank: the seconds of init."""
    from .rank import quiet_context

    context = quiet_context(out)
    context.connection.delay_s = connect_delay_s
    context.prepare()
    context.begin_connecting()
    with context.timeline.span("load MXNet and Horovod"):
        from ..train.trainer import start_up

    start_up(context).comm.stop()
    return context.init_s


def measure(job: BenchJob, *, ranks: str, rounds: int) -> Outcome:
    """init_start to run_start: serial + broadcast (the usual way), serial + seed, overlapped."""
    counts = parse_counts("--ranks", ranks)
    load_ready(job, ranks=counts[0])
    seconds: dict[str, Samples] = {}
    cases = list(product(counts, DELAYS_S, STARTUPS))
    for on_ranks, delay_s, name in in_turn(job, "starting up", cases, rounds):
        loaded = job.load(*STARTUPS[name], ranks=on_ranks)
        init_s = measure_on_ranks(job, loaded, time_start_up, delay_s)
        label = f"{ranks_text(on_ranks)}, connecting +{delay_s:g} s"
        by_name = seconds.setdefault(label, {name: [] for name in STARTUPS})
        by_name[name].append(init_s)
    ratios = {}
    figures = {}
    for label, by_name in sorted(seconds.items()):
        for name, values in by_name.items():
            figures[f"{label}, {name}: seconds"] = spread(values)
            if name != USUAL:
                ratio = ratio_spread(values, by_name[USUAL])
                ratios[f"{label}: {name} / {USUAL}"] = ratio
    measurements = {f"s, {label}": by_name for label, by_name in seconds.items()}
    return Outcome(figures, ratios, measurements)
