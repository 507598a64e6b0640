"""`rn50 launch --dry-run`: what would run, on what, where and how long; nothing is started or made.

The content is one dictionary, printed as a table or as JSON.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..compliance.config_rules import check_config
from ..config.errors import UserError
from ..config.load import Loaded
from ..config.memory import device_bytes, rank_bytes
from ..config.names import PRESETS
from ..config.plan import build_plan
from ..config.schema import Data, Run
from ..data.dataset import check_before_run
from ..data.describe import describe_data
from ..data.prepare import explain_missing, is_free
from ..scaling.grouping import choose_groups
from ..scaling.predict import job_of_config, predict
from ..train.gpu import read_gpus
from .launchers import LAUNCHERS, build_job, pick_launcher
from .preflight import (
    Here,
    check_whether_it_runs,
    idle_gpus_note,
    obstacles_here,
    refusals,
    runs_here,
)
from .verdict import target_note


def describe_launch(
    loaded: Loaded,
    launcher: str | None,
    command: Sequence[str],
    *,
    resume: Path | None = None,
    here: Here | None = None,
) -> dict[str, Any]:
    """What `rn50 launch` would do, and in `problems` why it would refuse to.

    Args:
        command: what one rank is started with.
        resume: the folder of the run that would go on.
        here: this machine; default: as it is now.
    """
    run, plan, name = loaded.run, build_plan(loaded.run), pick_launcher(launcher)
    here = here or Here.read()
    problems = refusals(run, (LAUNCHERS[name].controller,))
    if not problems:
        job, environment = build_job(run, name, command)
        words = LAUNCHERS[name].command(job)
        algorithm, why = environment.algorithm
    else:
        words, algorithm, why = [], run.comm.algorithm, ""
    if runs_here(run, name):
        problems += obstacles_here(run, here)
    data, missing = find_data(run.data, loaded.origins)
    system = run.system
    memory = rank_bytes(run)
    check = check_whether_it_runs(check_config(loaded), run, here)
    return {
        "name": run.name,
        "data": data,
        "device": f"{system.device} ({system.accelerator})",
        "nodes": system.nodes,
        "ranks": plan.ranks,
        "launcher": name,
        "recipe": _recipe(run),
        "global_batch_size": plan.global_batch_size,
        "epochs": plan.epochs,
        "steps": plan.total_steps,
        "eval_epochs": list(plan.eval_epochs),
        "target": run.eval.target,
        "division": run.division,
        "ruleset": run.ruleset,
        "seed": run.seed,
        "algorithm": algorithm,
        "algorithm_reason": why,
        "memory_per_rank_bytes": memory,
        "memory_free_bytes": _free(run, here, here_too=runs_here(run, name)),
        "predicted": _predicted(run),
        "check": check.to_dict(),
        "notes": list(filter(None, _notes(run))),
        "results": f"{system.results}/{run.name}/" if resume is None else str(resume),
        "command": list(words),
        "problems": [*problems, *missing],
    }


def _notes(run: Run) -> tuple[str | None, ...]:
    return target_note(run), idle_gpus_note(run, read_gpus()), choose_groups(run).note


def rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The table of `describe_launch` for people."""
    ranks, nodes, check = found["ranks"], found["nodes"], found["check"]
    on_device = found["device"].startswith("gpu")
    evaluations = ", ".join(map(str, found["eval_epochs"][:6]))
    more = len(found["eval_epochs"]) - 6
    memory, free = found["memory_per_rank_bytes"], found["memory_free_bytes"]
    text = "no estimate for this network"
    if memory is not None:
        text = f"{memory / 1e9:.2f} GB a rank or more"
        if free is not None and not on_device:
            text += f", {ranks * memory / 1e9:.2f} GB in all"
    if free is not None:
        text += f" ({free / 1e9:.1f} GB {'on each device' if on_device else 'free here'})"
    return [
        ("data", found["data"]),
        ("device", f"{found['device']}, {nodes} node{'s' * (nodes > 1)}"),
        ("ranks", f"{ranks} by {found['launcher']}"),
        ("recipe", found["recipe"]),
        ("batch", f"{found['global_batch_size']} images a step"),
        ("length", f"up to {found['epochs']} epochs, {found['steps']} steps"),
        (
            "target",
            f"{found['target']}, evaluated after epoch {evaluations}"
            + (f" and {more} more" if more > 0 else ""),
        ),
        ("division", f"{found['division']}, ruleset {found['ruleset']}"),
        ("seed", "drawn at the start" if found["seed"] is None else str(found["seed"])),
        ("allreduce", ": ".join(filter(None, (found["algorithm"], found["algorithm_reason"])))),
        ("memory", text),
        ("time", _time(found["predicted"])),
        ("config check", f"{check['verdict']}: {check['cause']}"),
        *(("note", note) for note in found["notes"]),
        ("results", found["results"]),
        ("command", shlex.join(found["command"]) or "none"),
    ]


def _free(run: Run, here: Here, *, here_too: bool) -> int | None:
    """Memory that ranks can have: of a device each, or of this machine all of them."""
    if run.system.device == "gpu":
        return device_bytes(run.system)
    return here.free_bytes if here_too else None


def _recipe(run: Run) -> str:
    model, schedule, optimizer = run.model, run.schedule, run.optimizer
    network: str = model.network
    if network == "resnet":
        network = f"resnet {model.depth}, {model.width} wide"
    rule = optimizer.name
    if optimizer.variant != rule:
        rule += f" ({optimizer.variant})"
    return (
        f"{network}, {run.data.crop_px} px, {model.dtype}; {rule}, base LR {optimizer.base_lr:g}, "
        f"{schedule.shape} over {schedule.length}, warm-up {schedule.warmup}"
    )


def names_own_data(loaded: Loaded) -> bool:
    """Is data.path the user's, not a preset's, which means a machine that may be elsewhere?"""
    written_at = loaded.origins.get("data.path")
    return written_at is not None and Path(written_at.source).resolve().parent != PRESETS


def find_data(data: Data, origins: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The set in words, and what is wrong with it."""
    if os.path.lexists(Path(data.path) / "manifest.json"):
        try:
            return describe_data(data, check_before_run(data, origins)), []
        except UserError as error:
            return f"{data.path}, which does not fit", str(error).splitlines()
    if data.synthetic is not None and is_free(Path(data.path)):
        return f"{describe_data(data)}, not drawn yet", []
    return "none", [explain_missing(data.path, origins.get("data.path"))]


def _predicted(run: Run) -> dict[str, Any]:
    """`rn50 predict` of the config on its own system; without figures for that: why."""
    if run.system.performance is None:
        return {"time_to_train_s": None, "reason": "no performance figures for this system"}
    try:
        answer = predict(job_of_config(run)).to_dict()
    except UserError as error:
        return {"time_to_train_s": None, "reason": str(error).splitlines()[0]}
    return {key: answer[key] for key in ("time_to_train_s", "interval", "step_time_ms", "epochs")}


def _time(predicted: Mapping[str, Any]) -> str:
    if predicted["time_to_train_s"] is None:
        return f"unknown: {predicted['reason']}"
    low, high = predicted["interval"]
    return (
        f"{predicted['time_to_train_s']:.1f} s to the target predicted ({low:.1f} to {high:.1f}), "
        f"{predicted['step_time_ms']:.2f} ms a step, {predicted['epochs']:g} epochs to it"
    )
