"""`rn50 evaluate`: a checkpoint scored again by the evaluation of its run, on ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..config.atomic import write_file
from ..config.errors import UserError
from ..config.leaves import flatten
from ..config.load import Loaded
from ..config.plan import build_plan
from ..config.progress import Tracker
from ..config.reading import read_object
from ..config.recorded import load_recorded
from ..data.prepare import prepare
from ..train import checkpoint_folder
from ..train.capabilities import check_supported
from ..train.checkpoint import Checkpoint
from ..train.resume import FREE, recorded_run
from ..train.state import log_position
from .launchers import build_job, pick_launcher
from .resume import with_ranks
from .run_files import scratch_folder
from .supervisor import run_job

_ASKED = ("data.", "model.", "eval.bn_stats")
"""What the accuracy of given weights depends on."""


def evaluate(
    path: Path,
    overrides: list[str],
    ranks: int | None,
    launcher: str | None,
    track: Tracker,
) -> dict[str, Any]:
    """Score a checkpoint; returns what `rn50 evaluate --json` prints.

    Args:
        path: a checkpoint, or the folder of a run.
        overrides: `key.path=value` over the config of the run.
        ranks: on this machine; None: the run's own.

    Raises:
        UserError: no such checkpoint, no images, or a rank failed.
    """
    found = checkpoint_folder.chosen(path)
    loaded = _config_of(found, with_ranks(overrides, ranks))
    run = loaded.run
    prepare(run.data, track, loaded.origins)
    name = pick_launcher(launcher)
    with scratch_folder(loaded, "evaluate") as out:
        result, config = out / "score.json", out / "config.yaml"
        write_file(config, loaded.to_yaml())
        words = [str(result), str(config), str(found.path.absolute())]
        job, _ = build_job(run, name, [sys.executable, "-m", "rn50.train.score", *words])
        run_job(job, name, out)
        counts = read_object(result)
    counts["accuracy"] = counts["correct"] / counts["total"]
    counts["accuracy_top5"] = counts["correct_top5"] / counts["total"]
    return _report(found, loaded, counts, run.system.world_size)


def _report(
    found: Checkpoint, loaded: Loaded, counts: dict[str, Any], ranks: int
) -> dict[str, Any]:
    recorded = _recorded(found, loaded, ranks)
    return {
        "checkpoint": str(found.path),
        "step": found.meta.step,
        "epochs": found.meta.state.epochs_trained,
        "ranks": ranks,
        **counts,
        "recorded_accuracy": recorded,
        "as_recorded": None if recorded is None else counts["accuracy"] == recorded,
    }


def _config_of(found: Checkpoint, overrides: list[str]) -> Loaded:
    """The config of a checkpoint's run with overrides."""
    source = found.path.parent.parent / "config.yaml"
    if not source.is_file():
        raise UserError(f"{source}: the config of the checkpoint's run expected, found none")
    loaded = load_recorded(source, overrides)
    check_supported(loaded.run)
    return loaded


def _recorded(found: Checkpoint, loaded: Loaded, ranks: int) -> float | None:
    """The accuracy that the run itself found for these weights; None: it has not evaluated them, or
    this evaluation is another."""
    state, then, now = found.meta.state, dict(flatten(found.meta.config)), loaded.to_dict()
    asked = {k: v for k, v in flatten(now) if k.startswith(_ASKED) and not k.startswith(FREE)}
    is_same = all(then.get(key) == value for key, value in asked.items())
    statistics_fit = found.meta.statistics_rows == 1 or ranks == found.meta.ranks
    is_evaluated = log_position(build_plan(recorded_run(found)), state) == "run"
    return state.accuracy if is_same and statistics_fit and is_evaluated else None
