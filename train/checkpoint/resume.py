"""May this config go on from that checkpoint, and what is trained again? Loads no framework."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from ...config.image_set import COUNTS
from ...config.leaves import flatten
from ...config.load import Loaded
from ...config.manifest import explain_missing, has_manifest
from ...config.plan import build_plan, spread
from ...config.recorded import RESUME, load_recorded
from ...config.schema import Run
from ...host.errors import UserError
from ..communication.identity import image_set_in, shown
from .file import Checkpoint

# What may differ: none of it changes what is learned; the number of ranks changes bits.
FREE = (
    "checkpoint.",
    "watchdog.",
    "limits.",
    "system.",
    "startup.",
    "comm.cycle_ms",
    "log.every",
    "data.path",
    "data.synthetic",
    "data.decode_threads",
    "data.prefetch",
    "eval.batch_per_rank",
)
_SHARES = ("batch.per_rank", "batch.active_ranks", "batch.changes")


def check_config(checkpoint: Checkpoint, loaded: Loaded) -> None:
    """Raise UserError naming the first key in which config and checkpoint differ, or both image
    sets, or the set that is not there and from which the config has its counts."""
    recorded = dict(flatten(checkpoint.meta.config))
    current = dict(flatten(loaded.to_dict()))
    other_ranks = loaded.run.system.world_size != checkpoint.meta.ranks
    folder = Path(loaded.run.data.path)
    # each node has its part
    bound = ("system.nodes",) if loaded.run.data.shards else ()
    for key in sorted(recorded.keys() | current.keys()):
        if recorded.get(key) == current.get(key):
            continue
        if key.startswith(FREE) and key not in bound:
            continue
        if key in _SHARES and other_ranks:
            continue  # held to the same global batches below
        if key in COUNTS and key not in loaded.origins and not has_manifest(folder):
            raise UserError(
                f"data.path: {explain_missing(folder)}; if the set was moved: data.path=FOLDER"
            )
        raise UserError(
            f"{key}: {shown(recorded, key)} expected, as in {checkpoint.path}, found "
            f"{shown(current, key)}; only the same config can go on from a checkpoint"
        )
    recorded_batches = _batches_of(recorded_run(checkpoint))
    batches = _batches_of(loaded.run)
    if batches != recorded_batches:
        raise UserError(
            f"batch: global batches by epoch {recorded_batches} expected, as in {checkpoint.path}, "
            f"found {batches}: keep ranks x batch.per_rank"
        )
    expected = checkpoint.meta.image_set
    image_set = image_set_in(folder)
    # None here, as on the login node of a cluster: each rank looks where it runs.
    if image_set not in (None, expected):
        raise UserError(
            f"data.path: the image set of manifest {expected} expected, as in {checkpoint.path}, "
            f"found {image_set} in {folder}; a run resumes with the same image set only, "
            "wherever it lies"
        )


def resumed_config(
    checkpoint: Checkpoint, overrides: list[str], source: Path
) -> Loaded:
    """The config of a run that goes on: its own with overrides, its global batch kept.

    Args:
        source: config.yaml of the run.
        overrides: `key.path=value`; where they change the number of ranks and not the batch, the
            batch of a rank follows.
    """
    loaded = load_recorded(source, overrides, RESUME)
    ranks = loaded.run.system.world_size
    sets_shares = any(override.partition("=")[0] in _SHARES for override in overrides)
    if ranks == checkpoint.meta.ranks or sets_shares:
        return loaded
    shares = keep_batches(recorded_run(checkpoint), ranks)
    return load_recorded(source, overrides + shares, RESUME)


def keep_batches(run: Run, ranks: int) -> list[str]:
    """Overrides with which the global batches of `run` are those of as many of `ranks` ranks as
    share them evenly; the others add zeros."""
    shares = []
    for segment in build_plan(run).segments:
        per_rank, active = spread(segment.global_batch_size, ranks)
        active_ranks = None if active == ranks else active
        shares.append({"per_rank": per_rank, "active_ranks": active_ranks})
    overrides = [f"batch.{key}={json.dumps(value)}" for key, value in shares[0].items()]
    changes = [
        {"after_epoch": change.after_epoch, **share}
        for change, share in zip(run.batch.changes, shares[1:], strict=True)
    ]
    if changes:
        overrides.append(f"batch.changes={json.dumps(changes)}")
    return overrides


def recorded_run(checkpoint: Checkpoint) -> Run:
    """The config that a checkpoint was written by. Raises UserError: it holds none."""
    try:
        run = Run.model_validate(checkpoint.meta.config)
        build_plan(run)
    except (ValidationError, UserError) as error:
        raise UserError(
            f"{checkpoint.path}: its config is none: {str(error)[:200]!r}"
        ) from None
    return run


def _batches_of(run: Run) -> dict[int, int]:
    """First epoch -> global batch from there on."""
    segments = build_plan(run).segments
    return {segment.first_epoch: segment.global_batch_size for segment in segments}
