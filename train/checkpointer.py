"""When a run is saved, which of its state, and the thread that writes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..host.errors import UserError, reason_of
from .checkpoint.file import BEST, file_name, write_checkpoint
from .checkpoint.folder import mark_best, prune
from .checkpoint.state import Meta
from .network.build import on_host, quick_digest, statistics_arrays, weight_arrays
from .trainer import Trainer
from .warning import warn


class Snapshot(NamedTuple):
    """What rank 0 writes of a checkpoint, on the host."""

    meta: Meta
    arrays: Mapping[str, NDArray[Any]]


class Checkpointer:
    """Saves a trainer: called on all ranks alike, between steps.

    A thread of rank 0 writes, and keeps the newest `keep` checkpoints and the best. One that cannot
    be written (a full disk) costs a warning, not the run; those before it stay whole.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._settings = trainer.run.checkpoint
        self._every_steps = trainer.plan.checkpoint_every_steps
        self._saved_step = trainer.context.state.step
        self.saves_within_epochs = self._every_steps < trainer.plan.steps_per_epoch
        self._run_folder = trainer.context.folder
        self._folder = self._run_folder.checkpoints
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None
        self._unmarked: Path | None = None
        """The best one, until it has its name."""

    def save_if_due(self, *, is_best: bool = False) -> bool:
        """A checkpoint where the interval is over, or where the evaluation just done is the best.
        Returns whether one was taken."""
        step = self._trainer.context.state.step
        is_due = step >= self._saved_step + self._every_steps
        return (is_due or is_best) and self._save(is_best=is_best)

    def save_now(self, *, is_best: bool = False) -> None:
        """A checkpoint of this very step, on disk when this returns."""
        self._save(is_best=is_best)
        self.finish()

    def _save(self, *, is_best: bool) -> bool:
        """Copy everything to the host; the disk gets it from a thread. Waits for the checkpoint
        before, if the disk is that slow. Returns whether one was taken."""
        if not self._settings.enabled:
            return False
        context = self._trainer.context
        step = context.state.step
        self._saved_step = step
        phase = context.timeline.phase
        context.log.save_start(step, self._trainer.device_done())
        with context.timeline.span("checkpoint"):
            self.finish()
            snapshot = collect(self._trainer)
        context.timeline.phase = phase  # the thread is not what this rank does
        context.log.save_stop(step)
        if snapshot is not None:
            self._running = self._pool.submit(self._write, snapshot, is_best)
        return True

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk."""
        if self._running is not None:
            self._running.result()

    def _write(self, snapshot: Snapshot, is_best: bool) -> None:
        step = snapshot.meta.step
        path = self._folder / file_name(step)
        try:
            self._folder.mkdir(exist_ok=True)
            logs = [self._run_folder.log, self._run_folder.metrics]
            write_checkpoint(path, *snapshot, logs)
        except OSError as error:
            warn(
                f"no checkpoint of step {step}: {error.filename or path}: cannot write: "
                f"{reason_of(error)}; training goes on"
            )
            return
        if is_best:
            self._unmarked = path
        try:
            if self._unmarked is not None:
                mark_best(self._unmarked)
                self._unmarked = None
        except (OSError, UserError) as error:
            why = getattr(error, "strerror", error)
            warn(f"{self._unmarked} is the best, but no {BEST}: cannot write: {why}")
        with suppress(OSError):  # one too many is no harm
            prune(
                self._folder,
                self._settings.keep,
                self._trainer.comm.agreed_step,
                self._unmarked,
            )


def collect(trainer: Trainer) -> Snapshot | None:
    """Everything that training has made, copied to the host of rank 0; None on other ranks. All
    ranks call this.

    Batch-norm statistics are each rank's own between evaluations: where their digests differ, all
    of them travel, 0.2 MB a rank for ResNet-50."""
    model = trainer.model
    comm = trainer.comm
    # batch-norm statistics change after the engine calls them readable
    comm.operators.finish()
    statistics = on_host(statistics_arrays(model.net))
    rows = [b"".join(array.tobytes() for array in statistics.values())]
    digest = hashlib.blake2b(rows[0], digest_size=16).digest()
    if len(set(comm.gather_bytes(digest, "checkpoint"))) > 1:
        rows = comm.gather_bytes(rows[0], "statistics")
    if comm.rank != 0:
        return None
    weights = on_host(weight_arrays(model.net))
    step = trainer.context.state.step
    if step == comm.agreed_step and comm.agreed_digest not in (
        b"",
        quick_digest(weights.values()),
    ):
        raise UserError(
            f"weights of step {step} expected as all ranks agreed on them before the evaluation, "
            "found others: a fault of memory or node here"
        )
    columns = [(name, array.dtype, array.shape) for name, array in statistics.items()]
    table: NDArray[Any] = np.ndarray(len(rows), columns, b"".join(rows))
    of_ranks = {name: table[name] for name in statistics}
    context = trainer.context
    assert context.run_started_unix_s is not None  # start-up is over
    meta = Meta(
        state=context.state.model_copy(),
        log_bytes=context.log.size_bytes,
        metrics_bytes=context.metrics.size_bytes,
        run_started_unix_s=context.run_started_unix_s,
        previous_lr=model.updater.previous_lr,
        loss_scale=model.updater.scaler.state(),
        ranks=trainer.plan.ranks,
        statistics_rows=len(rows),
        config_sha256=context.loaded.sha256,
        config=context.loaded.to_dict(),
        image_set=context.identity["image set"]["manifest"],
    )
    arrays = weights | on_host(model.updater.arrays()) | of_ranks
    return Snapshot(meta, arrays)
