"""When a run is saved, which of its state, and the thread that writes it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from mxnet import nd
from numpy.typing import NDArray
from safetensors.numpy import save

from . import checkpoint
from .checkpoint import Part
from .checkpoint_folder import mark_best, prune, remove_unnamed
from .networks import statistics_arrays, weight_arrays
from .progress import warn
from .resume import LOG, METRICS
from .state import LossScaleState, Meta
from .trainer import Trainer


class Snapshot(NamedTuple):
    """What this rank writes of a checkpoint, on the host."""

    arrays: Mapping[str, NDArray[Any]]
    """Of rank 0; of the others none."""
    parts: tuple[Part, ...] = ()
    """Of ranks above 0: on rank 0 all, for the manifest; on another its own, if it has one."""
    data: bytes = b""
    """Its own part."""
    meta: Meta | None = None
    """Rank 0's."""


class Checkpointer:
    """Saves a trainer: called on all ranks alike, between steps.

    A thread writes this rank's part; rank 0 writes the manifest too, and keeps the newest `keep`
    checkpoints and the best. One that cannot be written (a full disk) costs a warning, not the run;
    those before it stay whole.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._settings = trainer.run.checkpoint
        self._every_steps = trainer.plan.checkpoint_every_steps
        self._saved_step = trainer.context.state.step
        self.saves_within_epochs = self._every_steps < trainer.plan.steps_per_epoch
        self._folder = trainer.context.out / "checkpoint"
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    def save_if_due(self, *, is_best: bool = False) -> bool:
        """A checkpoint where the interval is over, or where the evaluation just done is the best.
        Returns whether one was taken."""
        is_due = self._trainer.context.state.step >= self._saved_step + self._every_steps
        if not self._settings.enabled or not (is_due or is_best):
            return False
        self.save(is_best=is_best)
        return True

    def save_now(self, *, is_best: bool = False) -> None:
        """A checkpoint of this very step, on disk when this returns."""
        if self._settings.enabled:
            self.finish()
            self.save(is_best=is_best)
            self.finish()

    def save(self, *, is_best: bool = False) -> None:
        """Copy everything to the host; the disk gets it from a thread."""
        context = self._trainer.context
        self._saved_step = context.state.step
        before = context.timeline.phase
        with context.timeline.span("checkpoint"):
            is_writing = self._running is not None and not self._running.done()
            snapshot = collect(self._trainer, busy=is_writing)
        context.timeline.phase = before  # the thread is not what this rank does
        if snapshot is not None:
            self._running = self._pool.submit(self._write, snapshot, self._saved_step, is_best)

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk."""
        if self._running is not None:
            self._running.result()

    def _write(self, snapshot: Snapshot, step: int, is_best: bool) -> None:
        path = self._folder / checkpoint.file_name(step)
        try:
            self._folder.mkdir(exist_ok=True)
            if snapshot.meta is not None:
                logs = [self._folder.parent / name for name in (LOG, METRICS)]
                checkpoint.write(path, snapshot.meta, snapshot.arrays, snapshot.parts, logs)
                if is_best:
                    mark_best(path)
                prune(self._folder, self._settings.keep, self._trainer.comm.agreed_step)
                return
            for part in snapshot.parts:
                checkpoint.write_part(path, part, snapshot.data)
                if is_best:
                    mark_best(path, part)
        except OSError as error:
            with suppress(OSError):
                if snapshot.meta is not None:
                    remove_unnamed(self._folder, step)
                for part in snapshot.parts if snapshot.meta is None else ():
                    part.beside(path).unlink(missing_ok=True)
            warn(
                f"no checkpoint of step {step}: {path}: cannot write: {error.strerror}; "
                "training goes on"
            )


def collect(trainer: Trainer, *, busy: bool = False) -> Snapshot | None:
    """Everything that training has made, copied to the host. All ranks call this.

    Batch-norm statistics are each rank's own between evaluations and stay there: what the ranks
    tell each other is 48 bytes, the digest and size of each one's part. `busy`: this rank still
    writes its last part. Returns None where any rank is busy."""
    nd.waitall()  # batch-norm statistics change after the engine calls them readable
    model, comm = trainer.model, trainer.comm
    own = _on_host(statistics_arrays(trainer.model.net))
    data = save(own)
    rows = comm.gather_bytes(checkpoint.row_of(data, busy=busy), "checkpoint")
    parts = checkpoint.parts_of(rows, comm.rank)
    if parts is None:
        return None
    if comm.rank != 0:
        return Snapshot({}, parts, data)
    arrays = _on_host({**weight_arrays(model.net), **model.updater.arrays()})
    updater = model.updater
    scale = LossScaleState(**updater.scaler.state_dict())
    return Snapshot(arrays | own, parts, meta=trainer.context.meta(updater.previous_lr, scale))


def _on_host(arrays: Mapping[str, nd.NDArray]) -> dict[str, NDArray[Any]]:
    return {name: array.asnumpy() for name, array in arrays.items()}
