"""`rn50 log`: read, check and compare MLPerf logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .console import TYPER_OPTIONS, Json, print_table, with_unit

log_app = typer.Typer(help="Read MLPerf logs.", **TYPER_OPTIONS)


@log_app.command("show")
def log_show(
    path: Annotated[Path, typer.Argument(help="A log, or the folder of a run.")],
    as_json: Json = False,
) -> None:
    """Time to train, epochs, accuracy, init time and images/s of a run, from its MLPerf log.

    Example: `rn50 log show results/quick/20261121T080000Z`
    """
    from ..logging.summary import find_log, summarise

    log = find_log(path)
    summary = summarise(log)
    if as_json:
        print(json.dumps(summary._asdict(), indent=1))
        return
    rows = [
        ("status", summary.status or "no run_stop: the run did not finish"),
        ("time to train", with_unit(summary.time_to_train_s, "s", 3)),
        ("init (not counted)", with_unit(summary.init_s, "s", 2)),
        ("epochs", with_unit(summary.epochs, "", 0)),
        ("top-1 accuracy", with_unit(summary.eval_accuracy, "", 5)),
        ("global batch", str(summary.global_batch_size or "-")),
        ("training rate", with_unit(summary.images_per_s, "images/s", 1)),
    ]
    rows += [
        (f"epoch {epoch:g}", f"{accuracy:.5f} after {seconds:.1f} s")
        for epoch, accuracy, seconds in summary.evaluations
    ]
    print_table((str(log), ""), rows)
