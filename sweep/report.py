"""What a sweep leaves: trials.json, best.yaml, a table. Optuna's own tools draw its journal."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from ..compliance.config_rules import check_config
from ..config.leaves import yaml_value
from ..host.atomic import write_output
from ..host.reading import JsonObject
from .definition import LoadedSweep
from .study import REASON, Study


def write_results(loaded: LoadedSweep, study: Study, folder: Path) -> JsonObject:
    """Write trials.json and, where a trial is complete, best.yaml; all trials as plain JSON."""
    best = study.best()
    results = {
        "sweep": loaded.sweep.name,
        "objective": loaded.sweep.objective,
        "best": None if best is None else best.number,
        "trials": [
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                "value": trial.value,
                "parameters": dict(trial.params),
                "reason": trial.user_attrs.get(REASON, ""),
                "seconds": trial.duration and trial.duration.total_seconds(),
            }
            for trial in study.trials
        ],
    }
    text = json.dumps(results, indent=1, allow_nan=False)
    write_output(folder / "trials.json", f"{text}\n")
    if best is not None:
        write_output(folder / "best.yaml", best_preset(loaded, best))
    return results


def best_preset(loaded: LoadedSweep, best: FrozenTrial) -> str:
    """The best trial as a preset of its own: every value resolved, the run's places as before.

    The seed is left out (the rules want a fresh one); a config that the closed division refuses
    says `division: open`, and why.
    """
    settings = [f"name={loaded.sweep.name}_best", "seed=null"]
    preset = loaded.load_trial(best.params, *settings)
    notes = [
        f"Best of sweep {loaded.sweep.name}: trial {best.number}, "
        f"{loaded.sweep.objective} {best.value:g}."
    ]
    check = check_config(preset)
    if check.verdict == "FAIL":
        notes.append(f"Open division: the closed one refuses it: {check.cause}")
        preset = loaded.load_trial(best.params, *settings, "division=open")
    header = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    lines = preset.to_yaml().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("seed:")]
    return header + "".join(kept)


def table(results: JsonObject) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows for people, best first, then what has no value in order of trial."""
    objective = results["objective"]
    trials = results["trials"]
    complete = [trial for trial in trials if trial["value"] is not None]
    others = [trial for trial in trials if trial["value"] is None]
    # equals stay in order of trial
    largest_first = objective == "accuracy"
    complete.sort(key=itemgetter("value"), reverse=largest_first)
    keys: dict[str, None] = {}
    for trial in trials:
        keys |= dict.fromkeys(trial["parameters"])
    rows = []
    for trial in (*complete, *others):
        drawn = [trial["parameters"].get(key) for key in keys]
        cells = (
            trial["trial"],
            trial["state"],
            trial["value"],
            *drawn,
            trial["seconds"],
            trial["reason"],
        )
        rows.append(tuple(map(_cell, cells)))
    header = ("trial", "state", objective, *keys, "wall s", "reason")
    return header, rows


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else yaml_value(value)
