"""`rn50 sweep`: a hyper-parameter search over the launchers and schedulers of every other run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from .console import EXIT_BAD, Json, Tracking, print_table


def sweep(
    definition: Annotated[
        Path, typer.Argument(metavar="SWEEP.yaml", help="What to search; `docs/sweeps.md`.")
    ],
    report_only: Annotated[
        bool, typer.Option("--report", help="Run nothing: results of the trials so far.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Search a config's parameters with Optuna; the same command goes on with a search.

    Leaves trials.json, best.yaml (a preset) and plots in `results/<sweep>/`. A driver or a trial
    may be killed at any time.

    Exit 0: at least one trial came to its end; 1: none did; 2: bad input.

    Example: `rn50 sweep config/sweeps/quick_lr.yaml`
    """
    from ..config.sweep import load_sweep
    from .sweep import open_study, run_sweep, sweep_folder
    from .sweep_report import table, write_results

    loaded = load_sweep(definition)
    folder = sweep_folder(loaded)
    if report_only:
        study = open_study(loaded)
    else:
        with Tracking() as track:
            study = run_sweep(loaded, track, lambda text: print(text, file=sys.stderr, flush=True))
    found = write_results(loaded, study, folder)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print_table(*table(found))
        for key, share in found["importances"].items():
            print(f"importance {share:.2f}: {key}")
        if found["best"] is None:
            print("no trial came to its end")
        else:
            print(f"best: trial {found['best']}; as a preset: {folder / 'best.yaml'}")
    raise typer.Exit(EXIT_BAD if found["best"] is None else 0)
