"""`rn50 bench`: ratios measured side by side in one run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..bench.resolution import MARK, why_not
from ..config.errors import UserError
from .console import (
    TYPER_OPTIONS,
    Config,
    Json,
    Launcher,
    Overrides,
    Ranks,
    SystemName,
    output_file,
    print_table,
)
from .machine_option import put_config
from .measuring import Measuring

Plot = Annotated[
    Optional[Path],  # noqa: UP045 (Typer reads this at run time)
    output_file("Draw the measurements as SVG"),
]

bench_app = typer.Typer(help="Measure side by side in one run.", **TYPER_OPTIONS)


@bench_app.command("loop")
def bench_loop(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    system: SystemName = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times both loops.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps a loop in each round.")] = 20,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="What of communication backward hides instead.")
    ] = False,
    groupings: Annotated[
        str, typer.Option(help="For --overlap, as in `comm.groups`, with semicolons.")
    ] = "single;equal_count(4);equal_bytes(4);equal_bytes(8);cubic(3)",
    against: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="`horovod`: the pattern of Horovod's own example instead."),
    ] = None,
    passes: Annotated[int, typer.Option(min=1, help="For --against: jobs of each, in turn.")] = 3,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Trainer against a bare loop: the same model, batch and ranks, data already in memory.

    The bare loop is forward, backward, grouped allreduce and fused update on one batch that never
    changes. The ratio is trainer throughput over bare throughput; 1 means that the pipeline, the
    log and everything else around the step cost nothing.

    `--overlap` times a step, its computing alone and its communication alone, for each grouping in
    turn: exposed is the step less its computing. `--against horovod` times our trainer and
    DistributedTrainer as Horovod's example uses it, jobs in turn.

    Example: `rn50 bench loop quick --rounds 10 --steps 20`

    Example: `scripts/netlab.sh run 2 350 100 -- rn50 bench loop quick --overlap`
    """
    from ..bench import harness as bench
    from ..bench import overlap as bench_overlap
    from ..launch.run import load_for_launch

    if against not in (None, "horovod"):
        raise UserError(f"--against: horovod expected, found {against}")
    if overlap and against:
        raise UserError("--overlap: without --against expected, found both")
    loaded = load_for_launch(*put_config(config, overrides, system), ranks)
    with Measuring() as track:
        times: dict[str, Any] = {"rounds": rounds, "steps": steps, "track": track}
        if overlap:
            figures = bench_overlap.bench_overlap(
                loaded, launcher, groupings=parse_groupings(groupings), **times
            )
        elif against:
            figures = bench.bench_against(loaded, launcher, passes=passes, **times)
        else:
            figures = bench.bench_loop(loaded, launcher, **times)
    if not overlap:
        print_bench(track, figures, as_json, plot)
        return
    rows = figures["rows"]
    if not as_json:
        print_table(bench_overlap.OVERLAP_HEADER, bench_overlap.overlap_table(rows))
        if line := bench_overlap.unresolved_line(rows):
            print(line)
    print_figures(figures, as_json)
    if plot:
        bench_overlap.plot_overlap(rows, plot)
    track.print_end(plot, as_json=as_json)


@bench_app.command("faults")
def bench_faults(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    system: SystemName = None,
    rounds: Annotated[int, typer.Option(min=1, help="Epochs of each kind, in turn.")] = 10,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """What safety costs: epochs with all guards against epochs with none, in alternation.

    Guarded: a checkpoint and a comparison of all ranks' weights after the epoch, and a watchdog.

    Example: `rn50 bench faults quick --rounds 10`
    """
    from ..bench import harness as bench
    from ..launch.run import load_for_launch

    loaded = load_for_launch(*put_config(config, overrides, system), ranks)
    with Measuring() as track:
        figures = bench.bench_faults(loaded, launcher, rounds=rounds, track=track)
    print_bench(track, figures, as_json, plot)


@bench_app.command("allreduce")
def bench_allreduce(
    config: Config = "smoke",
    overrides: Overrides = None,
    ranks: Annotated[str, typer.Option(help="Rank counts, such as `2,4,8`.")] = "2,4",
    sizes: Annotated[
        str, typer.Option(help="Message sizes; k and M are powers of 1000.")
    ] = "4k,64k,1M,25M",
    algorithms: Annotated[
        str, typer.Option(help="As in `comm.algorithm`, grids too: `torus_2d(4x2)`.")
    ] = "ring,recursive_doubling,recursive_halving_doubling,torus_2d",
    layers: Annotated[
        str, typer.Option(help="`mpi`: the algorithm alone; `horovod`: as training calls it.")
    ] = "mpi,horovod",
    launcher: Launcher = None,
    system: SystemName = None,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each size in a pass.")] = 5,
    passes: Annotated[int, typer.Option(min=1, help="Passes over all algorithms in turn.")] = 2,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        output_file("Write time against size, with the model, as SVG"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Allreduce over size x algorithm x ranks: time, bandwidth and steps against the cost model.

    The model's latency and bandwidth come from two of the measured rings. Under
    `scripts/netlab.sh run` the ranks are on emulated hosts.

    Example: `rn50 bench allreduce --ranks 2,4 --sizes 4k,1M,25M --plot allreduce.svg`
    """
    from ..bench import comm as study
    from ..bench.harness import machine
    from ..launch.launchers import pick_launcher
    from ..launch.run import load_for_launch

    name, base = pick_launcher(launcher), put_config(config, overrides, system)
    wanted = layers.split(",")
    if not set(wanted) <= {"mpi", "horovod"}:
        raise UserError(f"--layers: mpi or horovod or both expected, found {layers}")
    cases, refused = study.plan_allreduces(
        lambda more, count: load_for_launch(base[0], [*base[1], *more], count),
        name,
        layers=wanted,
        algorithms=re.findall(r"[^,(]+(?:\([^)]*\))?", algorithms),
        ranks=parse_counts("--ranks", ranks),
    )
    sizes_bytes = parse_sizes(sizes)
    with Measuring() as track:
        sums = study.bench_allreduce(
            cases,
            name,
            sizes_bytes=sizes_bytes,
            rounds=rounds,
            passes=passes,
            progress=track("measuring allreduces"),
        )
    link = study.fit_link(sums)
    rows = study.allreduce_rows(sums, link)
    if as_json:
        figures = {
            "link": link and link._asdict(),
            "rows": rows,
            "not_possible": [one._asdict() for one in refused],
        }
        print(json.dumps({"ratios": {}, "figures": figures, "machine": machine()}, indent=1))
    else:
        print_table(study.ALLREDUCE_HEADER, study.allreduce_table(rows, refused))
        for line in study.refusal_lines(refused):
            print(line)
        if link:
            print(
                f"model: {link.alpha_s * 1e6:.0f} us a message, "
                f"{1 / link.beta_s_per_byte / 1e6:.1f} MB/s, from two rings"
            )
    if plot:
        study.plot_allreduce(sums, link, plot)
    track.print_end(plot, as_json=as_json)


@bench_app.command("startup")
def bench_startup(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Annotated[str, typer.Option(help="Rank counts, such as `2,4,8`.")] = "2,4",
    launcher: Launcher = None,
    system: SystemName = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times every start-up.")] = 5,
    connect_delay_s: Annotated[
        float,
        typer.Option(min=0, max=600, help="Connecting takes so much longer in half of the runs."),
    ] = 3.0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """init_start to run_start: serial + broadcast (what everyone does), serial + seed, ours.

    Connections between many ranks take time that nobody computes in; the delay stands for them.

    Example: `rn50 bench startup quick --ranks 4 --rounds 5`
    """
    from ..bench.comm import bench_startup as run_bench
    from ..launch.launchers import pick_launcher
    from ..launch.run import load_for_launch

    base = put_config(config, overrides, system)
    with Measuring() as track:
        figures = run_bench(
            lambda more, count: load_for_launch(base[0], [*base[1], *more], count),
            pick_launcher(launcher),
            ranks=parse_counts("--ranks", ranks),
            rounds=rounds,
            delay_s=connect_delay_s,
            track=track,
        )
    print_bench(track, figures, as_json, plot)


@bench_app.command("scaling")
def bench_scaling(
    config: Config = "cpu_small",
    overrides: Overrides = None,
    models: Annotated[
        str, typer.Option(help="alexnet, googlenet, resnet50.")
    ] = "alexnet,googlenet,resnet50",
    ranks: Annotated[str, typer.Option(help="Rank counts from 1 on.")] = "1,2,4",
    modes: Annotated[
        str, typer.Option(help="weak: a rank's batch is fixed; strong: the global batch.")
    ] = "weak,strong",
    global_batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1,
            help="For strong; default: `batch.per_rank` x the most ranks, so that all divide it.",
        ),
    ] = None,
    launcher: Launcher = None,
    system: SystemName = None,
    passes: Annotated[int, typer.Option(min=1, help="Jobs of each case, in turn.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a job.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a round.")] = 4,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        output_file("Write throughput against ranks as SVG"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Networks x rank counts, weak and strong: images/s, seconds per epoch, efficiency.

    The real trainer on the config's images, with the real (not narrowed) networks. Where ranks
    share cores, marked `*`, only the efficiency against cores says something of the program.

    Example: `rn50 bench scaling cpu_small --models resnet50 --ranks 1,2,4 --plot scaling.svg`
    """
    from ..bench import scaling as study
    from ..bench.harness import machine
    from ..launch.launchers import pick_launcher
    from ..launch.run import load_for_launch

    name, base = pick_launcher(launcher), put_config(config, overrides, system)
    with Measuring() as track:
        figures = study.bench_scaling(
            lambda more, count: load_for_launch(base[0], [*base[1], *more], count),
            name,
            models=models.split(","),
            modes=modes.split(","),
            ranks=parse_counts("--ranks", ranks),
            global_batch=global_batch,
            passes=passes,
            rounds=rounds,
            steps=steps,
            track=track,
        )
    rows = figures["figures"]["rows"]
    if as_json:
        print(json.dumps(figures, indent=1))
    else:
        print_table(study.TABLE_HEADER, study.table_rows(rows))
        if any(row["shares_cores"] for row in rows):
            print(f"* more ranks than the {machine()['cores']} cores: they share them")
    if plot:
        study.plot_scaling(rows, machine()["cores"], plot)
    track.print_end(plot, as_json=as_json)


def parse_groupings(text: str) -> list[str]:
    """`single;cubic(3)` -> rules, each as `comm.groups` takes it."""
    from ..config.schema import Comm

    rules = text.split(";")
    for rule in rules:
        try:
            Comm(groups=rule)
        except ValueError:
            raise UserError(
                "--groupings: rules of comm.groups with semicolons expected, such as "
                f"single;cubic(3); found {rule}"
            ) from None
    return rules


def parse_counts(option: str, text: str) -> list[int]:
    """`2,4` -> [2, 4]."""
    if not re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", text):
        raise UserError(f"{option}: whole numbers with commas expected, such as 2,4; found {text}")
    return [int(part) for part in text.split(",")]


def parse_sizes(text: str) -> list[int]:
    """`4k,1M,300` -> bytes."""
    if not re.fullmatch(r"[1-9]\d{0,8}[kM]?(,[1-9]\d{0,8}[kM]?)*", text):
        raise UserError(f"--sizes: bytes with commas expected, such as 4k,1M; found {text}")
    unit = {"k": 1_000, "M": 1_000_000}
    return [int(part.rstrip("kM")) * unit.get(part[-1], 1) for part in text.split(",")]


@bench_app.command("gaps")
def bench_gaps(
    config: Config = "quick",
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    system: SystemName = None,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs to train.")] = 16,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """What lies between two epochs, and around an evaluation, beyond a plain step.

    Trains all epochs and compares the time from the last step of one to the first of the next with
    that between two steps inside. Times are those of the device, taken without a wait.

    Example: `rn50 bench gaps quick --epochs 16`
    """
    from ..bench.harness import bench_gaps as run_bench
    from ..launch.run import load_for_launch

    name, more = put_config(config, overrides, system)
    whole = [f"schedule.length={epochs} epochs", "eval.target=0.999999"]
    loaded = load_for_launch(name, [*more, *whole], ranks)
    with Measuring() as track:
        figures = run_bench(loaded, launcher, track=track)
    print_bench(track, figures, as_json, plot)


@bench_app.command("optimizer")
def bench_optimizer(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each times every contender.")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="OpenMP threads.")] = 1,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """One LARS step of ResNet-50: ours, MXNet's own, a textbook loop, and the memory floor.

    The floor is the bytes that must move (two passes for the norms, five for the update) over the
    copy bandwidth of the same round; ours can be below it where a tensor stays in cache between its
    norms and its update.

    Example: `rn50 bench optimizer --rounds 15`
    """
    from ..bench.harness import bench_optimizer as run_bench

    with Measuring() as track:
        figures = run_bench(rounds=rounds, threads=threads, track=track)
    print_bench(track, figures, as_json, plot)


@bench_app.command("log")
def bench_log(
    megabytes: Annotated[int, typer.Option(min=1, max=10_000, help="Size of the huge log.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds on the ordinary log.")] = 5,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Our log check against the official checker: time and memory on one log and on 100 MB.

    Each runs as a process of its own, ours as `rn50 log check --no-official`, and on the ordinary
    log also inside one process. The ratios are CPU time, theirs over ours.

    Example: `rn50 bench log --megabytes 100`
    """
    from ..bench.log import bench_log as run_bench

    with Measuring() as track:
        figures = run_bench(megabytes=megabytes, rounds=rounds, track=track)
    print_bench(track, figures, as_json, plot)


def print_bench(
    track: Measuring, figures: dict[str, Any], as_json: bool, plot: Path | None
) -> None:
    """The figures, the measurements as a plot, and the last line."""
    print_figures(figures, as_json)
    if plot is not None:
        from ..report.drawing import draw_measurements, save

        shown = {name: r for name, r in figures["ratios"].items() if r.get("resolvable", True)}
        save(draw_measurements(figures["measurements"], shown), plot)
    track.print_end(plot, as_json=as_json)


def print_figures(figures: dict[str, Any], as_json: bool) -> None:
    """A table of the ratios and a line for each figure, or JSON."""
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    if figures["ratios"]:
        print_table(("ratio", "median", "min", "max", "n"), ratio_rows(figures["ratios"]))
        marked = {k: r for k, r in figures["ratios"].items() if not r.get("resolvable", True)}
        if marked:
            reason = why_not([ratio["uncertainty"] for ratio in marked.values()])
            print(f"{MARK}: not resolvable: {'; '.join(marked)}: {reason}")
    for name, value in figures["figures"].items():
        print(f"{name}: {_in_words(value)}")


def ratio_rows(ratios: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row a ratio; without figures where they are not resolvable."""
    return [
        (
            name,
            *(f"{r[key]:.3f}" if r.get("resolvable", True) else MARK for key in _SPREAD),
            str(r["n"]),
        )
        for name, r in ratios.items()
    ]


_SPREAD = ("median", "min", "max")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "{median:.2f} ({min:.2f} to {max:.2f}, n = {n})".format(**value)
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return str(value)
