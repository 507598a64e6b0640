"""The two steps in a container around the ranks of a run: `python -m rn50.launch.job_steps`.

    begin OUT DATA CONFIG [KEY=VALUE ...]   config, environment, data check, the machine's page
    end OUT CODE SIGNAL                     checkers, report, RESULT line

For job scripts whose ranks run in a container (container_script.py); all others run `rn50 launch`,
which does the same. `begin` on the folder of a run that was interrupted puts aside what the start
before left and names the checkpoint to go on from in OUT/resume_from; it exits with 10 or 11 where
the run had ended, at its target or short of it. `end` exits with 0 where the run reached its target
and passes, 1 where not, 3 where a rank failed. Both exit with 2 for bad input and a folder in use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.atomic import write_file
from ..config.errors import UserError
from ..config.load import load
from ..data.dataset import check_before_run
from .ending import run_stopped
from .engine_environment import engine_environment
from .failure import explain_folder
from .job import keep_log, next_run, say_ending, say_error
from .job_folder import EXIT_FAILED, EXIT_MISSED, OpenJob
from .launchers import Job, family_here
from .preflight import refusals, refuse
from .resume import begin_attempt, close_attempt, is_hopeless, read_result
from .run import (
    RANK,
    LaunchPlan,
    Options,
    begin_run,
    close_result,
    conclude,
    end_failed,
    rank_command,
)
from .run_lock import hold_run
from .verdict import is_good

EXIT_HAD_ENDED = 10
"""Of `begin`: the run reached its target in a start before; 11: it ended short of it."""
RESUME_FROM = "resume_from"


def begin(out: Path, config: str, overrides: Sequence[str]) -> int:
    """Make `out` ready for the ranks, or find that its run has ended; returns the exit code."""
    todo = next_run(out, config, overrides)
    if todo is None:
        reached = read_result(out).get("status") == "success"
        return EXIT_HAD_ENDED if reached else EXIT_HAD_ENDED + EXIT_MISSED
    run = todo.loaded.run
    refuse(refusals(run, ("mpi",)))
    manifest = check_before_run(run.data, todo.loaded.origins)
    with hold_run(out):
        found = begin_attempt(out) if todo.resumes else None
        (out / RESUME_FROM).unlink(missing_ok=True)
        if found is not None:
            write_file(out / RESUME_FROM, f"{found.path}\n")
        environment = engine_environment(run, os.environ, mpi=family_here())
        job = Job.of(run, rank_command(RANK, out))
        launcher = run.system.scheduler
        begin_run(LaunchPlan(todo.loaded, launcher, job, environment, out, manifest, Options()))
    return 0


def end(out: Path, code: int, signal: str) -> int:
    """Judge the run in `out`, whose launcher ended with `code`; returns the exit code. `signal`:
    the name of the one that stopped the job; empty: none did."""
    run = load(out / "config.yaml").run
    job, number = OpenJob(out.parent), int(out.name.partition("_")[2])
    with hold_run(out):
        (out / RESUME_FROM).unlink(missing_ok=True)
        if code == 0 and (out / "result.json").is_file():
            result = conclude(run, out, Options())
            keep_log(job, run, number)
            return 0 if is_good(result) else EXIT_MISSED
        close_attempt(out)
        if signal:
            ending = run_stopped(signal, out)
            close_result(out, run, ending)
        else:
            ending = end_failed(run, out, explain_folder(out, code), Options())
        keep_log(job, run, number)
        say_ending(out, ending, out.parent)
        return EXIT_MISSED if is_hopeless(out) else EXIT_FAILED


def main(arguments: list[str]) -> int:
    """The two steps; user errors are one line each."""
    try:
        match arguments:
            case ["begin", out, data, config, *overrides]:
                return begin(Path(out), config, [*overrides, f"data.path={json.dumps(data)}"])
            case ["end", out, code, signal]:
                return end(Path(out), int(code), signal)
        raise UserError(f"begin or end and their arguments expected, found {arguments}")
    except (UserError, OSError) as error:
        return say_error(error, Path(arguments[1] if len(arguments) > 1 else ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
