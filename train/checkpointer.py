"""When a run is saved, and the thread that writes it."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from . import checkpoint
from .checkpoint import LossScaleState, Meta
from .checkpoint_state import Snapshot, collect
from .progress import warn
from .seeding import stream_seeds
from .trainer import Trainer


class Checkpointer:
    """Saves a trainer: called on all ranks alike, between steps."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        context, settings = trainer.context, trainer.run.checkpoint
        self._enabled = settings.enabled
        self._every_steps = trainer.plan.checkpoint_every_steps
        self._writer = AsyncCheckpointWriter(context.out / "checkpoint", settings.keep)
        self._saved_step = context.state.step
        self.saves_within_epochs = self._every_steps < trainer.plan.steps_per_epoch

    def save_if_due(self, *, is_best: bool = False) -> bool:
        """A checkpoint where the interval is over, or where the evaluation just done is the best.

        Returns:
            whether one was taken.
        """
        is_due = self._trainer.context.state.step >= self._saved_step + self._every_steps
        if not self._enabled or not (is_due or is_best):
            return False
        self.save(is_best=is_best)
        return True

    def save_now(self) -> None:
        """A checkpoint of this very step, on disk when this returns."""
        if self._enabled:
            self._writer.finish()
            self.save()
            self._writer.finish()

    def save(self, *, is_best: bool = False) -> None:
        """Copy everything to the host; the disk gets it from a thread."""
        trainer, context, state = self._trainer, self._trainer.context, self._trainer.context.state
        self._saved_step = state.step
        before = context.timeline.phase
        with context.timeline.span("checkpoint"):
            snapshot = collect(
                trainer.model.net,
                trainer.model.updater,
                trainer.statistics,
                trainer.comm,
                busy=self._writer.busy,
            )
        context.timeline.phase = before  # the writer has a thread of its own
        if snapshot is not None:
            meta = self._meta() if context.process.rank == 0 else None
            self._writer.begin(snapshot, state.step, meta, is_best=is_best)

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk."""
        self._writer.finish()

    def _meta(self) -> Meta:
        context, updater = self._trainer.context, self._trainer.model.updater
        assert context.run_started_unix_s is not None  # start-up is over
        return Meta(
            state=context.state.model_copy(),
            log_bytes=context.log.size_bytes,
            metrics_bytes=context.metrics.size_bytes,
            run_started_unix_s=context.run_started_unix_s,
            previous_lr=updater.previous_lr,
            loss_scale=LossScaleState(**updater.scaler.state_dict()),
            ranks=context.plan.ranks,
            seeds=stream_seeds(context.run.seed or 0),
            config_sha256=context.config_sha256,
            config=context.loaded.to_dict(),
        )


class AsyncCheckpointWriter:
    """Writes this rank's part of checkpoints in a thread.

    Rank 0 writes the manifest too, and keeps the newest `keep` checkpoints and the best. One that
    cannot be written (a full disk) costs a warning, not the run; those before it stay whole.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Is the last one still being written?"""
        return self._running is not None and not self._running.done()

    def begin(self, snapshot: Snapshot, step: int, meta: Meta | None, *, is_best: bool) -> None:
        """Start writing; the arrays must not change any more. `meta`: rank 0's alone."""
        self._running = self._pool.submit(self._write, snapshot, step, meta, is_best)

    def finish(self) -> None:
        """Wait until all is written."""
        if self._running is not None:
            self._running.result()

    def _write(self, snapshot: Snapshot, step: int, meta: Meta | None, is_best: bool) -> None:
        path = self._folder / checkpoint.file_name(step)
        try:
            self._folder.mkdir(exist_ok=True)
            if meta is not None:
                checkpoint.write(path, meta, snapshot.arrays, snapshot.others)
                if is_best:
                    checkpoint.mark_best(path)
                checkpoint.prune(self._folder, self._keep)
            elif snapshot.own is not None:
                checkpoint.write_part(path, snapshot.own, snapshot.data)
                if is_best:
                    checkpoint.mark_best(path, snapshot.own)
        except OSError as error:
            warn(
                f"no checkpoint of step {step}: {path}: cannot write: {error.strerror}; "
                "training goes on"
            )
