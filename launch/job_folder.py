"""The folder of a job: its lock, its log, its exit code; a second start writes over nothing.

While the first runs a second one is refused; later it goes on in the same folder, where runs that
have ended stay. job.log and exit_code are the newest start's; those before are job.1.log,
exit_code.1 and so on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..host.atomic import write_file
from ..host.errors import failing_as
from ..host.lock import hold
from ..host.reading import read_file
from .run_files import CHECKPOINTS, is_run

JOB_LOCK = ".job.lock"
EXIT_MISSED = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_STOPPED = 143
"""Of a job: a run ended short of its target; bad input; a rank failed; a signal."""
ENDED = (str(0), str(EXIT_MISSED))
"""Exit codes of a job all of whose runs have had their turn."""
MAY_GO_ON = ("", "running", str(EXIT_STOPPED))
"""What `exit_code_of` says of a job that its scheduler may start, or start again."""


class OpenJob:
    """The folder of a job that this process runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exit_code = EXIT_FAILED
        """Of the job; stays so where an error of ours ends it."""

    def run(self, number: int) -> Path:
        """The folder of a run; of a job that resumes a run of `rn50 launch`, its own."""
        if is_run(self.folder):
            return self.folder
        return self.folder / f"run_{number}"

    def checkpoints(self) -> set[Path]:
        """Those of all runs."""
        name = f"{CHECKPOINTS}/step_*.ckpt"
        return {*self.folder.glob(name), *self.folder.glob(f"run_*/{name}")}


@contextmanager
def open_job(folder: Path, *, log: bool) -> Iterator[OpenJob]:
    """Be the only one that runs the job in `folder`. `log`: this process's output goes to the
    folder's job.log from here on. Raises UserError: another process runs it, or the folder cannot
    be made."""
    with failing_as(f"{folder}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
    job = OpenJob(folder)
    exit_code = folder / "exit_code"
    with hold(folder / JOB_LOCK):
        put_aside(folder)
        if log:
            _redirect(folder / "job.log")
        write_file(exit_code, "running\n")
        try:
            yield job
        finally:
            with suppress(OSError):  # such as a full disk
                write_file(exit_code, f"{job.exit_code}\n")


def put_aside(folder: Path) -> None:
    """Number what the start before left: job.1.log, exit_code.1 and so on."""
    past = 1
    while (folder / f"job.{past}.log").exists():
        past += 1
    kept = {"job.log": f"job.{past}.log", "exit_code": f"exit_code.{past}"}
    for name, new_name in kept.items():
        with suppress(FileNotFoundError):
            (folder / name).rename(folder / new_name)


def exit_code_of(folder: Path) -> str:
    """What its exit_code says: a number, `running`, or nothing."""
    with suppress(OSError):
        return read_file(folder / "exit_code", 16).decode(errors="replace").strip()
    return ""


def _redirect(log: Path) -> None:
    """All output to `log` from here on, that of the processes to come as well."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
