"""`rn50 sweep`: a hyper-parameter search."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated

from ..launch.ending import sweep_ended
from .console import (
    Json,
    SystemName,
    argument,
    aside,
    exit_bad_if,
    print_json,
    say,
    say_aside,
    track,
)


def sweep(
    definition: Annotated[
        Path, argument("What to search; `docs/sweeps.md`.", metavar="SWEEP.yaml")
    ],
    system: SystemName = None,
    as_json: Json = False,
) -> None:
    """Search a config's parameters with Optuna; the same command continues a search.

    Keeps the trials' runs and Optuna's journal in `results/<sweep>/`. A driver or a trial may be
    killed at any time. Ctrl-C stops the running trial; the same command runs it again.

    Exit 0: at least one trial came to its end; 1: none did; 2: bad input; 130: stopped.

    Example: `rn50 sweep config/sweeps/quick_lr.yaml`
    """
    from ..sweep.definition import load_sweep, overrides
    from ..sweep.driver import run_sweep, sweep_folder

    loaded = load_sweep(definition, system)
    folder = sweep_folder(loaded)
    command = ["rn50", "sweep", str(definition)]
    if system is not None:
        command += ["--system", system]
    command_line = shlex.join(command)
    study = run_sweep(loaded, track, say_aside, command_line)
    best = study.best()
    if as_json:
        print_json(study.to_json(), allow_nan=False)
    elif best is not None:
        values = overrides(best.params)
        objective = loaded.sweep.objective
        print(
            f"best: trial {best.number}: {objective} {best.value:g}, {' '.join(values)}"
        )
    states = Counter(trial.state.name.lower() for trial in study.trials)
    parameter = next(iter(loaded.sweep.parameters))
    ending = sweep_ended(states, folder, None if best is None else parameter)
    with aside(as_json):
        say(ending.line)
    exit_bad_if(best is None)
