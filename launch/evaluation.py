"""`rn50 evaluate`: checkpoints scored again by the evaluation of their runs, on ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.layout import with_ranks
from ..config.leaves import flatten
from ..config.load import Loaded
from ..config.plan import build_plan
from ..config.recorded import load_recorded
from ..data.prepare import prepare
from ..host.atomic import write_file
from ..host.errors import UserError
from ..host.progress import Tracker
from ..host.reading import JsonObject, read_object
from ..logging.run_folder import RunFolder
from ..train.capabilities import check_supported
from ..train.checkpoint.file import Checkpoint
from ..train.checkpoint.folder import chosen_checkpoint, held_checkpoint
from ..train.checkpoint.resume import FREE, recorded_run
from ..train.checkpoint.state import log_position
from ..train.communication.identity import image_set_in
from .hosts import missing_hosts
from .launchers import build_job, pick_launcher
from .preflight import refuse
from .run_files import scratch_folder
from .supervisor import run_job

_ASKED = ("data.", "model.", "eval.bn_stats")
"""What the accuracy of given weights depends on."""
_SHARED = (
    "data.path",
    "data.classes",
    "data.eval_samples",
    "data.crop_px",
    "data.eval_resize_px",
    "model.dtype",
)
"""What the networks of an ensemble must have in common: their images, and the type in which they
compute (bfloat16's casts are those of a whole process)."""


def evaluate(
    paths: Sequence[Path],
    overrides: list[str],
    ranks: int | None,
    launcher: str | None,
    track: Tracker,
) -> JsonObject:
    """Score checkpoints, several as an ensemble too; returns what `rn50 evaluate --json` prints.

    Args:
        paths: checkpoints, or folders of runs.
        overrides: `key.path=value` over the config of each run.
        ranks: on this machine; None: the first run's own.

    Raises:
        UserError: no such checkpoint, no images, runs that make no ensemble, or a rank failed.
    """
    name = pick_launcher(launcher)
    overrides = with_ranks(overrides, ranks)
    checkpoints = [chosen_checkpoint(path) for path in paths]
    loaded = [_config_of(checkpoint, overrides) for checkpoint in checkpoints]
    _check_shared(paths, loaded)
    run = loaded[0].run
    refuse(missing_hosts(run, name))
    prepare(run.data, track, loaded[0].origins)
    with scratch_folder(loaded[0], "evaluate") as out:
        result = out / "score.json"
        arguments = [str(result)]
        copies = []
        for number, checkpoint in enumerate(checkpoints):
            config = out / f"config_{number}.yaml"
            write_file(config, loaded[number].to_yaml())
            copy = held_checkpoint(checkpoint, out / f"{number}.ckpt")
            arguments += [str(config), str(copy.path.absolute())]
            copies.append(copy._replace(path=checkpoint.path))
        command = [sys.executable, "-m", "rn50.train.score", *arguments]
        job, _ = build_job(run, name, command)
        run_job(job, name, out)
        counts = read_object(result)["counts"]
    for count in counts:
        count["accuracy"] = count["correct"] / count["total"]
        count["accuracy_top5"] = count["correct_top5"] / count["total"]
    members = zip(copies, loaded, counts, strict=False)
    scored = [_report(*member, run.system.world_size) for member in members]
    if len(scored) == 1:
        return scored[0]
    return {"runs": scored, "ensemble": counts[-1]}


def _check_shared(paths: Sequence[Path], loaded: Sequence[Loaded]) -> None:
    """Raise UserError for the first run whose images or type are not those of the first."""
    trees = [dict(flatten(config.to_dict())) for config in loaded]
    for path, tree in zip(paths, trees, strict=True):
        for key in _SHARED:
            if tree[key] != trees[0][key]:
                raise UserError(
                    f"{path}: {key} {trees[0][key]!r} expected as in {paths[0]}, found "
                    f"{tree[key]!r}; an ensemble is scored on the same images"
                )


def _report(
    checkpoint: Checkpoint, loaded: Loaded, counts: JsonObject, ranks: int
) -> JsonObject:
    recorded = _recorded(checkpoint, loaded, ranks)
    as_recorded = None
    if recorded is not None:
        as_recorded = counts["accuracy"] == recorded
    return {
        "checkpoint": str(checkpoint.path),
        "step": checkpoint.meta.step,
        "epochs": checkpoint.meta.state.epochs_trained,
        "ranks": ranks,
        **counts,
        "recorded_accuracy": recorded,
        "as_recorded": as_recorded,
    }


def _config_of(checkpoint: Checkpoint, overrides: list[str]) -> Loaded:
    """The config of a checkpoint's run with overrides."""
    source = RunFolder(checkpoint.path.parent.parent).config
    if not source.is_file():
        raise UserError(
            f"{source}: the config of the checkpoint's run expected, found none"
        )
    loaded = load_recorded(source, overrides)
    check_supported(loaded.run)
    return loaded


def _recorded(checkpoint: Checkpoint, loaded: Loaded, ranks: int) -> float | None:
    """The accuracy that the run itself found for these weights; None: it has not evaluated them, or
    this evaluation is another."""
    state = checkpoint.meta.state
    then = dict(flatten(checkpoint.meta.config))
    is_same = all(
        then.get(key) == value
        for key, value in flatten(loaded.to_dict())
        if key.startswith(_ASKED) and not key.startswith(FREE)
    )
    statistics_fit = (
        checkpoint.meta.statistics_rows == 1 or ranks == checkpoint.meta.ranks
    )
    is_evaluated = log_position(build_plan(recorded_run(checkpoint)), state) == "run"
    images = image_set_in(Path(loaded.run.data.path))
    same_images = images == checkpoint.meta.image_set
    if is_same and same_images and statistics_fit and is_evaluated:
        return state.accuracy
    return None
