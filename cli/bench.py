"""`rn50 bench`: ratios measured side by side in one run; its commands are the table of bench/."""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..bench import NAMES, module_name
from ..config.finding import clock_time
from ..config.progress import Tracker
from .console import (
    EXIT_BAD,
    TYPER_OPTIONS,
    Config,
    Json,
    Launcher,
    Overrides,
    Ranks,
    SystemName,
    on_machine,
    output_file,
    print_json,
    print_table,
    split_config,
    track,
)


class Benchmarks(TyperGroup):
    """The commands of `rn50 bench`, loaded when one of them is asked for: that takes 0.3 s."""

    @property
    def commands(self) -> Any:
        return _commands()

    @commands.setter
    def commands(self, _: Any) -> None:
        """Click gives the commands that are registered on the app: none."""


bench_app = typer.Typer(
    help="Benchmarks: contenders in alternation, in one run.", cls=Benchmarks, **TYPER_OPTIONS
)


@cache
def _commands() -> dict[str, Any]:
    from ..bench.harness import BENCHMARKS

    app = typer.Typer(**TYPER_OPTIONS)
    app.callback()(lambda: None)  # also one command alone would be a group
    for name in NAMES:
        importlib.import_module(module_name(name))
        app.command(name)(command_of(BENCHMARKS[name]))
    group: Any = typer.main.get_group(app)
    return dict(group.commands)


def command_of(benchmark: Any) -> Callable[..., None]:
    """The Typer command of a benchmark: the driver's options beside those that all have."""

    def command(**given: Any) -> None:
        plot, as_json = given.pop("plot"), given.pop("as_json")
        make_job, begun_s = _job_maker(benchmark, given), time.monotonic()
        job = make_job(track)
        outcome = benchmark.run(job, **given)
        if job.launcher:
            outcome = replace(outcome, machine={"launcher": job.launcher, **outcome.machine})
        print_outcome(outcome, begun_s, as_json, plot)
        if not outcome.passes:
            raise typer.Exit(EXIT_BAD)

    parameters = list(_parameters(benchmark))
    command.__name__, command.__doc__ = benchmark.run.__name__, benchmark.run.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _job_maker(benchmark: Any, given: dict[str, Any]) -> Callable[[Tracker], Any]:
    """Takes the options that say where and with which config out of `given`."""
    from ..bench.harness import Job

    if benchmark.config is None:
        return Job
    from ..launch.launchers import pick_launcher
    from ..launch.run import load_for_launch

    preset, more = split_config(given.pop("config"), given.pop("overrides"))
    more = on_machine(more, given.pop("system"))
    launcher, on = pick_launcher(given.pop("launcher")), None
    if benchmark.takes_ranks:
        on = given.pop("ranks")

    def load(*overrides: str, ranks: int | None = None) -> Any:
        return load_for_launch(preset, [*more, *overrides], ranks or on)

    return lambda track: Job(track, launcher, load=load)


def _parameters(benchmark: Any) -> Iterator[inspect.Parameter]:
    """Those that all commands with a config have, the driver's own, and those that all have."""
    shared: list[tuple[str, Any, Any]] = []
    if benchmark.config is not None:
        shared = [("config", Config, benchmark.config), ("overrides", Overrides, None)]
        shared += [("ranks", Ranks, None)] if benchmark.takes_ranks else []
        shared += [("launcher", Launcher, None), ("system", SystemName, None)]
    _, *own = inspect.signature(benchmark.run, eval_str=True).parameters.values()
    plot = Annotated[Path | None, output_file("Draw the measurements as SVG")]
    for name, annotation, default in (
        *shared,
        *((p.name, p.annotation, p.default) for p in own),
        ("plot", plot, None),
        ("as_json", Json, False),
    ):
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=default, annotation=annotation)


# --- what is printed ------------------------------------------------------------------------------


def print_outcome(outcome: Any, begun_s: float, as_json: bool, plot: Path | None) -> None:
    """The table or the figures, the plot, and the last line."""
    if as_json:
        print_json(outcome.to_json())
    else:
        if outcome.table:
            print_table(outcome.header, outcome.table)
            for line in outcome.notes:
                print(line)
        else:
            print_figures(outcome.ratios, outcome.figures)
    if plot is not None and outcome.draw:
        outcome.draw(plot)
    elif plot is not None:
        from ..report.charts import draw_measurements, save

        save(draw_measurements(outcome.measurements, outcome.ratios), plot)
    drawn = f"; plot: {plot}" if plot is not None else ""
    stream = sys.stderr if as_json else sys.stdout
    print(f"measured in {clock_time(time.monotonic() - begun_s)}{drawn}", file=stream, flush=True)


def print_figures(ratios: dict[str, Any], figures: dict[str, Any]) -> None:
    """A table of the ratios and a line for each figure."""
    if ratios:
        print_table(("ratio", "median", "min", "max", "n"), ratio_rows(ratios))
    for name, value in figures.items():
        print(f"{name}: {_in_words(value)}")


def ratio_rows(ratios: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row a ratio."""
    return [
        (name, *(f"{ratio[key]:.3f}" for key in ("median", "min", "max")), str(ratio["n"]))
        for name, ratio in ratios.items()
    ]


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "{median:.2f} ({min:.2f} to {max:.2f}, n = {n})".format(**value)
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return str(value)
