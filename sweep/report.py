"""What a sweep leaves: trials.json, best.yaml, Optuna's plots, a table."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from ..compliance.config_rules import check_config
from ..config.atomic import write_output
from ..config.leaves import yaml_value
from ..report.charts import svg
from .definition import LoadedSweep
from .study import REASON, SECONDS, Study, training_seed


def summary(loaded: LoadedSweep, study: Study) -> dict[str, Any]:
    """All trials as plain JSON types, the best, and the parameters' importances."""
    best = study.best()
    return {
        "sweep": loaded.sweep.name,
        "objective": loaded.sweep.objective.model_dump(mode="json", exclude_none=True),
        "best": None if best is None else best.number,
        "importances": study.importances(),
        "trials": [row(trial) for trial in study.trials],
    }


def row(trial: FrozenTrial) -> dict[str, Any]:
    """One trial: state, value, parameters, why it ended early, wall seconds."""
    return {
        "trial": trial.number,
        "state": trial.state.name.lower(),
        "value": trial.value,
        "parameters": dict(trial.params),
        "reason": trial.user_attrs.get(REASON),
        "seconds": trial.user_attrs.get(SECONDS),
    }


def write_results(loaded: LoadedSweep, study: Study, folder: Path) -> dict[str, Any]:
    """Write trials.json, best.yaml (where a trial is complete) and the plots; the summary."""
    found = summary(loaded, study)
    write_output(folder / "trials.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    best = study.best()
    if best is not None:
        write_output(folder / "best.yaml", best_preset(loaded, best))
    for name, plot in draw_plots(loaded, study).items():
        write_output(folder / f"{name}.svg", plot)
    return found


def draw_plots(loaded: LoadedSweep, study: Study) -> dict[str, str]:
    """The plots by name, as SVG: byte for byte the same from the same trials."""
    import matplotlib

    matplotlib.use("agg")
    import optuna.visualization.matplotlib as draw
    from matplotlib import pyplot

    draws: dict[str, Callable[..., Any]] = {
        "history": draw.plot_optimization_history,
        "parallel": draw.plot_parallel_coordinate,
        "importance": draw.plot_param_importances,
    }
    plots = {}
    with (
        warnings.catch_warnings(),
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rn50"}),
    ):
        warnings.simplefilter("ignore")  # of too few trials, which the plots show
        for name, plot in draws.items():
            axes = plot(study.optuna, target_name=objective_label(loaded))
            plots[name] = svg(axes.figure, bbox_inches="tight")
            pyplot.close(axes.figure)
    return plots


def objective_label(loaded: LoadedSweep) -> str:
    """The objective with its unit."""
    objective = loaded.sweep.objective
    return {
        "accuracy": f"top-1 after epoch {objective.at_epoch}",
        "time_to_target": "seconds to target",
        "epochs_to_target": "epochs to target",
    }[objective.measure]


def best_preset(loaded: LoadedSweep, best: FrozenTrial) -> str:
    """The best trial as a preset of its own: every value resolved, the run's places as before.

    The seed is left out (the rules want a fresh one); a config that the closed division refuses
    says `division: open`, and why.
    """
    name = f"name={loaded.sweep.name}_best"
    preset = loaded.load_trial(loaded.sweep.config, best.params, name, "seed=null")
    seed = best.params.get("seed") or loaded.base.run.seed
    seed = seed or training_seed(loaded.sweep, best.number)
    notes = [
        f"Best of {loaded.sweep.trials} trials of sweep {loaded.sweep.name}: trial {best.number}, "
        f"{objective_label(loaded)} {best.value:g}.",
        "  rn50 launch best.yaml",
        "Searched: "
        + ", ".join(f"{key} {yaml_value(value)}" for key, value in best.params.items())
        + f". The trial's seed was {seed}.",
    ]
    check = check_config(preset)
    if check.verdict == "FAIL":
        notes.append(f"Open division: the closed one refuses it: {check.cause}")
        more = (name, "seed=null", "division=open")
        preset = loaded.load_trial(loaded.sweep.config, best.params, *more)
    header = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    lines = preset.to_yaml().splitlines(keepends=True)
    return header + "".join(line for line in lines if not line.startswith("seed:"))


def table(found: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows for people, best first, then what has no value in order of trial."""
    keys = list(dict.fromkeys(key for trial in found["trials"] for key in trial["parameters"]))
    sign = -1 if found["objective"]["measure"] == "accuracy" else 1
    trials = sorted(
        found["trials"],
        key=lambda t: (t["value"] is None, sign * (t["value"] or 0.0), t["trial"]),
    )
    rows = [
        (
            str(trial["trial"]),
            trial["state"],
            "-" if trial["value"] is None else f"{trial['value']:.4g}",
            *(_cell(trial["parameters"].get(key)) for key in keys),
            "-" if trial["seconds"] is None else f"{trial['seconds']:.0f}",
            trial["reason"] or "",
        )
        for trial in trials
    ]
    return ("trial", "state", found["objective"]["measure"], *keys, "wall s", "reason"), rows


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else yaml_value(value)
