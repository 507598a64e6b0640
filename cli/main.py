"""The `rn50` command. Frameworks load inside the commands that need them, never here."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ..config.errors import UserError
from ..config.finding import printable
from ..launch.ending import Stopped, asked_by, command_stopped, interrupt
from . import report as cli_report  # noqa: F401 (adds its commands to log_app)
from .bench import bench_app
from .config import config_app
from .console import EXIT_STOPPED, EXIT_USAGE, TYPER_OPTIONS, print_version, say
from .data import data_app
from .launch import launch, train
from .log import log_app
from .predict import predict
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
app.command("launch")(launch)
app.command("train")(train)
app.command("predict")(predict)
app.command("submit")(submit)
app.command("sweep")(sweep)


class _Interrupted(Exception):
    def __init__(self, stop: KeyboardInterrupt) -> None:
        super().__init__()
        self.stop = stop


def main() -> None:
    """Entry point: user errors are one line each on stderr and exit code 2, never a traceback.

    Ctrl-C and SIGTERM are one line too, which says how to go on, and exit code 130.
    """
    try:
        signal.signal(signal.SIGTERM, interrupt)
        app()
    except UserError as error:
        for line in str(error).split("\n"):
            print(f"rn50: error: {line}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"rn50: error: {printable(f'{where}{error.strerror or error}')}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except _Interrupted as interrupted:
        _end_stopped(interrupted.stop)
    except KeyboardInterrupt as stop:  # while the arguments were read
        _end_stopped(stop)


def _end_stopped(stop: KeyboardInterrupt) -> NoReturn:
    if isinstance(stop, Stopped):
        ending = stop.ending
    else:
        ending = command_stopped(asked_by(stop), sys.argv[1:])
    say(f"rn50: {ending.line}", to=sys.stderr)
    sys.exit(EXIT_STOPPED)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=print_version, help="Print the version."),
    ] = False,
) -> None:
    """Train ResNet-50 against the clock, MLPerf style, and prove it."""
