"""`rn50 bench`: ratios measured side by side in one run."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from .console import (
    TYPER_OPTIONS,
    Config,
    Json,
    Launcher,
    Overrides,
    Ranks,
    Tracking,
    print_table,
    split_config,
)

bench_app = typer.Typer(help="Measure side by side in one run.", **TYPER_OPTIONS)


@bench_app.command("loop")
def bench_loop(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times both loops.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps a loop in each round.")] = 20,
    as_json: Json = False,
) -> None:
    """Trainer against a bare loop: the same model, batch and ranks, data already in memory.

    The bare loop is forward, backward, grouped allreduce and fused update on one batch that never
    changes. The ratio is trainer throughput over bare throughput; 1 means that the pipeline, the
    log and everything else around the step cost nothing.

    Example: `rn50 bench loop quick --rounds 10 --steps 20`
    """
    from .bench import bench_loop as run_bench
    from .launch import load_for_launch

    loaded = load_for_launch(*split_config(config, overrides), ranks)
    with Tracking() as track:
        figures = run_bench(loaded, launcher, rounds=rounds, steps=steps, track=track)
    _print_bench(figures, as_json)


@bench_app.command("optimizer")
def bench_optimizer(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times every contender.")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="OpenMP threads.")] = 1,
    as_json: Json = False,
) -> None:
    """One LARS step of ResNet-50: ours, MXNet's own, a textbook loop, and the memory floor.

    The floor is the bytes that must move (two passes for the norms, five for the update) over the
    copy bandwidth of the same round; ours can be below it where a tensor stays in cache between its
    norms and its update.

    Example: `rn50 bench optimizer --rounds 15`
    """
    from .bench import bench_optimizer as run_bench

    _print_bench(run_bench(rounds=rounds, threads=threads), as_json)


@bench_app.command("log")
def bench_log(
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the huge log.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds on the ordinary log.")] = 5,
    as_json: Json = False,
) -> None:
    """Our log check against the official checker: time and memory on one log and on 100 MB.

    Each runs as a process of its own, ours as `rn50 log check --no-official`, and on the ordinary
    log also inside one process. The ratios are CPU time, theirs over ours.

    Example: `rn50 bench log --megabytes 100`
    """
    from .bench_log import bench_log as run_bench

    figures = run_bench(
        megabytes=megabytes, rounds=rounds, say=lambda text: print(text, file=sys.stderr)
    )
    _print_bench(figures, as_json)


def _print_bench(figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    print_table(
        ("ratio", "median", "min", "max", "n"),
        [
            (name, f"{r['median']:.3f}", f"{r['min']:.3f}", f"{r['max']:.3f}", str(r["n"]))
            for name, r in figures["ratios"].items()
        ],
    )
    for name, value in figures["figures"].items():
        print(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")
