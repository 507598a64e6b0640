"""A job to its scheduler: the folder, the submission, waiting, and which job is resumed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..config.load import Loaded
from ..config.plan import build_plan
from ..config.recorded import RESUME_JOB, leads_out, load_recorded
from ..host import programs
from ..host.atomic import in_its_folder, write_file
from ..host.errors import UserError
from ..host.exit_codes import EXIT_JOB_STOPPED
from ..host.finding import printable
from ..host.inherited import (
    DEFAULTS,
    LOCAL_JOB,
    SCHEDULERS_COMMAND,
    inherited,
    not_passed_on,
    taken_away,
)
from ..host.lock import held, hold
from ..host.programs import NoAnswer, NotStarted
from ..host.progress import say, say_aside
from ..host.reading import read_ends, read_text
from ..logging.records import FAILED, Result, Submission, write
from ..logging.run_folder import JobFolder, RunFolder
from ..report.runs import CANCELLED, KILLED, QUEUED, RUNNING, STOPPED, UNKNOWN
from .hosts import missing_hosts
from .job_folder import ENDED, MAY_GO_ON, put_aside
from .job_script import ROOT, JobPaths, job_script, program_on_nodes
from .preflight import refusals, refuse
from .resume import latest_interrupted, load_attempt
from .run_files import in_brief, new_run_folder, save_config
from .schedulers import SCHEDULERS, Scheduler

POLL_S = 2.0
SILENT_S = 30.0
"""A command that has not answered is not asked again so long, for other jobs or the same."""
_silent_until_s: dict[str, float] = {}
SUBMIT_S = 120.0
"""For a scheduler to take a job; on a busy one that takes minutes."""
_LOST = re.compile("tim(ed|e) ?out|timeout|connect|communicat", re.IGNORECASE)
"""Words of a scheduler's command whose answer was lost, not its request."""
JOB_ID = re.compile(r"\d[\w.\[\]-]*(;\w[\w.-]*)?")
"""The id of a job of any scheduler, which is never an option of its commands."""
SETTLE_S = 10.0
"""Time for a file of the job to show up here once the scheduler has forgotten the job."""


class SubmissionPlan(NamedTuple):
    scheduler: Scheduler
    folder: Path
    script: str
    command: list[str]

    @property
    def files(self) -> JobFolder:
        """The files of the job."""
        return JobFolder(self.folder)


class Last(NamedTuple):
    """The submission that another resumes; its defaults: none."""

    folder: Path | None = None
    scheduler: str | None = None
    """None: not known, as of a run of `rn50 launch`."""
    runs: int = 1


def plan_submission(
    loaded: Loaded,
    scheduler: str,
    runs: int,
    folder: Path,
    overrides: Sequence[str] = (),
) -> SubmissionPlan:
    """What would be submitted from the current folder, with the job's files in `folder`.
    `overrides`: which its config.yaml does not have."""
    if scheduler not in SCHEDULERS:
        raise UserError(
            f"--scheduler: {', '.join(SCHEDULERS)} expected, found {scheduler}"
        )
    run = loaded.run
    refuse(refusals(run, ("mpi",)))
    dialect = SCHEDULERS[scheduler]
    job = run.system.job
    files = JobFolder(folder)
    command = [*dialect.command, files.script.name]
    if scheduler != "local":
        command[-1:-1] = job.options
    config = (str(files.config), *overrides)
    data = run.data.path  # `rn50 data prepare` asks for it as well
    if leads_out(data, folder):
        config = (*config, f"data.path={json.dumps(data)}")
    home = str(ROOT)
    python = sys.executable
    if not job.container:
        home, python = program_on_nodes(job)
    paths = JobPaths(config, str(Path.cwd()), str(folder), home, python)
    script = job_script(run, scheduler, paths, runs)
    return SubmissionPlan(dialect, folder, script, command)


def submit(
    loaded: Loaded,
    scheduler: str,
    runs: int,
    folder: Path | None = None,
    overrides: Sequence[str] = (),
) -> tuple[SubmissionPlan, str]:
    """Submit from the job's folder; returns the job's id. `folder`: of an interrupted job or run
    that this one resumes, given `overrides`; None: a new one. Raises UserError: the
    scheduler's command is missing or refuses."""
    if scheduler == "local":
        refuse(missing_hosts(loaded.run, scheduler))
    plan_in = partial(plan_submission, loaded, scheduler, runs, overrides=overrides)
    plan = plan_in(folder or Path("-"))
    program = plan.command[0]
    if shutil.which(program) is None:
        raise UserError(
            f"--scheduler {scheduler}: its command {program} on the PATH expected, found none; "
            "--dry-run prints the script"
        )
    if folder is None:
        plan = plan_in(new_run_folder(loaded.run))
        save_config(loaded, plan.files)
    put_aside(plan.files)
    write_file(plan.files.script, plan.script)
    brief = in_brief(loaded.run, build_plan(loaded.run))
    try:
        job = _start_here(plan) if scheduler == "local" else _queue(plan)
    except (NotStarted, Refused):
        if folder is None:  # else `rn50 runs` lists a job that there has never been
            shutil.rmtree(plan.folder, ignore_errors=True)
        raise
    except BaseException:  # it may be in the queue
        _record(plan, Submission(scheduler, "", runs, brief))
        raise
    _record(plan, Submission(scheduler, job, runs, brief))
    return plan, job


def _record(plan: SubmissionPlan, submission: Submission) -> None:
    with suppress(OSError):  # it has been submitted in any case
        write(plan.files.submission, submission)


class Refused(UserError):
    """A scheduler has surely not taken a job."""


def _queue(plan: SubmissionPlan) -> str:
    """Hand the script to the scheduler; the job's id. Raises UserError: there is none; Refused,
    NotStarted: nor is there a job."""
    environment = inherited(os.environ, SCHEDULERS_COMMAND)
    notice = f"the job may be in its queue, so its folder stays: {plan.folder}"
    try:
        answer = programs.ask(plan.command, SUBMIT_S, environment, plan.folder)
    except NotStarted:
        raise
    except NoAnswer as error:
        job = plan.scheduler.job_id(error.printed)
        if job is None:
            raise UserError(f"{error}; {notice}") from None
        say_aside(f"job {job} is in its queue, but {error}")
        return job
    job = plan.scheduler.job_id(answer.out) or plan.scheduler.job_id(answer.err)
    # one that a signal ended may have handed the job over before
    if job is None and answer.code > 0 and not _LOST.search(answer.err + answer.out):
        raise Refused(f"{answer.ended}: {answer.said()}; --dry-run prints the script")
    said = answer.said(folder=plan.folder)
    if job is None:
        raise UserError(f"{answer.ended}: a job's id expected, found: {said}; {notice}")
    if answer.code:
        say_aside(f"job {job} is in its queue, but {answer.ended}: {said}")
    return job


def defaults_left_out() -> list[str]:
    """A line on those variables of this shell that would win over a job's script."""
    removed = taken_away(os.environ, SCHEDULERS_COMMAND, 1)
    defaults = {name: whose for name, whose in removed.items() if whose == DEFAULTS}
    return list(not_passed_on(defaults))


def _start_here(plan: SubmissionPlan) -> str:
    """Start the script as a process of its own; its process id."""
    environment = inherited(os.environ, LOCAL_JOB)
    child = programs.start(
        plan.command, environment, plan.folder, programs.NOWHERE, programs.NOWHERE
    )
    return str(child.pid)


def wait(plan: SubmissionPlan, job: str) -> int:
    """Wait until the scheduler no longer knows the job as alive, and say why it has not begun, as
    often as that changes; the exit code it left. Raises UserError: it left none, or can never
    begin."""
    last_reason = ""
    while state := _state_or_why(plan.scheduler, job, plan.folder):
        if not state.can_begin:
            raise UserError(f"{plan.scheduler.name} job {job} {state.reason}")
        if state.reason not in ("", last_reason):
            last_reason = state.reason
            say(f"{plan.scheduler.name} job {job} {last_reason}")
        time.sleep(POLL_S)
    until_s = time.monotonic() + SETTLE_S
    while time.monotonic() < until_s:
        if (code := plan.files.read_exit_code()).isdecimal():
            return int(code)
        time.sleep(POLL_S / 10)
    where = plan.files.log if plan.files.log.is_file() else plan.folder
    raise UserError(
        f"job {job} ended without an exit code: its script was killed or never began; see {where}"
    )


def look_at(folder: Path, scheduler: str | None, job: str | None) -> tuple[str, str]:
    """(status, why) of a job none of whose runs is at work, in the words of `rn50 runs`: before its
    first, between two, after its last. `scheduler`, `job`: as submission.json has them. The
    scheduler is asked only where the job's folder does not say that the job has ended."""
    files = JobFolder(folder)
    if held([files.lock]):
        return RUNNING, "none of its runs is at work"
    code = files.read_exit_code()
    dialect = _scheduler_of(scheduler, job)
    if not dialect or job is None or code not in MAY_GO_ON:
        if scheduler in SCHEDULERS and not (job or code):
            return UNKNOWN, f"{scheduler} was given the job, and named no id"
        return _ended_with(code, files)
    never = f"{scheduler} does not have job {job} any more: it never began"
    without_code = CANCELLED, never
    try:
        if state := ask(dialect, job, folder):
            return QUEUED, f"{scheduler} job {job} {state.reason}".strip()
    except UserError as error:
        without_code = UNKNOWN, str(error)
    return _ended_with(code, files) if code else without_code


def _ended_with(code: str, job: JobFolder) -> tuple[str, str]:
    """(status, why) of a job that no scheduler has, by its exit code."""
    if not code:
        return FAILED, "not known to any scheduler"
    if code == "running":
        return KILLED, "its process left no exit code"
    lines = read_ends(job.log).split("\n")
    last = next(filter(str.strip, reversed(lines)), f"exit code {code}")
    status = STOPPED if code == str(EXIT_JOB_STOPPED) else FAILED
    return status, printable(last[:500])


def _scheduler_of(scheduler: str | None, job: str | None) -> Scheduler | None:
    """The scheduler of a job, as submission.json names them; None: it is of another machine."""
    if job is None or not JOB_ID.fullmatch(job):
        return None
    return SCHEDULERS.get(scheduler or "")


class State(NamedTuple):
    """A job as its scheduler has it. `words`: why it has not begun, empty where nothing is said.
    `can_begin`: that may pass by itself."""

    reason: str = ""
    can_begin: bool = True


def ask(scheduler: Scheduler, job: str, folder: Path) -> State | None:
    """What the scheduler says of the job in `folder`; None: it has ended. Raises UserError: the
    scheduler cannot be asked."""
    answer = _answer(scheduler, job)
    printed = answer.out + answer.err
    ends = [scheduler.ended_pattern]
    # A job that goes back into its queue leaves as one does that ends.
    if not re.search(r"^#SBATCH --requeue$", read_text(JobFolder(folder).script), re.M):
        ends.append(scheduler.leaving_pattern)
    if re.search("|".join(ends), printed, re.M):
        return None
    if answer.code != 0:
        raise UserError(f"cannot ask {answer.program}: {answer.said()}")
    if not answer.out.strip():
        return None
    reason = re.search(scheduler.reason_pattern, printed, re.M)
    if not reason or reason[1] == "None":
        return State()
    end = f"end it: {scheduler.cancel(job)}"
    if re.search(scheduler.never_pattern, reason[0]):
        return State(f"can never begin: {reason[1]}; {end}", can_begin=False)
    if re.search(scheduler.held_pattern, reason[0]):
        release = shlex.join(scheduler.about(job, scheduler.release_command))
        return State(
            f"is held: {reason[1]}; let it begin: {release}; {end}", can_begin=False
        )
    return State(f"waits: {reason[1]}")


def _answer(scheduler: Scheduler, job: str) -> programs.Answer:
    command = scheduler.about(job, scheduler.state_command)
    program = shutil.which(command[0]) or ""
    why = f"cannot ask {command[0]}: no answer in {programs.ANSWER_S:g} s"
    if time.monotonic() < _silent_until_s.get(program, 0.0):
        raise UserError(why)
    try:
        return programs.ask(command)
    except NotStarted as error:
        raise UserError(f"cannot ask {error}") from None
    except NoAnswer:
        _silent_until_s[program] = time.monotonic() + SILENT_S
        raise UserError(why) from None


def _state_or_why(scheduler: Scheduler, job: str, folder: Path) -> State | None:
    try:
        return ask(scheduler, job, folder)
    except UserError as error:
        if JobFolder(folder).read_exit_code() not in MAY_GO_ON:
            return None
        return State(str(error))


def find_interrupted(
    where: str, config: str | None, overrides: list[str]
) -> tuple[Loaded, Last]:
    """The job or run in the folder `where`, or the one of the run that was interrupted last
    (`latest`, of `config` or of all). Raises UserError: it has ended, is in its queue or runs, or
    the overrides make another training of it."""
    if config is not None and where != "latest":
        raise UserError(
            f"--resume {where}: no CONFIG beside a folder expected, found {config}"
        )
    folder = Path(where)
    if where == "latest":
        folder = latest_interrupted(config, overrides, with_checkpoint=False).path
    is_numbered = re.fullmatch(r"run_\d+", folder.name)
    if is_numbered and JobFolder(folder.parent).config.is_file():
        folder = folder.parent
    job = JobFolder(folder)
    source = job.config
    if not source.is_file():
        raise UserError(
            f"--resume: the folder of a job or of a run expected, found no {source}"
        )
    for path in folder.iterdir():  # which may be a stranger's
        in_its_folder(path)
    last = _last_of(job)
    with hold(job.lock):  # it may run on another machine
        pass
    loaded = load_recorded(source, overrides, RESUME_JOB)
    runs = job.runs
    is_run = RunFolder(folder).was_launched
    if is_run:
        runs = [RunFolder(folder)]
    interrupted = [run for run in runs if run.is_interrupted]
    # a run that a limit ended is interrupted, and its job has ended with EXIT_BAD
    may_have_ended = is_run or job.read_exit_code() in ENDED
    if may_have_ended and not interrupted:
        raise UserError(
            f"--resume: an interrupted job or run expected, {folder} has ended"
        )
    for run in interrupted:
        run.check_free()
        load_attempt(run, loaded)  # refuses another training
    return loaded, last


def _last_of(job: JobFolder) -> Last:
    """The last submission of a job. Raises UserError: its scheduler still has it."""
    submission = Submission()
    with suppress(UserError):  # a stranger may have written it
        submission = job.read_submission()
    last = Last(job.path, runs=max(submission.runs, 1))
    dialect = _scheduler_of(submission.scheduler, submission.job)
    if not dialect:
        return last
    can_be_asked = shutil.which(dialect.state_command[0])
    if can_be_asked and ask(dialect, submission.job, job.path):
        raise UserError(
            f"--resume: {job.path}: an interrupted job expected, found {dialect.name} job "
            f"{submission.job} in its queue or running (to stop it: "
            f"{dialect.cancel(submission.job)})"
        )
    return last._replace(scheduler=dialect.name)


def last_result(folder: Path) -> Result | None:
    """The result of a job's newest run."""
    runs = [RunFolder(folder), *JobFolder(folder).runs]
    ended = [run for run in runs if run.result.is_file()]
    if not ended:
        return None
    return max(ended, key=lambda run: run.result.lstat().st_mtime_ns).read_result()
