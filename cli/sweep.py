"""`rn50 sweep`: a hyper-parameter search."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from functools import partial
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
    print_table,
    say,
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

    Keeps trials.json and best.yaml (a preset) in `results/<sweep>/`, also while it runs. A driver
    or a trial may be killed at any time. Ctrl-C stops the running trials; the same command runs
    them again.

    Exit 0: at least one trial came to its end; 1: none did; 2: bad input; 130: stopped.

    Example: `rn50 sweep config/sweeps/quick_lr.yaml`
    """
    from ..sweep.definition import load_sweep
    from ..sweep.driver import run_sweep, sweep_folder
    from ..sweep.report import table, write_results

    loaded = load_sweep(definition, system)
    folder = sweep_folder(loaded)
    words = ["rn50", "sweep", str(definition)]
    if system is not None:
        words += ["--system", system]
    again = shlex.join(words)
    study = run_sweep(loaded, track, partial(say, to=sys.stderr), again)
    results = write_results(loaded, study, folder)
    best = results["best"]
    if as_json:
        print_json(results, allow_nan=False)
    else:
        header, rows = table(results)
        print_table(header, rows, free=(len(header) - 1,))
        if best is not None:
            print(f"best: trial {best}; as a preset: {folder / 'best.yaml'}")
    states = Counter(trial["state"] for trial in results["trials"])
    ending = sweep_ended(states, best, folder)
    with aside(as_json):
        say(ending.line)
    exit_bad_if(best is None)
