"""`rn50 submission`: five runs as a package for MLCommons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import argument, exit_bad_if, machine_option, option, say, say_aside


def submission(
    runs: Annotated[
        list[Path], argument("A job's folder, or five runs.", metavar="RUN...")
    ],
    org: Annotated[str, option("The submitter, as log.org of the runs has it.")],
    out: Annotated[Path, option("Folder in which ORG/ is made.")] = Path("submission"),
    system: Annotated[
        str | None,
        machine_option(
            "Take its `description` for the machine's page; default: that of the config."
        ),
    ] = None,
) -> None:
    """Write a submission package from five runs and check it officially (`docs/submission.md`).

    Exit 1: MLPerf's package checker finds errors.

    Example: `rn50 submission results/dgxa100_8/TIME --org Example --out submission`
    """
    from ..launch.package import runs_in, write_package

    def ask(field: str) -> str:
        """Ask on a terminal for what a field should say; elsewhere it stays empty."""
        question = f"systems/*.json: {field} (Enter leaves it empty)"
        # no terminal, so no question: the fields that stay empty are named at the end
        if not sys.stdin.isatty():
            return ""
        try:
            return typer.prompt(question, "", show_default=False, err=True)
        except typer.Abort:  # Ctrl-C, which ends every command with its own line
            raise KeyboardInterrupt from None

    package = write_package(runs_in(runs), out, org, system, ask)
    for message in package.messages:
        say_aside(message)
    if package.missing:
        fields = ", ".join(package.missing)
        say(
            f"systems/{package.system}.json: empty: {fields}; fill them in the machine's YAML"
        )
    verdict = "finds no errors" if package.passes else "finds errors"
    log = package.folder.with_name("package_checker.log")
    say(f"{package.folder}: MLPerf's package checker {verdict}: {log}")
    exit_bad_if(not package.passes)
