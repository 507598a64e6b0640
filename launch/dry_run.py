"""`rn50 launch --dry-run`: what would run, and on what; nothing is started or made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..compliance.config_rules import check_config
from ..config.manifest import has_manifest
from ..config.schema import Data
from ..data.dataset import check_before_run
from ..data.describe import describe_data
from ..data.prepare import describe_missing
from ..host.atomic import is_free
from ..host.errors import UserError
from .launch_plan import LaunchPlan, describe_length
from .launchers import LAUNCHERS, mpi_for
from .preflight import with_refusals


def describe_launch(plan: LaunchPlan) -> dict[str, Any]:
    """What `rn50 launch` would do, a text a row, and in `problems` why it would refuse to."""
    run = plan.run
    steps = plan.steps
    system = run.system
    resume = plan.options.resume
    command: Sequence[str] = ()
    allreduce = run.comm.algorithm
    chosen = "refused"
    check = with_refusals(check_config(plan.loaded, steps), plan.refusals)
    if not plan.refusals:
        job = plan.job_in(str(resume or "FOLDER"))
        command = LAUNCHERS[plan.launcher].command(job)
    if communication := plan.environment.plan:
        allreduce = communication.algorithm
        chosen = communication.note
    data, missing = find_data(run.data, plan.loaded.origins)
    return {
        "name": run.name,
        "data": data,
        "device": f"{system.device} ({system.accelerator}), nodes: {system.nodes}",
        "ranks": f"{steps.ranks} by {plan.launcher}",
        "batch": f"{steps.global_batch_size} images a step",
        "length": f"{describe_length(steps)}, {steps.last_step} steps",
        "target": f"{run.eval.target}, evaluated after epochs "
        + ", ".join(map(str, steps.eval_epochs)),
        "division": f"{run.division}, ruleset {run.ruleset}",
        "seed": "drawn at the start" if run.seed is None else run.seed,
        "allreduce": allreduce,
        "allreduce by": chosen,
        "config check": f"{check.verdict}: {check.cause}",
        "results": str(resume or f"{system.results}/{run.name}/"),
        "mpi": str(mpi_for(plan.launcher) or "none"),
        "command": list(command),
        "problems": [*plan.refusals, *plan.obstacles, *missing],
    }


def find_data(data: Data, origins: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The set in words, and what is wrong with it."""
    try:
        if has_manifest(Path(data.path)):
            return describe_data(data, check_before_run(data, origins)), []
    except UserError as error:
        return f"{data.path}, which does not fit", str(error).splitlines()
    if data.synthetic is not None and is_free(Path(data.path)):
        return f"{describe_data(data)}, not drawn yet", []
    return "none", [describe_missing(data, origins)]
