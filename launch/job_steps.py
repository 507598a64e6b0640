"""What a job script calls around the ranks: `python -m rn50.launch.job_steps begin|end`.

    begin OUT --scheduler NAME --seed N --data FOLDER -- CONFIG [KEY=VALUE ...]
                            config, environment, data check, the machine's description
    end OUT CODE SIGNAL SECONDS SCHEDULER
                            checkers, report, RESULT line

`begin` on the folder of a run that was interrupted puts aside what the start before left and names
the checkpoint to go on from in OUT/resume_from; it exits with 10 or 11 where the run had ended, at
its target or short of it. `end` exits with 0 where the run reached its target and passes, 1 where
not, 3 where a rank failed. Both exit with 2 for bad input and a folder that is in use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.atomic import write_own
from ..config.errors import UserError
from ..config.load import Loaded, load
from ..config.manifest import Manifest
from ..config.plan import build_plan
from ..config.reading import read_ends
from ..data.dataset import check_before_run
from ..train.gpu import read_gpus
from . import supervisor as watch
from .disk_reserve import reserve
from .ending import rank_failed, read_standing, run_stopped, same_again
from .engine_environment import backend_of, engine_environment
from .environment_record import describe_environment, installed_packages
from .failure import explain_failure, read_failures
from .host_limits import read_limits
from .job_script import system_id
from .preflight import refusals, refuse
from .resume import (
    begin_attempt,
    close_attempt,
    is_hopeless,
    is_interrupted,
    load_attempt,
    read_result,
)
from .run import announce, close_result, conclude, save_config
from .run_files import refuse_planted
from .run_lock import hold_run
from .schedulers import is_watched
from .system_description import describe_system, read_machine
from .verdict import is_good

EXIT_MISSED = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
EXIT_HAD_ENDED = 10
"""Of `begin`: the run reached its target in a start before; 11: it ended short of it."""
RESUME_FROM = "resume_from"
_CANCELLED = re.compile(
    r"\*\*\* (?:STEP|JOB) \S+ ON \S+ (?P<said>CANCELLED) AT \S+(?P<why>[^*]*)\*"
)


def begin(config: str, overrides: Sequence[str], out: Path, scheduler: str) -> int:
    """Make `out` ready for the ranks, or find that its run has ended; returns the exit code.

    Args:
        overrides: of the config; the seed in them is a new run's.

    Raises:
        UserError: the config, the data or the engines refuse, or another process uses `out`.
    """
    refuse_planted(out)
    if (out / "config.yaml").is_file():
        with hold_run(out):
            if not is_interrupted(out):
                return _had_ended(out)
            loaded = load_attempt(out, config, [o for o in overrides if not o.startswith("seed=")])
            manifest = _check(loaded)
            print(f"{out}: {_start_before(out)}", flush=True)
            found = begin_attempt(out, loaded)
            if found is None:
                (out / RESUME_FROM).unlink(missing_ok=True)
            else:
                write_own(out / RESUME_FROM, f"{found.path}\n")
            _describe(out, loaded, scheduler, manifest)
        return 0
    loaded = load(config, list(overrides))
    manifest = _check(loaded)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot create: {error.strerror}") from None
    reserve(out)
    _describe(out, loaded, scheduler, manifest)
    return 0


def _had_ended(out: Path) -> int:
    """Nothing is left to do for a run that ended in a start before; what is there stays."""
    print(f"{out}: has ended in a start before, is left as it is", flush=True)
    reached = read_result(out).get("status") == "success"
    return EXIT_HAD_ENDED if reached else EXIT_HAD_ENDED + EXIT_MISSED


def _start_before(out: Path) -> str:
    """What is known of how the start before ended, and of this one."""
    result = read_result(out)
    known = str(result.get("reason") or result.get("stopped") or "")
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    requeued = f"; Slurm has requeued the job {restarts} x" if restarts != "0" else ""
    return f"the start before: {known or 'left no result: killed, or its node failed'}{requeued}"


def _check(loaded: Loaded) -> Manifest:
    refuse(refusals(loaded.run, ("mpi",)))
    return check_before_run(loaded.run.data, loaded.origins)


def _describe(out: Path, loaded: Loaded, scheduler: str, manifest: Manifest) -> None:
    """What the ranks will read and what a reader of the results will want."""
    run = loaded.run
    save_config(loaded, out)
    environment = engine_environment(run, backend_of(run, "mpi"), os.environ)
    command = ("-m", "rn50.train", str(out / "config.yaml"), "--out", str(out))
    described = describe_environment(environment, scheduler, command)
    write_own(out / "environment.json", json.dumps(described, indent=1) + "\n")
    systems = out.parent / "systems"
    systems.mkdir(exist_ok=True)
    described = describe_system(run, read_machine(), installed_packages(), read_gpus())
    write_own(systems / f"{system_id(run)}.json", json.dumps(described, indent=2) + "\n")
    announce(loaded, build_plan(run), environment, scheduler, out, manifest)


def end(out: Path, code: int, signal: str, seconds: int, scheduler: str) -> int:
    """Judge the run in `out`, whose launcher ended with `code`; returns the exit code.

    A launcher's 0 is not believed where no result.json is there: srun has said it of no start.

    Args:
        signal: the name of the one that stopped the job; empty: none did.
        seconds: since the job started.
    """
    run = load(out / "config.yaml").run
    with hold_run(out):
        (out / RESUME_FROM).unlink(missing_ok=True)
        if code == 0 and (out / "result.json").is_file():
            result = conclude(run, out)
            return 0 if is_good(result) else EXIT_MISSED
        log = out / "stderr.log"
        text = read_ends(log)
        close_attempt(out)
        hopeless = is_hopeless(out)
        standing = read_standing(out)
        if signal:
            walltime = None if scheduler == "local" else run.system.job.walltime
            by = describe_stop(signal, seconds, walltime, text)
            reason = run_stopped(by, standing, out, "").reason
        else:
            reason = explain_failure(read_failures(out), text, code, limits=read_limits())
        ending = rank_failed(reason, standing, out, same_again(out), hopeless=hopeless)
        close_result(out, run, ending)
        if signal or code != watch.EXIT_FAILED or not is_watched(run):  # else it was said
            print(f"rn50: error: {reason}; details: {log}", file=sys.stderr, flush=True)
        print(f"{out}{ending.what_next}", file=sys.stderr, flush=True)
        return EXIT_MISSED if hopeless else EXIT_FAILED


def describe_stop(signal: str, seconds: int, walltime: str | None, stderr: str) -> str:
    """The signal, when it came, and what Slurm said of it: nothing else is known.

    A cancelled job, one that is preempted or requeued, a failed node, and the end of the time all
    arrive as the same signal.
    """
    of = f" of {walltime}" if walltime else ""
    said = [" ".join(f"{m['said']}{m['why']}".split()).lower() for m in _CANCELLED.finditer(stderr)]
    slurm = f" (Slurm: {said[-1]})" if said else ""
    return f"SIG{signal} after {seconds} s{of}{slurm}"


def main(arguments: list[str] | None = None) -> int:
    """The two commands; user errors are one line each."""
    parser = argparse.ArgumentParser(prog="python -m rn50.launch.job_steps", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("begin")
    first.add_argument("out", type=Path)
    first.add_argument("--scheduler", required=True)
    first.add_argument("--seed", type=int, required=True)
    first.add_argument("--data", required=True)
    first.add_argument("config")
    first.add_argument("overrides", nargs="*")
    last = commands.add_parser("end")
    last.add_argument("out", type=Path)
    last.add_argument("code", type=int)
    last.add_argument("signal", help="TERM, INT; empty: none")
    last.add_argument("seconds", type=int)
    last.add_argument("scheduler")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "end":
            return end(chosen.out, chosen.code, chosen.signal, chosen.seconds, chosen.scheduler)
        own = [f"seed={chosen.seed}", f"data.path={json.dumps(chosen.data)}"]
        return begin(chosen.config, [*chosen.overrides, *own], chosen.out, chosen.scheduler)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"rn50: error: {line}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:  # such as a full disk
        print(
            f"rn50: error: {error.filename or chosen.out}: {error.strerror or error}",
            file=sys.stderr,
        )
        return EXIT_FAILED if chosen.command == "end" else EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
