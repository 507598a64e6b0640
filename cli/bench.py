"""`rn50 bench`: ratios measured side by side in one run; each measures by a module of bench/."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..bench.harness import BenchJob, Outcome
from ..config.load import Loaded
from ..host.finding import clock_time
from ..launch.launchers import pick_launcher
from ..launch.run import load_for_launch
from .console import (
    TYPER_OPTIONS,
    Config,
    Json,
    Launcher,
    Overrides,
    Ranks,
    SystemName,
    aside,
    exit_bad_if,
    on_machine,
    option,
    output_file,
    print_json,
    print_table,
    split_config,
    track,
)

Plot = Annotated[Path | None, output_file("Draw the measurements as SVG")]

bench_app = typer.Typer(
    help="Benchmarks: contenders in alternation, in one run.", **TYPER_OPTIONS
)


def count(help: str) -> Any:
    """An option that is a number from 1 up."""
    return option(help, min=1)


def open_job(
    config: str,
    overrides: list[str] | None,
    launcher: str | None,
    system: str | None,
    ranks: int | None = None,
) -> BenchJob:
    """The job that the command line gives to a benchmark.

    Args:
        config: a preset or a YAML file, or an override of the default preset.
        overrides: `key.path=value` each.
        launcher: a launcher's name; None: found here.
        system: the machine in place of the config's own.
        ranks: the ranks on this machine; None: the config's own.
    """
    preset, settings = split_config(config, overrides)
    settings = on_machine(settings, system)

    def load(*more: str, ranks: int | None = ranks) -> Loaded:
        """Load the config of a job, with further overrides."""
        return load_for_launch(preset, [*settings, *more], ranks)

    return BenchJob(track, pick_launcher(launcher), load)


# --- the commands ---------------------------------------------------------------------------------


@bench_app.command()
def loop(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    system: SystemName = None,
    rounds: Annotated[int, count("Rounds; each times every loop.")] = 10,
    steps: Annotated[int, count("Steps a loop in each round.")] = 20,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Trainer against a bare loop: the same model, ranks and pipeline.

    The bare loop is the next batch, forward, backward, grouped allreduce and fused update. The
    first ratio is trainer throughput over bare throughput; 1 means that the log, the stamps, the
    stop and everything else around the step cost nothing. The second is the bare loop over the same
    on one batch that never changes: what reading and decoding cost.

    Example: `rn50 bench loop quick --rounds 10 --steps 20`
    """
    from ..bench.loop import measure

    job = open_job(config, overrides, launcher, system, ranks)
    report(measure(job, rounds=rounds, steps=steps), job, plot, as_json)


@bench_app.command()
def overlap(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    system: SystemName = None,
    groupings: Annotated[
        str, option("As in `comm.groups`, separated by semicolons.")
    ] = "single;equal_count(4);equal_bytes(4);equal_bytes(8);cubic(3)",
    rounds: Annotated[int, count("Rounds; each times every kind of step.")] = 10,
    steps: Annotated[int, count("Steps of each kind in a round.")] = 20,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """How much communication backward hides: a step, its computation and its communication alone.

    A job for each grouping. Exposed is the step less its computation, hidden is the rest of the
    communication.

    Example: `tests/lab/netlab.sh run 2 350 100 -- rn50 bench overlap quick`
    """
    from ..bench.overlap import measure

    job = open_job(config, overrides, launcher, system, ranks)
    report(
        measure(job, groupings=groupings, rounds=rounds, steps=steps),
        job,
        plot,
        as_json,
    )


@bench_app.command("horovod-baseline")
def horovod_baseline(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    system: SystemName = None,
    rounds: Annotated[int, count("Rounds of each job.")] = 10,
    steps: Annotated[int, count("Steps of each round.")] = 20,
    passes: Annotated[int, count("Jobs of each, in turn.")] = 3,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Trainer against DistributedTrainer as Horovod's own MXNet example uses it, jobs in turn.

    Each has its own settings of the engines; network, weights, data, batch and ranks are the same.

    Example: `rn50 bench horovod-baseline quick --passes 3`
    """
    from ..bench.horovod_baseline import measure

    job = open_job(config, overrides, launcher, system, ranks)
    report(measure(job, rounds=rounds, steps=steps, passes=passes), job, plot, as_json)


@bench_app.command()
def allreduce(
    config: Config = "smoke",
    overrides: Overrides = None,
    launcher: Launcher = None,
    system: SystemName = None,
    ranks: Annotated[str, option("Rank counts, such as `2,4,8`.")] = "2,4",
    sizes: Annotated[
        str, option("Message sizes; k and M are powers of 1000.")
    ] = "4k,64k,1M,25M",
    algorithms: Annotated[
        str, option("As in `comm.algorithm`, grids too: `torus_2d(4x2)`.")
    ] = "ring,recursive_doubling,recursive_halving_doubling,torus_2d",
    rounds: Annotated[int, count("Measurements of each size in a pass.")] = 5,
    passes: Annotated[int, count("Passes over all algorithms in turn.")] = 2,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Allreduce over size x algorithm x ranks: time and bandwidth.

    As training calls it, with Horovod's negotiation. Under `tests/lab/netlab.sh run` the ranks are
    on emulated hosts.

    Example: `rn50 bench allreduce --ranks 2,4 --sizes 4k,1M,25M --plot allreduce.svg`
    """
    from ..bench.allreduce import measure

    job = open_job(config, overrides, launcher, system)
    report(
        measure(
            job,
            ranks=ranks,
            sizes=sizes,
            algorithms=algorithms,
            rounds=rounds,
            passes=passes,
        ),
        job,
        plot,
        as_json,
    )


@bench_app.command()
def startup(
    config: Config = "quick",
    overrides: Overrides = None,
    launcher: Launcher = None,
    system: SystemName = None,
    ranks: Annotated[str, option("Rank counts, such as `2,4,8`.")] = "2,4",
    rounds: Annotated[int, count("Rounds; each times every start-up.")] = 5,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """init_start to run_start: serial + broadcast (the usual way), serial + seed, overlapped.

    Also with connecting delayed by 3 s, as between many ranks.

    Example: `rn50 bench startup quick --ranks 4 --rounds 5`
    """
    from ..bench.startup import measure

    job = open_job(config, overrides, launcher, system)
    report(measure(job, ranks=ranks, rounds=rounds), job, plot, as_json)


@bench_app.command()
def scaling(
    config: Config = "quick",
    overrides: Overrides = None,
    launcher: Launcher = None,
    system: SystemName = None,
    models: Annotated[
        str | None,
        option("alexnet, googlenet, resnet50; default: the config's network."),
    ] = None,
    ranks: Annotated[str, option("Rank counts on this machine.")] = "1,2",
    batch: Annotated[
        str | None, option("Images of a rank in a step; default: the config's.")
    ] = None,
    passes: Annotated[int, count("Jobs of each case, in turn.")] = 2,
    rounds: Annotated[int, count("Rounds of a job, after one that warms up.")] = 3,
    steps: Annotated[int, count("Steps of a round.")] = 10,
    save: Annotated[
        Path | None,
        option(
            "Write the rate, on the config's own ranks and batch, into this machine's YAML."
        ),
    ] = None,
    check: Annotated[
        bool,
        option(
            "Compare this rate with the machine's `references`; exit 1 if it is lower."
        ),
    ] = False,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Networks x batches x ranks without a data set: images/s, seconds an epoch, efficiency.

    The trainer's loop, gradient reduction and update on one random batch for each rank, which is on
    the device from the start: `data.classes` and `data.crop_px` may be any. Weak: a rank has
    `--batch` images; strong: all ranks together have as many at each count. Efficiency is against
    the fewest ranks; s/epoch is of ImageNet.

    Example: `rn50 bench scaling quick --ranks 1 --batch 32,64 --plot throughput.svg`

    Example: `rn50 bench scaling cpu_small --models alexnet,resnet50 --ranks 1,2,4`

    Example: `rn50 bench scaling quick --system mine.yaml --check`
    """
    from ..bench.curves import Timing
    from ..bench.scaling import measure, measure_reference

    job = open_job(config, overrides, launcher, system)
    timing = Timing(passes, rounds, steps)
    if save is not None or check:
        outcome = measure_reference(job, timing, save, check=check)
    else:
        outcome = measure(job, timing, models=models, ranks=ranks, batch=batch)
    report(outcome, job, plot, as_json)


@bench_app.command()
def optimizer(
    config: Config = "smoke",
    overrides: Overrides = None,
    launcher: Launcher = None,
    system: SystemName = None,
    rounds: Annotated[int, count("Rounds; each times every contender.")] = 15,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """One LARS step of ResNet-50: ours, MXNet's own, and the memory floor.

    The floor is the bytes that must move (two passes for the norms, five for the update) over the
    copy bandwidth of the same round; ours can be below it where a tensor stays in cache between its
    norms and its update. The config gives one rank's cores.

    Example: `rn50 bench optimizer --rounds 15`
    """
    from ..bench.optimizer import measure

    job = open_job(config, overrides, launcher, system)
    report(measure(job, rounds=rounds), job, plot, as_json)


# --- what is printed ------------------------------------------------------------------------------


def report(outcome: Outcome, job: BenchJob, plot: Path | None, as_json: bool) -> None:
    """Print the table or the figures, draw the plot, print the last line; exit 1 where a reference
    was missed.

    Args:
        outcome: what was measured.
        job: the job that it was measured on.
        plot: the file to draw to; None: nothing is drawn.
        as_json: print JSON, and all else beside it.
    """
    if as_json:
        print_json(outcome.to_json(job.launcher))
    elif outcome.table:
        print_table(tuple(outcome.columns), outcome.table)
        for line in outcome.notes:
            print(line)
    else:
        print_figures(outcome.ratios, outcome.figures)
    ending = f"measured in {clock_time(time.monotonic() - job.begun_s)}"
    if plot is not None:
        from ..report.charts import draw_measurements, save

        # some benchmarks have a chart of their own
        if outcome.draw:
            outcome.draw(plot)
        else:
            save(draw_measurements(outcome.measurements, outcome.ratios), plot)
        ending += f"; plot: {plot}"
    # beside the JSON, which a program reads from the standard output
    with aside(as_json):
        print(ending, flush=True)
    exit_bad_if(not outcome.passes)


def print_figures(ratios: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """A table of the ratios and a line for each figure."""
    if ratios:
        rows = []
        for name, ratio in ratios.items():
            cells = [f"{ratio[key]:.3f}" for key in ("median", "min", "max")]
            rows.append((name, *cells, str(ratio["n"])))
        print_table(("ratio", "median", "min", "max", "n"), rows)
    for name, value in figures.items():
        print(f"{name}: {_in_words(value)}")


def _in_words(value: Any) -> str:
    # a figure that was measured several times
    if isinstance(value, dict):
        return "{median:.2f} ({min:.2f} to {max:.2f}, n = {n})".format(**value)
    if not isinstance(value, float):
        return str(value)
    if abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.1f}"
