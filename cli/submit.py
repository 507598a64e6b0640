"""`rn50 submit`: a config to a job scheduler."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..config.choices import SCHEDULERS
from ..host.errors import UserError
from ..host.reading import JsonObject
from ..launch.ending import Ending, StoppedBySignal, asked_by, job_ended
from .console import (
    ConfigToResume,
    Json,
    Nodes,
    Overrides,
    SystemName,
    aside,
    choices,
    exit_bad_if,
    named_config,
    on_machine,
    on_nodes,
    option,
    print_json,
    say,
    say_aside,
    split_config,
)

if TYPE_CHECKING:
    from ..launch.submit import SubmissionPlan

SchedulerName = Annotated[
    str | None, option("Default: the system's.", "--scheduler", **choices(SCHEDULERS))
]


def submit(
    config: ConfigToResume = None,
    overrides: Overrides = None,
    scheduler: SchedulerName = None,
    nodes: Nodes = None,
    resume: Annotated[
        str | None,
        option("Continue an interrupted job or run: its folder, or `latest`."),
    ] = None,
    dry_run: Annotated[
        bool, option("Print the script and the commands; submit nothing.", "--dry-run")
    ] = False,
    runs: Annotated[
        int | None,
        option(
            "Runs one after the other, a fresh seed each.  [default: 1, or those of the job]",
            min=1,
            max=100,
        ),
    ] = None,
    system: SystemName = None,
    wait: Annotated[
        bool,
        option(
            "Wait for the end of the job; exit 1 if it failed or missed its target.",
            "--wait",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a config's job script and submit it to a scheduler (`docs/clusters.md`).

    Exit 0: submitted, with `--wait` all runs reached their target; 1: not; 2: bad input;
    130: stopped by a signal while it waited (the job goes on).

    Example: `rn50 submit abci_2048_open --scheduler sge --dry-run`

    Example: `rn50 submit dgxa100_8 system.job.requeue=true --dry-run`

    Example: `rn50 submit --resume latest --wait`
    """
    from ..config.recorded import JOB, load_named
    from ..launch import submit as jobs

    preset, texts = split_config(config or "quick", on_nodes(overrides, nodes))
    last = jobs.Last()
    if resume is None:
        loaded = load_named(preset, on_machine(texts, system), JOB)
        texts = []  # the job's own config.yaml has them
    elif system is None:
        loaded, last = jobs.find_interrupted(resume, named_config(config), texts)
    else:
        raise UserError("--system is for a new job; with --resume give system=NAME")
    name = scheduler or last.scheduler or loaded.run.system.scheduler
    runs = runs or last.runs
    if name != "local":
        for line in jobs.defaults_left_out():
            say_aside(line)
    if dry_run:
        folder = (
            last.folder or Path(loaded.run.system.results) / loaded.run.name / "job"
        )
        _print_plan(
            jobs.plan_submission(loaded, name, runs, folder, texts), as_json=as_json
        )
        return
    plan, job = jobs.submit(loaded, name, runs, last.folder, texts)
    cancel = plan.scheduler.cancel(job)
    content: JsonObject = {
        "job": job,
        "scheduler": name,
        "folder": str(plan.folder),
        "cancel": cancel,
    }
    try:
        with aside(as_json):
            say(f"{name} job {job} in {plan.folder} (to stop it: {cancel})")
            if wait:
                content["exit_code"] = _wait(plan, name, job)
    except KeyboardInterrupt as stop:
        log = shlex.quote(str(plan.files.log))
        reason = f"stopped waiting by {asked_by(stop)}; {name} job {job} goes on"
        advice = f"see it with: tail -f {log}; cancel it with"
        raise StoppedBySignal(Ending(reason, plan.folder, advice, cancel)) from None
    finally:
        # also where the wait was broken off: the job is in the queue
        if as_json:
            print_json(content)
    exit_bad_if(content.get("exit_code"))


def _print_plan(plan: SubmissionPlan, *, as_json: bool) -> None:
    if as_json:
        folder = str(plan.folder)
        print_json({"script": plan.script, "command": plan.command, "folder": folder})
        return
    print(plan.script, end="")
    print(f"# would submit, in {plan.folder}: {shlex.join(plan.command)}")


def _wait(plan: SubmissionPlan, scheduler: str, job: str) -> int:
    """Wait for the end of the job: print what its runs came to, and the last line; return its exit
    code."""
    from ..launch import submit as jobs

    log = plan.files.log
    say(f"waiting; its output: tail -f {shlex.quote(str(log))}")
    code = jobs.wait(plan, job)
    lines = []
    # there is none of a job that was cancelled in the queue
    if log.is_file():
        lines = log.read_text(errors="replace").splitlines()
    results = [line for line in lines if line.startswith(("RESULT ", "rn50: error: "))]
    for line in results or lines[-20:]:
        say(line)
    ending = job_ended(scheduler, job, code, plan.folder, jobs.last_result(plan.folder))
    say(ending.line)
    return code
