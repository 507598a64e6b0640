"""The folder of a run: a new one, and what it may hold where a run begins or goes on in it.

Launcher, ranks and job scripts write files of known names there. A link of such a name would lead
them to another file of the user's, a FIFO would hold them up.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from ..config.errors import UserError
from ..config.schema import Run

CHECKPOINTS = "checkpoint"
COPIED = ("config.yaml", "origins.json", "environment.json")
"""Of which each attempt keeps a copy: they are written anew for the next one, which may run
elsewhere or on another number of ranks."""
_MOST_BYTES = 16 << 20
"""Of one of these; they have some kB."""
_FILES = (
    *(*COPIED, "result_0.txt", "metrics.jsonl"),
    *("result.json", "ranks.json", "timeline.json", "stderr.log", "report.html", "resume_from"),
    "launcher.json",
)
_PATTERNS = ("failure_*.json",)


def refuse_planted(out: Path) -> None:
    """Raises UserError where a name that a run writes in `out` is no file or folder of its own."""
    for path in (*(out / name for name in _FILES), *(p for t in _PATTERNS for p in out.glob(t))):
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            found = "a link" if path.is_symlink() else "something else"
            raise UserError(f"{path}: a regular file or none expected, found {found}")
    for path in (out / name for name in COPIED):
        if os.path.lexists(path) and path.lstat().st_size > _MOST_BYTES:
            raise UserError(f"{path}: at most {_MOST_BYTES:,} bytes expected")
    for folder in (out / CHECKPOINTS, out / "profile"):
        if folder.is_symlink() or (os.path.lexists(folder) and not folder.is_dir()):
            found = "a link" if folder.is_symlink() else "something else"
            raise UserError(f"{folder}: a folder or none expected, found {found}")


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
    """Raises UserError where a run has left its files in `folder`: another would replace them.

    Likewise where something lies there by which a file elsewhere would be written.
    """
    for name in ("config.yaml", "result_0.txt", "metrics.jsonl", "result.json"):
        if os.path.lexists(folder / name):
            raise UserError(f"--out: {folder}: a folder without a run expected, found its {name}")
    refuse_planted(folder)
