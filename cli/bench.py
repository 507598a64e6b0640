"""`rn50 bench`: ratios measured side by side in one run; its commands are the table of bench/."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..bench import NAMES, module_name
from ..bench.harness import BENCHMARKS, BenchJob, Benchmark, Outcome
from ..config.finding import clock_time
from ..config.load import Loaded
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
    output_file,
    print_json,
    print_table,
    split_config,
    track,
)


def command_of(benchmark: Benchmark) -> Callable[..., None]:
    """The Typer command of a benchmark: the driver's options beside those that all have."""

    def command(
        config: str, overrides: list[str], plot: Path | None, **own: Any
    ) -> None:
        begun_s = time.monotonic()
        as_json = own.pop("as_json")
        preset, more = split_config(config, overrides)
        more = on_machine(more, own.pop("system"))
        launcher = pick_launcher(own.pop("launcher"))
        on = None
        if benchmark.takes_ranks:
            on = own.pop("ranks")

        def load(*overrides: str, ranks: int | None = None) -> Loaded:
            return load_for_launch(preset, [*more, *overrides], ranks or on)

        outcome = replace(
            benchmark.run(BenchJob(track, launcher, load), **own), launcher=launcher
        )
        print_outcome(outcome, begun_s, as_json, plot)
        exit_bad_if(not outcome.passes)

    parameters = list(_parameters(benchmark))
    command.__name__ = benchmark.run.__name__
    command.__doc__ = benchmark.run.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(benchmark: Benchmark) -> Iterator[inspect.Parameter]:
    """Those that all commands have, and the driver's own between them."""
    _, *own = inspect.signature(benchmark.run, eval_str=True).parameters.values()
    plot = Annotated[Path | None, output_file("Draw the measurements as SVG")]
    ranks = [("ranks", Ranks, None)]
    for name, annotation, default in (
        ("config", Config, benchmark.config),
        ("overrides", Overrides, None),
        *ranks[: benchmark.takes_ranks],
        ("launcher", Launcher, None),
        ("system", SystemName, None),
        *((p.name, p.annotation, p.default) for p in own),
        ("plot", plot, None),
        ("as_json", Json, False),
    ):
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=default, annotation=annotation)


# --- what is printed ------------------------------------------------------------------------------


def print_outcome(
    outcome: Outcome, begun_s: float, as_json: bool, plot: Path | None
) -> None:
    """The table or the figures, the plot, and the last line."""
    if as_json:
        print_json(outcome.to_json())
    else:
        if outcome.table:
            print_table(tuple(outcome.columns), outcome.table)
            for line in outcome.notes:
                print(line)
        else:
            print_figures(outcome.ratios, outcome.figures)
    if plot is not None and outcome.draw:
        outcome.draw(plot)
    elif plot is not None:
        from ..report.charts import draw_measurements, save

        save(draw_measurements(outcome.measurements, outcome.ratios), plot)
    words = f"measured in {clock_time(time.monotonic() - begun_s)}"
    if plot is not None:
        words += f"; plot: {plot}"
    with aside(as_json):
        print(words, flush=True)


def print_figures(ratios: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """A table of the ratios and a line for each figure."""
    if ratios:
        rows = [
            (
                name,
                *(f"{ratio[key]:.3f}" for key in ("median", "min", "max")),
                str(ratio["n"]),
            )
            for name, ratio in ratios.items()
        ]
        print_table(("ratio", "median", "min", "max", "n"), rows)
    for name, value in figures.items():
        print(f"{name}: {_in_words(value)}")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "{median:.2f} ({min:.2f} to {max:.2f}, n = {n})".format(**value)
    if not isinstance(value, float):
        return str(value)
    if abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:,.1f}"


# --- the commands ---------------------------------------------------------------------------------

bench_app = typer.Typer(
    help="Benchmarks: contenders in alternation, in one run.", **TYPER_OPTIONS
)
for _name in NAMES:
    importlib.import_module(module_name(_name))
    bench_app.command(_name)(command_of(BENCHMARKS[_name]))
