"""The `rn50` command. Frameworks load inside the commands that need them, never here."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperGroup

from ..config.errors import UserError
from . import cli_report  # noqa: F401 (adds its commands to log_app)
from .cli_bench import bench_app
from .cli_config import config_app
from .cli_data import data_app
from .cli_log import log_app
from .cli_predict import predict
from .cli_submit import submit
from .cli_sweep import sweep
from .console import (
    EXIT_BAD,
    EXIT_STOPPED,
    EXIT_USAGE,
    TYPER_OPTIONS,
    Config,
    Launcher,
    Machine,
    Overrides,
    Ranks,
    Tracking,
    complete_preset,
    print_version,
    put_config,
)
from .ending import Stopped, asked_by, command_stopped, interrupt


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
        for line in str(error).splitlines():
            print(f"rn50: error: {line}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"rn50: error: {where}{error.strerror or error}", file=sys.stderr)
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
    print(f"rn50: {ending.line}", file=sys.stderr)
    sys.exit(EXIT_STOPPED)


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=print_version, help="Print the version."),
    ] = False,
) -> None:
    """Train ResNet-50 against the clock, MLPerf style, and prove it."""


@app.command()
def launch(
    config: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            help="A preset or a YAML file; default: quick, or the config to resume.",
            autocompletion=complete_preset,
        ),
    ] = None,
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    system: Machine = None,
    resume: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Go on with an interrupted run: its folder, or `latest`."),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Go on by itself so often after a failed rank.")
    ] = 0,
) -> None:
    """Run a config on this machine or allocation: data, ranks, log, official checker.

    A `config.yaml` beside a log is a recorded run: a line says whether this one repeated its
    accuracy curve, and `repeats` in result.json.

    Exit 0: target reached and the official checker passes; 1: not; 2: bad input or a failed rank;
    130: stopped by a signal.

    Example: `rn50 launch quick --ranks 2 --launcher gloo seed=1`

    Example: `rn50 launch --resume latest`
    """
    from .attempts import load_resumed
    from .launch import launch as run_launch
    from .launch import load_for_launch
    from .repeat import find_recorded
    from .verdict import is_good

    name, texts = put_config(config or "quick", overrides, system)
    folder = None
    if resume is None:
        loaded = load_for_launch(name, texts, ranks)
        recorded = find_recorded(name)
    else:
        own = config is not None and "=" not in config
        folder, loaded = load_resumed(resume, name if own else None, texts, ranks)
        recorded = None
    with Tracking() as track:
        result = run_launch(
            loaded,
            launcher,
            track,
            recorded=recorded,
            resume=folder,
            max_restarts=max_restarts,
            again=shlex.join(["rn50", *sys.argv[1:]]) if folder is None else None,
        )
    raise typer.Exit(0 if is_good(result) else EXIT_BAD)


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="Folder for the run's files, no other run's; default: a new one below `results/`."
        ),
    ] = None,
) -> None:
    """Train as one rank: what launchers start. By hand it is a run on one rank.

    Example: `rn50 train smoke system.ranks_per_node=1`
    """
    from ..config.load import load
    from ..train.__main__ import run_rank
    from ..train.placement import find_placement
    from .launcher import new_run_folder, refuse_run

    run = load(config, overrides or []).run
    if out is not None and find_placement().rank == 0:
        refuse_run(out)
    folder = out or new_run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    run_rank(config, overrides or [], folder)
