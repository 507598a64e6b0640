"""`rn50 launch --dry-run`: what would run, and on what; nothing is started or made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..compliance.config_rules import check_config
from ..config.atomic import is_free
from ..config.errors import UserError
from ..config.load import Loaded
from ..config.manifest import has_manifest
from ..config.plan import build_plan
from ..config.schema import Data
from ..data.dataset import check_before_run
from ..data.describe import describe_data
from ..data.prepare import describe_missing
from ..scaling.cost import allreduce_of
from .launchers import LAUNCHERS, build_job, missing_hosts, pick_launcher
from .preflight import check_whether_it_runs, problems_with, refusals


def describe_launch(
    loaded: Loaded, launcher: str | None, command: Sequence[str], *, resume: Path | None = None
) -> dict[str, Any]:
    """What `rn50 launch` would do, a text a row, and in `problems` why it would refuse to.
    `command`: what one rank is started with. `resume`: the folder of the run that would go on."""
    run = loaded.run
    plan = build_plan(loaded.run)
    name = pick_launcher(launcher)
    system = run.system
    words: Sequence[str] = ()
    allreduce = run.comm.algorithm
    if not refusals(run, (LAUNCHERS[name].controller,)):
        allreduce = allreduce_of(run)
        words = LAUNCHERS[name].command(build_job(run, name, command)[0])
    data, missing = find_data(run.data, loaded.origins)
    check = check_whether_it_runs(check_config(loaded), run)
    return {
        "name": run.name,
        "data": data,
        "device": f"{system.device} ({system.accelerator}), nodes: {system.nodes}",
        "ranks": f"{plan.ranks} by {name}",
        "batch": f"{plan.global_batch_size} images a step",
        "length": f"up to {plan.epochs} epochs, {plan.total_steps} steps",
        "target": f"{run.eval.target}, evaluated after epochs "
        + ", ".join(map(str, plan.eval_epochs)),
        "division": f"{run.division}, ruleset {run.ruleset}",
        "seed": "drawn at the start" if run.seed is None else run.seed,
        "allreduce": allreduce,
        "config check": f"{check.verdict}: {check.cause}",
        "results": f"{system.results}/{run.name}/" if resume is None else str(resume),
        "command": list(words),
        "problems": [*problems_with(run, name), *missing_hosts(run, name), *missing],
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
