"""The folder of a run: a new one, and what it may hold where a run begins."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..config.errors import UserError
from ..config.schema import Run

CHECKPOINTS = "checkpoint"
COPIED = ("config.yaml", "origins.json", "environment.json")
"""Of which each attempt keeps a copy: they are written anew for the next one, which may run
elsewhere or on another number of ranks."""


def new_run_folder(run: Run) -> Path:
    """`results/<name>/<UTC time>/`, created. Raises UserError where it cannot be."""
    parent = Path(run.system.results) / run.name
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for suffix in ("", *(f"-{n}" for n in range(2, 100))):
        folder = parent / f"{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"{folder}: cannot create: {error.strerror}") from None
        return folder
    raise UserError(f"{parent}: cannot create a new folder for this run")


def is_run(folder: Path) -> bool:
    """Is this the folder of a run, begun by a launcher, rather than that of a job?"""
    return (folder / "environment.json").is_file()


def refuse_run(folder: Path) -> None:
    """Raises UserError where a run has left its files in `folder`: another would replace them."""
    for name in ("config.yaml", "result_0.txt", "metrics.jsonl", "result.json"):
        if os.path.lexists(folder / name):
            raise UserError(f"--out: {folder}: a folder without a run expected, found its {name}")
