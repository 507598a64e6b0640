"""The folder of a run: a new one, and room on its disk for what is to be said of a failure."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from ..config.errors import UserError
from ..config.schema import Run

CHECKPOINTS = "checkpoint"
COPIED = ("config.yaml", "origins.json", "environment.json")
"""Of which each attempt keeps a copy: they are written anew for the next one, which may run
elsewhere or on another number of ranks."""
_RESERVE = ".reserve"
_RESERVE_BYTES = 1 << 20
"""result.json, run_stop and the lines of a job's log take some kB, a report about 300."""


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


def reserve(out: Path) -> None:
    """Keep room on the disk of a run, if there is any: on a full disk the end of the log,
    result.json and the line that says why find a place all the same."""
    with suppress(OSError):
        (out / _RESERVE).write_bytes(bytes(_RESERVE_BYTES))


def give_back(out: Path) -> None:
    """Make the room free. A line that the full disk has cut short in a log to which this process
    writes ends here, so that the reason of the failure stands on a line of its own."""
    with suppress(OSError):
        (out / _RESERVE).unlink(missing_ok=True)
    for descriptor in (1, 2):
        with suppress(OSError):
            size_bytes = os.fstat(descriptor).st_size  # of a terminal or a pipe: 0
            if not size_bytes:
                continue
            with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
                file.seek(size_bytes - 1)
                last = file.read(1)
            if last != b"\n":
                os.write(descriptor, b"\n")
