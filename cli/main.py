"""The `rn50` command. Frameworks load inside the commands that need them, never here."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..launch.ending import interrupt
from ..train.limits import STOP_SIGNALS
from . import report as cli_report  # noqa: F401 (adds its commands to log_app)
from .bench import bench_app
from .config import config_app
from .console import (
    EXIT_BAD,
    TYPER_OPTIONS,
    Json,
    print_json,
    print_table,
    print_version,
)
from .data import data_app
from .evaluate import evaluate
from .export import export_app
from .launch import launch, train
from .log import log_app
from .predict import predict_app
from .runs import runs
from .submit import submit
from .sweep import sweep


class Commands(TyperGroup):
    """Takes Ctrl-C past Typer, which would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise _Interrupted(stop) from None


app = typer.Typer(cls=Commands, **TYPER_OPTIONS | {"add_completion": True})
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(log_app, name="log")
app.add_typer(bench_app, name="bench")
app.add_typer(export_app, name="export")
app.add_typer(predict_app, name="predict")
app.command("launch")(launch)
app.command("train")(train)
app.command("evaluate")(evaluate)
app.command("submit")(submit)
app.command("runs")(runs)
app.command("sweep")(sweep)


@app.command()
def doctor(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(help="Hosts whose names have to resolve.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at this machine and try MXNet and DALI on its CPU and on each GPU: a row each.

    Exit code 1 if a row failed; without a GPU its rows say so and are no failure.

    Example: `rn50 doctor node2 node3`
    """
    from ..launch.doctor import FAILED, examine

    rows = list(examine(hosts or []))
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(("check", "outcome", "found"), rows)
        counts = Counter(row.outcome for row in rows).items()
        print(", ".join(f"{count} {outcome}" for outcome, count in counts))
    if any(row.outcome == FAILED for row in rows):
        raise typer.Exit(EXIT_BAD)


class _Interrupted(Exception):
    def __init__(self, stop: KeyboardInterrupt) -> None:
        super().__init__()
        self.stop = stop


def run(arguments: list[str]) -> None:
    """Run the command that `arguments` name; `entry` tells its errors."""
    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)
    try:
        app(arguments)
    except _Interrupted as interrupted:
        raise interrupted.stop from None


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=print_version, help="Print the version."),
    ] = False,
) -> None:
    """Train ResNet-50 against the clock in the style of MLPerf, and check the result."""
