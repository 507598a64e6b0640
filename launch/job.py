"""A job: its runs, one after the other, in one folder that is laid out as a submission.

`rn50 launch --job FOLDER --runs N` in a job script. FOLDER holds run_0, run_1, ... as `rn50 launch`
leaves them, results/ and systems/ as a submission wants them, job.log and exit_code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..config.benchmark import BENCHMARK
from ..config.load import Loaded, load
from ..config.schema import Run
from ..host.atomic import write_file, write_json
from ..host.errors import UserError, failing_as
from ..host.exit_codes import EXIT_BAD, EXIT_FAILED, EXIT_JOB_STOPPED, EXIT_USAGE
from ..host.inherited import LOCAL_JOB, inherited
from ..host.programs import call
from ..host.progress import Tracker, say, say_aside
from ..host.reading import read_file
from ..logging.records import Result
from ..logging.run_folder import RunFolder
from .ending import RunError, StoppedBySignal, asked_by
from .job_folder import OpenJob
from .launch_plan import LaunchPlan, Options, plan_launch
from .launchers import LAUNCHERS
from .preflight import refuse_runs
from .resume import load_attempt
from .run import run_plan, with_fresh_seed
from .schedulers import LIMIT_SIGNAL
from .system_description import describe_system, system_id

DROP_CACHES = (
    "bash",
    "-c",
    "sync; echo 3 2>/dev/null >/proc/sys/vm/drop_caches || sudo -n sysctl -q vm.drop_caches=3",
)
_LONGEST_LOG_BYTES = 256 << 20
STAGE_S = 86_400.0
"""For what runs on every node before the ranks: the copy of a large set takes hours."""
REQUEUE_S = 120.0


class Request(NamedTuple):
    """The runs that a job is asked for. `requeue`: for a shell, puts the job back into its queue
    once it was stopped by LIMIT_SIGNAL. `loaded`: their config, where it is known."""

    config: str
    overrides: tuple[str, ...]
    runs: int
    launcher: str | None
    requeue: str | None = None
    loaded: Loaded | None = None


class Outcome(NamedTuple):
    """How a run or a job ended. `stopped_by`: the signal; empty: it was not stopped. `requeue`: is
    the job to go back into its queue?"""

    exit_code: int
    stopped_by: str = ""
    requeue: bool = False


def run_all(job: OpenJob, request: Request, track: Tracker) -> Outcome:
    """Run what is left to do of `request` in `job`."""
    checkpoints_at_start = job.checkpoints()
    try:
        outcome = _run_left(job, request, track)
    except UserError as error:
        outcome = Outcome(EXIT_USAGE)
        _say_error(str(error))
    except OSError as error:  # such as a full disk
        outcome = Outcome(EXIT_FAILED)
        _say_error(f"{error.filename or job.path}: {error.strerror or error}")
    except KeyboardInterrupt as stop:
        outcome = Outcome(EXIT_JOB_STOPPED, asked_by(stop))
        _say_error(f"stopped by {outcome.stopped_by}")
    if request.requeue and outcome.stopped_by == LIMIT_SIGNAL:
        outcome = outcome._replace(requeue=job.checkpoints() != checkpoints_at_start)
        if not outcome.requeue:
            why = "a new checkpoint expected, found none: it would go on like this for ever"
            _say_error(f"not requeued: {why}")
    job.code = outcome.exit_code
    return outcome


def _say_error(message: str) -> None:
    for line in message.splitlines():
        say_aside(f"rn50: error: {line}")


def _run_left(job: OpenJob, request: Request, track: Tracker) -> Outcome:
    """One run after the other, up to one that failed or was stopped."""
    loaded = request.loaded or load(request.config, request.overrides)
    plan = plan_launch(loaded, Options(request.launcher, in_job=True))
    refuse_runs(loaded.run, request.runs)
    plan.refuse()
    worst = Outcome(0)
    with staged(plan, (request.config, *request.overrides)) as overrides:
        if overrides:
            request = request._replace(overrides=(*request.overrides, *overrides))
            plan = replace(plan, loaded=load(request.config, request.overrides))
        for number in range(request.runs):
            outcome = _run_one(job, number, request, plan, track)
            if outcome.exit_code > worst.exit_code:
                worst = outcome
            # one that misses its target does not stop the next, a rank that failed does
            if worst.exit_code > EXIT_BAD:
                break
    return worst


def put_back(command: str) -> int:
    """Put this job, which has stopped and left its folder, back into its queue with `command`, for
    a shell. Returns the exit code to end with."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a job gets that is requeued
    say(f"back into the queue: {command}")
    environment = inherited(os.environ, LOCAL_JOB)
    return call(["bash", "-c", command], REQUEUE_S, environment) or EXIT_JOB_STOPPED


def _run_one(
    job: OpenJob, number: int, request: Request, plan: LaunchPlan, track: Tracker
) -> Outcome:
    """Run number `number` of the job, or what is left of it. `plan`: of all its runs. Raises
    UserError: the config is not that of the run that is left, or another process uses it."""
    out = job.run(number)
    resumes = out.config.is_file()
    if resumes:
        out.check_free()
        if not out.is_interrupted and not out.is_to_conclude:
            say(f"{out}: has ended in a start before, is left as it is")
            return _outcome_of(out.read_result())
    loaded = _config_of_run(out, plan)
    if plan.run.system.job.drop_caches:
        run_once_per_node(plan, DROP_CACHES)
    options = plan.options._replace(
        launcher=None, out=out.path, resume=out.path if resumes else None
    )
    try:
        result, late = run_plan(replace(plan, loaded=loaded, options=options), track)
        keep_log(job, plan.run, number)
        if number + 1 < request.runs:
            # a signal since the ranks' end changes nothing for this run, but no other begins
            late.release()
            if late.name:
                raise KeyboardInterrupt(late.name)
        return _outcome_of(result)
    except (RunError, StoppedBySignal) as error:
        keep_log(job, plan.run, number)
        return _outcome_of_error(error, out, request)


def _config_of_run(out: RunFolder, plan: LaunchPlan) -> Loaded:
    """The config of a run of the job, with the seed of what is left of it, or a fresh one."""
    if not out.config.is_file():
        with failing_as(f"{out}: cannot create"):
            out.path.mkdir(parents=True, exist_ok=True)
        return with_fresh_seed(plan.loaded)
    result = out.read_result()
    why = (result and result.why) or "left no result: killed, or its node failed"
    loaded = load_attempt(out, plan.loaded)
    say(f"{out}: the start before: {why}")
    return loaded


def _outcome_of_error(
    error: RunError | StoppedBySignal, out: RunFolder, request: Request
) -> Outcome:
    """The outcome of a run that failed or was stopped, which is also printed."""
    ending = error.ending
    outcome = Outcome(EXIT_FAILED)
    if isinstance(error, StoppedBySignal):
        outcome = Outcome(EXIT_JOB_STOPPED, asked_by(error))
    elif out.is_hopeless:
        outcome = Outcome(EXIT_BAD)
    # it goes on by itself
    if request.requeue and outcome.stopped_by == LIMIT_SIGNAL:
        ending = ending._replace(advice="", next="")
    _say_error(str(error).removesuffix(error.ending.what_next))
    say_aside(f"{out}{ending.what_next}")
    return outcome


def _outcome_of(result: Result | None) -> Outcome:
    """The outcome of a run that has ended in order."""
    return Outcome(0 if result and result.is_good else EXIT_BAD)


def keep_log(job: OpenJob, run: Run, number: int) -> None:
    """The log of a run among those of the submission, and the page of the machine."""
    out = job.run(number)
    system = system_id(run)
    if out.log.is_file():
        with suppress(OSError):  # such as a full disk
            page = describe_system(run, out.read_environment())
            systems = job.path / "systems"
            systems.mkdir(exist_ok=True)
            write_json(systems / f"{system}.json", page)
            folder = job.path / "results" / system / BENCHMARK
            folder.mkdir(parents=True, exist_ok=True)
            # what a link out of the job's folder leads to is not published
            content = read_file(out.log, _LONGEST_LOG_BYTES, within=job.path)
            write_file(folder / f"result_{number}.txt", content)


# --- beside the ranks: once on every node, through the same launcher ---


@contextmanager
def staged(plan: LaunchPlan, config: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The set on every node's own disk within the block; gives the overrides of a run there.
    `config`: CONFIG and overrides. Raises UserError: a node has no such folder, or its copy
    fails."""
    stage = plan.run.system.job.stage
    if stage is None:
        yield ()
        return
    target = f"{node_folder(stage)}/rn50_data"
    rn50 = [sys.executable, "-m", "rn50.cli.entry", "data"]
    arguments = ["--", *config]
    _call([*rn50, "prepare", *arguments], inherited(os.environ, LOCAL_JOB))
    on_nodes = [*rn50, "stage", "--to", target]
    run_once_per_node(plan, ["mkdir", "-p", "--", str(Path(target).parent)])
    try:
        run_once_per_node(plan, [*on_nodes, *arguments])
        yield (f"data.path={json.dumps(target)}",)
    finally:
        with suppress(UserError):
            run_once_per_node(plan, [*on_nodes, "--remove", *arguments])


def node_folder(value: str) -> str:
    """A folder on the nodes; $NAME is that variable, and has to be set."""
    folder = os.path.expandvars(value)
    if "$" in folder:
        raise UserError(
            f"system.job.stage: variables that are set here expected, found {value}"
        )
    return folder


def run_once_per_node(plan: LaunchPlan, command: Sequence[str]) -> None:
    """Run a command on every node of the job. Raises UserError: it fails on one."""
    job = plan.job
    job = job._replace(command=command, ranks=job.nodes, ranks_per_node=1)
    _call(LAUNCHERS[plan.launcher].command(job), job.launchers_environment)


def _call(command: Sequence[str], environment: Mapping[str, str]) -> None:
    code = call(command, STAGE_S, environment)
    if code:
        raise UserError(f"{' '.join(command)}: exit code 0 expected, found {code}")
