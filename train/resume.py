"""May this config go on from that checkpoint? Pure; loads no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..config.errors import UserError
from ..config.leaves import flatten
from ..config.load import Loaded, load
from ..config.plan import Plan, build_plan
from ..config.schema import Run
from ..config.yaml_file import read_layers
from ..logging import mlperf
from . import checkpoint
from .checkpoint import Checkpoint

# What may differ: none of it changes what is learned, or it changes bits only and that is said.
FREE = (
    *("checkpoint.", "watchdog.", "limits.", "system.", "startup.", "comm.cycle_ms", "log.every"),
    *("data.path", "data.synthetic", "data.decode_threads", "data.prefetch"),
    "eval.batch_per_rank",
)
_BITS = ("system.nodes", "system.ranks_per_node", "system.cores_per_rank", "system.device")
_PER_RANK = "batch.per_rank"

LOG, INTERRUPTED_LOG = "result_0.txt", "interrupted_0.txt"
"""The log of a run, and the name that the log of an attempt gets below attempt_<n>/: `rn50 log
check` looks at every result_*.txt as a run's own."""


def last_stamp_unix_s(out: Path) -> float:
    """The latest stamp in the logs of a run and of its interrupted attempts; 0: there is none."""
    logs = [out / LOG, *out.glob(f"attempt_*/{INTERRUPTED_LOG}")]
    return max(map(mlperf.last_stamp_unix_s, logs))


def read_checkpoint(path: Path, loaded: Loaded) -> Checkpoint:
    """The manifest at `path`. Raises UserError where it is damaged or not of this config.

    Each rank checks the parts that it reads when it reads them (`checkpoint_state.restore`).
    """
    found = checkpoint.read(path)
    check_config(found, loaded)
    return found


def check_config(found: Checkpoint, loaded: Loaded) -> None:
    """Raise UserError naming the first key in which config and checkpoint differ."""
    then, now = dict(flatten(found.meta.config)), dict(flatten(loaded.to_dict()))
    other_ranks = build_plan(loaded.run).ranks != found.meta.ranks
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) == now.get(key) or key.startswith(FREE):
            continue
        if key == _PER_RANK and other_ranks:
            continue  # held to the same global batch below
        raise UserError(
            f"{key}: {_show(then, key)} expected, as in {found.path}, found {_show(now, key)}; "
            "only the same config can go on from a checkpoint"
        )
    _check_batches(found, build_plan(loaded.run))


def differences_in_bits(found: Checkpoint, loaded: Loaded) -> list[str]:
    """What makes the sums of this run round differently from those of the interrupted one."""
    then, now = dict(flatten(found.meta.config)), dict(flatten(loaded.to_dict()))
    return [
        f"{key} {_show(then, key)} -> {_show(now, key)}"
        for key in _BITS
        if then.get(key) != now.get(key)
    ]


def load_recorded(source: Path, overrides: Sequence[str] = ()) -> Loaded:
    """The config in a run's folder with overrides. Raises UserError: as of `load`, or it would be
    read from outside of its folder: by a link, or by a `base` that is no name."""
    read_layers(source, within=source.parent)
    return load(source, overrides)  # with the image set that the overrides name


def resumed_config(found: Checkpoint, overrides: list[str], source: Path) -> Loaded:
    """The config of a run that goes on: its own with overrides, its global batch kept.

    Args:
        source: config.yaml of the run.
        overrides: `key.path=value`; where they change the number of ranks and not the batch, the
            batch of a rank follows.

    Raises:
        UserError: the global batch is no multiple of the number of ranks.
    """
    loaded = load_recorded(source, overrides)
    ranks = loaded.run.system.world_size
    given = any(text.partition("=")[0] == _PER_RANK for text in overrides)
    batch = loaded.run.batch
    if ranks == found.meta.ranks or given or batch.changes or batch.active_ranks:
        return loaded
    per_rank, rest = divmod(batch.per_rank * found.meta.ranks, ranks)
    if rest:
        raise UserError(
            f"--ranks: a divisor of the global batch {batch.per_rank * found.meta.ranks} of "
            f"{found.path} expected, found {ranks}"
        )
    return load_recorded(source, [*overrides, f"{_PER_RANK}={per_rank}"])


def recorded_run(found: Checkpoint) -> Run:
    """The config that a checkpoint was written by. Raises UserError: it holds none."""
    try:
        run = Run.model_validate(found.meta.config)
        build_plan(run)
    except (ValidationError, UserError) as error:
        raise UserError(f"{found.path}: its config is none: {str(error)[:200]!r}") from None
    return run


def _check_batches(found: Checkpoint, plan: Plan) -> None:
    then = build_plan(recorded_run(found))
    for old, new in zip(then.segments, plan.segments, strict=True):
        if old.global_batch_size != new.global_batch_size:
            raise UserError(
                f"batch: a global batch of {old.global_batch_size} expected, as in {found.path}, "
                f"found {new.global_batch_size}: keep ranks x {_PER_RANK}"
            )
    state = found.meta.state
    if (samples := plan.images_after(state.step)) != state.samples:
        raise UserError(
            f"{found.path}: {samples} samples after step {state.step} expected, "
            f"found {state.samples}"
        )
    trained = state.epochs_trained
    first, last = plan.epoch_end_step(trained), plan.epoch_end_step(trained + 1)
    if not first <= state.step <= last or state.epochs_evaluated > state.epochs_trained:
        raise UserError(
            f"{found.path}: {trained} epochs trained and {state.epochs_evaluated} "
            f"evaluated do not fit step {state.step}"
        )


def _show(tree: Mapping[str, Any], key: str) -> str:
    return repr(tree[key])[:100] if key in tree else "nothing"
