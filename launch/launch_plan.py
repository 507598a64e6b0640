"""One run as `rn50 launch` or a job will start it, computed before anything is started or made.

`rn50 launch` and a job run the plan, `--dry-run` shows it, an attempt on fewer nodes has a new one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..config.load import Loaded
from ..config.plan import Plan, build_plan
from ..config.schema import Run
from ..host.errors import UserError
from .engine_environment import EngineSettings
from .job_script import ROOT, program_on_nodes
from .launchers import LAUNCHERS, Job, build_job, pick_launcher
from .preflight import obstacles, refusals, refuse


class Options(NamedTuple):
    """How a config is to run; the defaults are those of the command.

    `launcher`: asked for by name; the command to go on with names it too. `out`: the new run's
    folder. `resume`: that of an interrupted run to go on with. `recorded`: that of a run to compare
    with. `program`: what one rank is started with; None: that of `rank_program`. `in_job`: in the
    job of a scheduler, and there in the config's container, if it has one.
    """

    launcher: str | None = None
    out: Path | None = None
    resume: Path | None = None
    recorded: Path | None = None
    program: Sequence[str] | None = None
    in_job: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """`steps`: the durations of the config as steps. `job`: without its command. `refusals`: why it
    runs on no machine of its kind; `obstacles`: why it does not run here. `hosts`: the nodes that
    are left of an allocation; empty: all of the first."""

    loaded: Loaded
    options: Options
    steps: Plan
    launcher: str
    job: Job
    environment: EngineSettings
    refusals: list[str]
    obstacles: list[str]
    hosts: tuple[str, ...]

    @property
    def run(self) -> Run:
        """The config itself, without the origins of its values."""
        return self.loaded.run

    def job_in(self, folder: str) -> Job:
        """The job whose ranks read their config in `folder` and write there."""
        options = self.options
        program = options.program
        if program is None:
            program = rank_program(self.run, in_job=options.in_job)
        return self.job._replace(
            command=[*program, f"{folder}/config.yaml", "--out", folder]
        )

    def refuse(self) -> None:
        """Raise UserError with all that stands in its way."""
        refuse([*self.refusals, *self.obstacles])


def describe_length(steps: Plan) -> str:
    """How long a run trains at most: to its last evaluation, after which no epoch would count."""
    last = steps.eval_epochs[-1]
    if last == steps.epochs:
        return f"up to {last} epochs"
    return f"up to {last} epochs (the last evaluation; the schedule has {steps.epochs})"


def rank_program(run: Run, *, in_job: bool) -> list[str]:
    """What one rank is started with, bound to its cores, GPU and network card; in a job in the
    container, if there is one. Pyxis takes options of srun. Outside a job a rank without a GPU is
    not bound; with one it is: else the threads that decode for eight GPUs float over both sockets.
    """
    job = run.system.job
    start = Path.cwd()
    home, python = (str(ROOT), sys.executable)
    container = job.container if in_job else None
    if container:
        home, python = program_on_nodes(job)
    rank = [python, "-m", "rn50.train"]
    if job.bind != "none" and (in_job or run.system.device == "gpu"):
        rank.insert(0, f"{home}/scripts/bind.sh")
    if not container:
        return rank
    mounts = [f"{start}:{start}", *job.mounts]
    if job.stage:
        mounts.append(f"{run.data.path}:{run.data.path}")
    rank = ["env", f"PYTHONPATH={home}", *rank]
    if job.engine == "pyxis":
        image = [f"--container-image={container}", "--container-name=rn50"]
        where = [
            f"--container-mounts={','.join(mounts)}",
            f"--container-workdir={start}",
        ]
        return [*image, *where, *rank]
    command = ["singularity", "exec"]
    if run.system.device == "gpu":
        command.append("--nv")
    for mount in mounts:
        command += ["--bind", mount]
    return [*command, "--pwd", str(start), container, *rank]


def plan_launch(
    loaded: Loaded, options: Options, launcher: str = "", hosts: tuple[str, ...] = ()
) -> LaunchPlan:
    """The plan of `loaded`. `launcher`: of an earlier plan. Raises UserError: no launcher can be
    had, or the config's durations are none."""
    run = loaded.run
    # whose libraries are others than those here
    in_container = options.in_job and run.system.job.container is not None
    launcher = launcher or pick_launcher(options.launcher, in_container=in_container)
    never = refusals(run, (LAUNCHERS[launcher].controller,))
    try:
        steps = build_plan(run)
    except UserError:
        raise UserError(*never) from None
    job = Job((), steps.ranks, run.system.ranks_per_node)
    environment = EngineSettings({}, {})
    if not never:
        job, environment = build_job(run, launcher, (), hosts)
    return LaunchPlan(
        loaded,
        options,
        steps,
        launcher,
        job,
        environment,
        never,
        obstacles(run, launcher, in_container=in_container),
        hosts,
    )
