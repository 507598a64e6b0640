"""The `rn50` command. A command's module is loaded when the command is named, a framework when it
is needed."""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from typing import Annotated, Any

import typer

from ..host.errors import UserError
from .console import (
    TYPER_OPTIONS,
    Json,
    argument,
    exit_bad_if,
    option,
    print_json,
    print_table,
    print_version,
)
from .usage import Group

_COMMANDS = (
    "config",
    "data",
    "log",
    "bench",
    "export",
    "predict",
    "launch",
    "evaluate",
    "submit",
    "submission",
    "runs",
    "sweep",
)
"""The commands. Each is a module of this folder, with a function of that name or, where it has
commands of its own, NAME_app. To load all of them takes 0.3 s of CPU time."""


class Commands(Group):
    """Loads the command that is asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        names: dict[str, Any] = dict.fromkeys(_COMMANDS)
        self.commands.update(names)  # for lists and suggestions

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, whose module is loaded here."""
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f".{cmd_name}", __package__)
        group = getattr(module, f"{cmd_name}_app", None)
        command: Any
        if group is not None:
            command = typer.main.get_group(group)
        else:
            # Typer makes a command of an app with one function
            alone = typer.Typer(**TYPER_OPTIONS)
            alone.command(cmd_name)(getattr(module, cmd_name))
            command = typer.main.get_command(alone)
        command.name = cmd_name
        return command


app = typer.Typer(**TYPER_OPTIONS | {"cls": Commands, "add_completion": True})


@app.command()
def doctor(
    hosts: Annotated[
        list[str] | None,
        argument("Hosts whose names have to resolve.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at this machine and try MXNet and DALI on its CPU and on each GPU: a row each.

    Exit code 1 if a row failed; without a GPU its rows say so and are no failure.

    Example: `rn50 doctor node2 node3`
    """
    from ..launch.installed import losses_here

    losses = losses_here()
    if losses:  # without them the other rows cannot even be tried
        lines = (f"{name}: {file} expected, found none" for name, file in losses)
        raise UserError(
            *lines, f"{sys.prefix}: scripts/setup.sh makes this environment anew"
        )
    from ..launch.doctor import FAILED, examine

    rows = list(examine(hosts or []))
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(("check", "outcome", "found"), rows, free=(2,))
        counts = Counter(row.outcome for row in rows).items()
        print(", ".join(f"{count} {outcome}" for outcome, count in counts))
    exit_bad_if(any(row.outcome == FAILED for row in rows))


def run(arguments: list[str]) -> int:
    """Run the command that `arguments` name; its exit code. `entry` prints its errors; Typer's own
    `main` would print what it refuses, and make a silent exit of a signal."""
    command: Any = typer.main.get_command(app)
    # where a shell asks for words to complete, it prints them and exits here
    command._main_shell_completion({}, "rn50")
    try:
        with command.make_context("rn50", arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.TyperException as error:
        refused = getattr(error, "ctx", None)
        path = refused.command_path if refused else "rn50"
        raise UserError(f"{path}: {error.format_message()}") from None
    return 0


@app.callback()
def root(
    version: Annotated[
        bool,
        option(
            "Print the version.", "--version", is_eager=True, callback=print_version
        ),
    ] = False,
) -> None:
    """Train ResNet-50 against the clock in the style of MLPerf, and check the result."""
