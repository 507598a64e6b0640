"""`rn50 evaluate`: a checkpoint scored again."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import EXIT_BAD, Json, Launcher, Overrides, Ranks, print_json, say, track

_RUN = "Folder of a run, for its best checkpoint, else its newest; or a file `*.ckpt`."
RunOrCheckpoint = Annotated[Path, typer.Argument(help=_RUN, metavar="RUN")]


def evaluate(
    path: RunOrCheckpoint,
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    as_json: Json = False,
) -> None:
    """Score a checkpoint again: top-1 and top-5 on the run's evaluation set, by the run's code.

    Exit 0: as many correct images as the run recorded for these weights, or it recorded none; 1:
    another number; 2: bad input or a failed rank.

    Example: `rn50 evaluate results/smoke/20261123T050000Z --ranks 1`

    Example: `rn50 evaluate results/quick/20261123T050000Z data.path=/scratch/quick`
    """
    from ..launch.evaluation import evaluate as score

    aside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with aside:
        found = score(path, overrides or [], ranks, launcher, track)
    if as_json:
        print_json(found)
    else:
        recorded, total = found["recorded_accuracy"], found["total"]
        say(f"{found['checkpoint']}: step {found['step']}, {found['epochs']} epochs trained")
        for name, count in (("top-1", "correct"), ("top-5", "correct_top5")):
            say(f"{name} {found[count] / total:.5f} ({found[count]} of {total})")
        if found["as_recorded"]:
            say("the same as the run recorded")
        elif recorded is None:
            say("the run recorded no such evaluation of these weights")
        else:
            say(f"the run recorded {recorded:.5f} ({round(recorded * total)} of {total})")
    if found["as_recorded"] is False:
        raise typer.Exit(EXIT_BAD)
