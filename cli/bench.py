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
    output_file,
    print_json,
    print_table,
    split_config,
    track,
)


def command_of(benchmark: Benchmark) -> Callable[..., None]:
    """The Typer command of a benchmark: the driver's options beside those that all have."""

    def command(
        config: str,
        overrides: list[str],
        launcher: str | None,
        system: str | None,
        plot: Path | None,
        as_json: bool,
        **options: Any,
    ) -> None:
        begun_s = time.monotonic()
        preset, texts = split_config(config, overrides)
        texts = on_machine(texts, system)
        of_config = None
        if benchmark.takes_ranks:  # else it has a `ranks` of its own, or none
            of_config = options.pop("ranks")

        def load(*overrides: str, ranks: int | None = None) -> Loaded:
            return load_for_launch(preset, [*texts, *overrides], ranks or of_config)

        name = pick_launcher(launcher)
        outcome = benchmark.run(BenchJob(track, name, load), **options)
        outcome = replace(outcome, launcher=name)
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
    _, *options = inspect.signature(benchmark.run, eval_str=True).parameters.values()
    plot = Annotated[Path | None, output_file("Draw the measurements as SVG")]
    yield _parameter("config", Config, benchmark.config)
    yield _parameter("overrides", Overrides)
    if benchmark.takes_ranks:
        yield _parameter("ranks", Ranks)
    yield _parameter("launcher", Launcher)
    yield _parameter("system", SystemName)
    yield from options
    yield _parameter("plot", plot)
    yield _parameter("as_json", Json, default=False)


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


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
    ending = f"measured in {clock_time(time.monotonic() - begun_s)}"
    if plot is not None:
        ending += f"; plot: {plot}"
    with aside(as_json):
        print(ending, flush=True)


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
