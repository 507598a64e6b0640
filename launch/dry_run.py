"""`rn50 launch --dry-run`: what would run, on what, where and how long; nothing is started or made.

The content is one dictionary, printed by the table below or as JSON.
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
from ..config.memory import rank_bytes
from ..config.names import PRESETS
from ..config.plan import build_plan
from ..config.schema import Data, Run
from ..data.dataset import check_before_run
from ..data.describe import describe_data
from ..data.prepare import explain_missing, is_free
from ..scaling.predict import job_of_config, predict
from .launchers import LAUNCHERS, build_job, pick_launcher
from .preflight import Here, check_whether_it_runs, notes_on, problems_with, refusals

_ROWS = (
    ("data", "{data}"),
    ("device", "{device}, nodes: {nodes}"),
    ("ranks", "{ranks} by {launcher}"),
    ("recipe", "{recipe}"),
    ("batch", "{global_batch_size} images a step"),
    ("length", "up to {epochs} epochs, {steps} steps"),
    ("target", "{target}, evaluated after epochs {evaluated}"),
    ("division", "{division}, ruleset {ruleset}"),
    ("seed", "{seed}"),
    ("allreduce", "{algorithm}"),
    ("memory", "{memory}"),
    ("time", "{predicted[text]}"),
    ("config check", "{check[verdict]}: {check[cause]}"),
    ("notes", "{noted}"),
    ("results", "{results}"),
    ("command", "{words}"),
)


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
    here, system = here or Here.read(), run.system
    words: Sequence[str] = ()
    if not refusals(run, (LAUNCHERS[name].controller,)):
        words = LAUNCHERS[name].command(build_job(run, name, command)[0])
    data, missing = find_data(run.data, loaded.origins)
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
        "algorithm": run.comm.algorithm,
        "memory_per_rank_bytes": rank_bytes(run),
        "predicted": _predicted(run),
        "check": check_whether_it_runs(check_config(loaded), run, here).to_dict(),
        "notes": notes_on(run),
        "results": f"{system.results}/{run.name}/" if resume is None else str(resume),
        "command": list(words),
        "problems": [*problems_with(run, name, here), *missing],
    }


def rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The table of `describe_launch` for people."""
    memory = found["memory_per_rank_bytes"]
    texts = {
        **found,
        "seed": "drawn at the start" if found["seed"] is None else found["seed"],
        "evaluated": ", ".join(map(str, found["eval_epochs"])),
        "memory": "no estimate" if memory is None else f"{memory / 1e9:.2f} GB a rank or more",
        "noted": "; ".join(found["notes"]) or "none",
        "words": shlex.join(found["command"]) or "none",
    }
    return [(name, row.format_map(texts).strip()) for name, row in _ROWS]


def _recipe(run: Run) -> str:
    model, schedule, optimizer = run.model, run.schedule, run.optimizer
    network: str = model.network
    if network == "resnet":
        network = f"resnet {model.depth}, {model.width} wide"
    update: str = optimizer.name
    if optimizer.variant != optimizer.name:
        update += f" ({optimizer.variant})"
    return (
        f"{network}, {run.data.crop_px} px, {model.dtype}; {update}, "
        f"base LR {optimizer.base_lr:g}, {schedule.shape} over {schedule.length}, "
        f"warm-up {schedule.warmup}"
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
    reason = "no performance figures for this system"
    if run.system.performance is not None:
        try:
            answer = predict(job_of_config(run)).to_dict()
        except UserError as error:
            reason = str(error).splitlines()[0]
        else:
            keys = ("time_to_train_s", "interval", "step_time_ms", "epochs")
            text = "{time_to_train_s:.1f} s to the target predicted ({interval[0]:.1f} to "
            text += "{interval[1]:.1f}), {step_time_ms:.2f} ms a step, {epochs:g} epochs to it"
            return {**{key: answer[key] for key in keys}, "text": text.format_map(answer)}
    return {"time_to_train_s": None, "text": f"unknown: {reason}"}
