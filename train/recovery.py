"""What lets a run go on, and what ends it early: checkpoints, restoring, limits. One per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import keeper
from .checkpoint import Meta
from .evaluate import Accuracy
from .limits import OUT_OF_TIME, StopRun, check_learning
from .weights import quick_digest

if TYPE_CHECKING:
    from .run import Rank


class Recovery:
    """Called by `Rank` at log points, ends of epochs and evaluations, on all ranks alike."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._session = rank.session
        settings = rank.run.checkpoint
        self._enabled = settings.enabled
        self._every_steps = rank.plan.checkpoint_every_steps
        self._writer = keeper.Writer(rank.session.out / "checkpoint", settings.keep)
        meta = rank.session.resumed.meta if rank.session.resumed else None
        self.accuracy: float | None = meta.accuracy if meta else None
        """Of the last evaluation."""
        self._best = meta.best_accuracy if meta else None
        self._saved_step = meta.step if meta else 0
        rank.training_s = meta.training_s if meta else 0.0

    def has_evaluated(self, epoch: int) -> bool:
        """Did the interrupted run evaluate after `epoch`?"""
        done, end = self._session.step, self._rank.plan.epoch_end_step(epoch)
        return done > end or (done == end and self._session.log.state == "run")

    def has_trained(self, epoch: int) -> bool:
        """Did the interrupted run end `epoch`?"""
        done, end = self._session.step, self._rank.plan.epoch_end_step(epoch)
        return done > end or (done == end and self._session.log.state != "epoch")

    def restore(self) -> None:
        """Put weights, velocities and batch-norm statistics back, if there is a checkpoint."""
        rank, found = self._rank, self._session.resumed
        if found is None:
            return
        epoch = max(1, round(rank.plan.epoch_at(found.meta.step)))
        keeper.restore(
            found,
            rank.net,
            rank.updater,
            rank=self._session.place.rank,
            ranks=rank.plan.ranks,
            active_ranks=rank.plan.segment_of_epoch(epoch).active_ranks,
        )

    def stop_flags(self) -> list[float]:
        """This rank's wishes to stop."""
        budget_s = self._rank.run.limits.time_s
        if budget_s is not None and self._session.metrics.elapsed_s >= budget_s:
            self._session.stop(OUT_OF_TIME)
        return self._session.stop.flags

    def after_log_point(self, step: int) -> bool:
        """A checkpoint within an epoch, where one is due and the interval is shorter than one."""
        short = self._every_steps < self._rank.plan.steps_per_epoch
        return short and self._save_if_due(step)

    def after_epoch(self, epoch: int) -> None:
        """A checkpoint where one is due and no evaluation comes first; the budget of epochs."""
        if epoch not in self._rank.plan.eval_epochs:
            self._save_if_due(self._session.step)
            self._check_budget(epoch)

    def after_evaluation(self, epoch: int, accuracy: Accuracy) -> None:
        """Is there any point in going on? Then a checkpoint, where one is due or it is the best."""
        rank = self._rank
        if self._session.step >= rank.plan.learning_by_steps and epoch < rank.plan.eval_epochs[-1]:
            check_learning(*accuracy, rank.run.data.classes, epoch)
        if self._enabled and self._is_best():
            self.begin()
        else:
            self._save_if_due(self._session.step)
        self._check_budget(epoch)

    def check_replicas(self, epoch: int) -> None:
        """Compare the weights of all ranks. The caller has waited for all of training."""
        if self._rank.run.limits.check_replicas:
            self._rank.comm.check_replicas(quick_digest(self._rank.net), f"after epoch {epoch}")

    def save(self) -> None:
        """A checkpoint of this very step, on disk when this returns."""
        if self._enabled:
            self._writer.finish()
            self.begin()
            self._writer.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is on disk."""
        self._writer.finish()

    def training_s(self) -> float:
        """Time in epochs so far, the one that runs included."""
        rank, session = self._rank, self._session
        if session.log.state in ("epoch", "trained"):
            return rank.training_s + session.metrics.elapsed_s - rank.block_start_s
        return rank.training_s

    def _is_best(self) -> bool:
        """Are these the weights of the best evaluation so far?"""
        if self._session.log.state != "run" or self.accuracy is None:
            return False
        return self._best is None or self.accuracy > self._best

    def _check_budget(self, epoch: int) -> None:
        if epoch == self._rank.run.limits.epochs:
            raise StopRun(f"budget of {epoch} epochs (limits.epochs) spent")

    def _save_if_due(self, step: int) -> bool:
        if not self._enabled or step < self._saved_step + self._every_steps:
            return False
        self.begin()
        return True

    def begin(self) -> None:
        """Copy everything to the host; the disk gets it from a thread. All ranks call this."""
        rank, session = self._rank, self._session
        self._saved_step = session.step
        before = session.timeline.phase
        with session.timeline.span("checkpoint"):
            arrays = keeper.collect(rank.net, rank.updater, rank.comm)
        session.timeline.phase = before  # the writer has a thread of its own
        is_best = self._is_best()
        if is_best:
            self._best = self.accuracy
        if session.place.rank == 0 and not self._writer.busy:
            scale, answers = rank.updater.scaler.state()
            meta = Meta(
                step=session.step,
                place=rank.plan.images_after(session.step),
                log_state=session.log.state,  # type: ignore[arg-type]
                log_bytes=session.log.size_bytes,
                metrics_bytes=session.metrics.size_bytes,
                run_started_unix_s=session.run_started_unix_s,
                training_s=self.training_s(),
                previous_lr=rank.updater.previous_lr,
                loss_scale=scale.value,
                loss_scale_clean_steps=scale.clean_steps,
                loss_scale_answers=answers,
                accuracy=self.accuracy,
                best_accuracy=self._best,
                ranks=rank.plan.ranks,
                seeds=rank.seeds,
                config_sha256=session.config_sha256,
                config=session.loaded.to_dict(),
            )
            self._writer.begin(meta, arrays, is_best=is_best)
