"""`rn50 export`: runs and trained models for other tools."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..host.atomic import is_stdout, new_folder, refuse_content, write_output
from .console import (
    TYPER_OPTIONS,
    argument,
    exit_bad_if,
    option,
    output_file,
    say,
    say_aside,
)
from .evaluate import RunOrCheckpoint

if TYPE_CHECKING:
    from ..report.export import Found

export_app = typer.Typer(
    help="Export runs and trained models to other tools.", **TYPER_OPTIONS
)

Runs = Annotated[
    list[Path], argument("Folders of runs or jobs, or above them.", metavar="RUN...")
]


def _read(paths: list[Path]) -> Found:
    from ..report.export import read_runs

    readings = read_runs(paths)
    for note in (*readings.unread, *readings.notes):
        say_aside(f"rn50: note: {note}")
    return readings


@export_app.command("csv")
def export_csv(
    paths: Runs, out: Annotated[Path, output_file("The table")] = Path("-")
) -> None:
    """The records of runs as one table: a row for each record, a column for each number.

    Exit 0: written; 1: written without a file that could not be read, which a note names.

    Example: `rn50 export csv results/quick --out runs.csv`
    """
    from ..report.export import to_csv

    readings = _read(paths)
    write_output(out, to_csv(readings.runs))
    if not is_stdout(out):
        say(f"{out}: written")
    exit_bad_if(bool(readings.unread))


@export_app.command("tensorboard")
def export_tensorboard(
    paths: Runs,
    out: Annotated[
        Path, option("TensorBoard's folder; each run gets one below it.")
    ] = Path("tensorboard"),
) -> None:
    """The records and config of runs as TensorBoard's event files.

    An export of the same run replaces the one before. Needs tensorboardX (`docs/export.md`).

    Exit 0: written; 1: written without a file that could not be read, which a note names.

    Example: `rn50 export tensorboard results/quick --out tensorboard`
    """
    from ..report.export import to_tensorboard

    readings = _read(paths)
    to_tensorboard(readings.runs, out)
    say(f"tensorboard --logdir {shlex.quote(str(out))}")
    exit_bad_if(bool(readings.unread))


@export_app.command("model")
def export_model(
    path: RunOrCheckpoint,
    out: Annotated[Path, option("The new folder for the model's files.")] = Path(
        "model"
    ),
    onnx: Annotated[
        bool, option("ONNX too; needs onnx (`docs/export.md`).", "--onnx")
    ] = False,
) -> None:
    """A checkpoint as MXNet's symbol and parameters, which MXNet loads without rn50, and as ONNX.

    The network of evaluation in float32: images (NCHW) to logits. model.json says how images have
    to be prepared.

    Example: `rn50 export model results/smoke/20261123T050000Z --out model --onnx`
    """
    from ..train.checkpoint.folder import chosen_checkpoint, copy_of

    refuse_content(out)
    # before the checkpoint is read: the error names the extra to install
    if onnx:
        import_module("onnx")
    chosen = chosen_checkpoint(path)
    from ..train.checkpoint.model_export import export_model

    with new_folder(out) as folder:
        checkpoint = copy_of(chosen, folder / ".ckpt")
        export_model(checkpoint, folder, onnx=onnx)
        checkpoint.path.unlink()
    for file in sorted(out.iterdir()):
        say(str(file))
