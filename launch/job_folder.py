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
from ..host.exit_codes import EXIT_BAD, EXIT_FAILED, EXIT_JOB_STOPPED
from ..host.lock import hold
from ..logging.run_folder import JobFolder, RunFolder

ENDED = (str(0), str(EXIT_BAD))
"""Exit codes of a job all of whose runs have had their turn."""
MAY_GO_ON = ("", "running", str(EXIT_JOB_STOPPED))
"""What `read_exit_code` says of a job that its scheduler may start, or start again."""


class OpenJob(JobFolder):
    """The folder of a job that this process runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.code = EXIT_FAILED
        """The exit code of the job; stays so where an error of ours ends it."""

    def run(self, number: int) -> RunFolder:
        """The folder of a run; of a job that resumes a run of `rn50 launch`, its own."""
        launched = RunFolder(self.path)
        return (
            launched
            if launched.was_launched
            else RunFolder(self.path / f"run_{number}")
        )

    def checkpoints(self) -> set[Path]:
        """The checkpoints of all runs."""
        runs = (RunFolder(self.path), *self.runs)
        return {path for run in runs for path in run.checkpoints.glob("step_*.ckpt")}


@contextmanager
def open_job(folder: Path, *, log: bool) -> Iterator[OpenJob]:
    """Be the only one that runs the job in `folder`. `log`: this process's output goes to the
    folder's job.log from here on. Raises UserError: another process runs it, or the folder cannot
    be made."""
    with failing_as(f"{folder}: cannot create"):
        folder.mkdir(parents=True, exist_ok=True)
    job = OpenJob(folder)
    with hold(job.lock):
        put_aside(job)
        if log:
            _redirect(job.log)
        write_file(job.exit_code, "running\n")
        try:
            yield job
        finally:
            with suppress(OSError):  # such as a full disk
                write_file(job.exit_code, f"{job.code}\n")


def put_aside(job: JobFolder) -> None:
    """Number what the start before left: job.1.log, exit_code.1 and so on."""
    number = 1
    while (job.path / f"job.{number}.log").exists():
        number += 1
    names = {job.log: f"job.{number}.log", job.exit_code: f"exit_code.{number}"}
    for path, name in names.items():
        with suppress(FileNotFoundError):
            path.rename(path.with_name(name))


def _redirect(log: Path) -> None:
    """All output to `log` from here on, that of the processes to come as well."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    # into a file Python writes by blocks, and whoever follows the log would see nothing
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
