"""`rn50 submit`: a config to a job scheduler."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Optional

import typer

from .console import EXIT_BAD, SCHEDULER_NAMES, Config, Machine, Overrides, choices, put_config

SchedulerName = Annotated[
    Optional[str],  # noqa: UP045 (Typer reads this at run time)
    typer.Option("--scheduler", help="Default: the system's.", **choices(SCHEDULER_NAMES)),
]
Runs = Annotated[
    int, typer.Option(min=1, max=100, help="Runs one after the other, a fresh seed each.")
]


def submit(
    config: Config = "quick",
    overrides: Overrides = None,
    scheduler: SchedulerName = None,
    system: Machine = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script and the commands; submit nothing.")
    ] = False,
    runs: Runs = 1,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Until the job has ended; its exit code is the command's."),
    ] = False,
) -> None:
    """Write a config's job script and hand it to a scheduler; `docs/clusters.md`.

    Exit 0: submitted, with `--wait` all runs reached their target; 1: not; 2: bad input.

    Example: `rn50 submit abci_2048_open --scheduler sge --runs 5 --dry-run`
    """
    from ..config.load import load
    from . import submit as jobs

    loaded = load(*put_config(config, overrides, system))
    name = scheduler or loaded.run.system.scheduler
    if dry_run:
        folder = Path(loaded.run.system.results) / loaded.run.name / "job"
        plan = jobs.plan_submission(loaded, name, runs, folder)
        placed = loaded.run.system
        ranks = placed.nodes * placed.ranks_per_node
        print(plan.script, end="")
        print(
            f"# would launch: {placed.nodes} nodes x {placed.ranks_per_node} = {ranks} ranks, "
            f"{runs} run{'s' * (runs > 1)} of at most {placed.job.walltime} in all"
        )
        stdin = " <job.sh" if plan.scheduler.from_stdin else ""
        print(f"# would submit, in {folder}: {shlex.join(plan.command)}{stdin}")
        return
    plan, job = jobs.submit(loaded, name, runs)
    cancel = plan.scheduler.cancel_command
    print(f"{name} job {job} in {plan.folder} (to stop it: {cancel} {job})", flush=True)
    if not wait:
        return
    code = jobs.wait(plan, job)
    log = plan.folder / "job.log"
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    for line in jobs.results_of("\n".join(lines)) or lines[-20:]:
        print(line)
    print(f"{name} job {job} ended with exit code {code}; log: {log}", flush=True)
    if code:
        raise typer.Exit(EXIT_BAD)
