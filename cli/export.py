"""`rn50 export`: runs for other tools."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.atomic import write_output
from .console import TYPER_OPTIONS, output_file, say

if TYPE_CHECKING:
    from ..report.export import Exported

export_app = typer.Typer(help="Export runs to other tools.", **TYPER_OPTIONS)

Runs = Annotated[
    list[Path], typer.Argument(help="Folders of runs or jobs, or above them.", metavar="RUN...")
]


def _read(paths: list[Path]) -> list[Exported]:
    from ..report.export import read_runs

    runs, notes = read_runs(paths)
    for note in notes:
        say(f"rn50: note: {note}", to=sys.stderr)
    return runs


@export_app.command("csv")
def export_csv(paths: Runs, out: Annotated[Path, output_file("The table")] = Path("-")) -> None:
    """The records of runs as one table: a row for each record, a column for each number.

    Example: `rn50 export csv results/quick --out runs.csv`
    """
    from ..report.export import to_csv

    write_output(out, to_csv(_read(paths)))


@export_app.command("tensorboard")
def export_tensorboard(
    paths: Runs,
    out: Annotated[
        Path, typer.Option(help="TensorBoard's folder; each run gets one below it.")
    ] = Path("tensorboard"),
) -> None:
    """The records and config of runs as TensorBoard's event files.

    An export of the same run replaces the one before. Needs tensorboardX (`docs/export.md`).

    Example: `rn50 export tensorboard results/quick --out tensorboard`
    """
    from ..report.export import to_tensorboard

    to_tensorboard(_read(paths), out)
    say(f"tensorboard --logdir {shlex.quote(str(out))}")
