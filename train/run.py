"""One rank of one run, phase by phase: start-up, clock, epochs, evaluations, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet import autograd, nd

from ..data.sampling import eval_batches
from . import kernels
from .comm import Communicator, context
from .evaluate import Accuracy, agree_on_bn_statistics, evaluate
from .host_reads import HostReads
from .limits import StopRun, agreed_stop, check_loss
from .loop import LogPoint, Trainer, idle_steps, train_steps
from .loss_scale import LossScaler
from .networks import bn_statistics, build_networks, copy_parameters, image_shape, trainable
from .optimizer import Updater
from .pace import Pace
from .recovery import Recovery
from .results import write_gaps, write_result
from .schedule import Settings, step_settings
from .seeding import stream_seed, stream_seeds
from .session import Session
from .startup import Stage, run_stages
from .support import decodes_on_gpu
from .weights import weights_digest

if TYPE_CHECKING:  # DALI loads in a stage of its own
    from ..data.pipeline import Batch, Source


class Rank:
    """Network, data, communicator and optimizer of one rank.

    Args:
        reads: how numbers come to the host (a test bed without numbers gives its own).
        ctx: where it trains, if not where the config and the launcher say.
    """

    def __init__(
        self, session: Session, reads: HostReads | None = None, ctx: mx.Context | None = None
    ) -> None:
        self.session = session
        self.reads = reads or HostReads()
        self.run = session.run
        self.plan = session.plan
        self.seeds = stream_seeds(session.run.seed or 0)
        self.ctx = ctx or context(session.run.system.device, session.place.local_rank)
        if self.ctx.device_type == "cpu":  # our optimizer's operator is a CPU's
            kernels.load()
        self.comm = Communicator(self.ctx, session.connection)
        self.settings_at = step_settings(session.run, session.plan)
        # The window of the throughput figure: since the last log point or evaluation.
        self.window_s, self.window_images = 0.0, 0
        self.training_s = 0.0
        self.recovery = Recovery(self)
        self.pace = Pace()
        self.evaluated_at_s: float | None = None

    def train(self) -> None:
        """Run to the target or to the last evaluation; rank 0 leaves the files of a run."""
        self.start_up()
        try:
            self.train_blocks()
        except StopRun as stop:  # on all ranks at the same step
            self.recovery.save()
            self.training_s = self.recovery.training_s()
            self.session.log.abort()
            write_result(self, reached=False, stopped=str(stop))
        self.recovery.finish()
        self.comm.stop()

    def start_up(self) -> None:
        """Everything that does not need the data; ends with the clock running on all ranks."""
        stages = [
            Stage("open connections", self.comm.start),
            Stage("build pipelines", self.build_pipelines),
            Stage("build network", self.build_network),
            Stage("warm up network", self.warm_up, ("build network",)),
            Stage(
                "agree on weights", self.agree_on_weights, ("open connections", "warm up network")
            ),
        ]
        run_stages(stages, self.session.timeline, serial=self.run.startup.serial)
        self.session.start_clock([p.name for p in trainable(self.net)])
        self.window_s = self.session.metrics.elapsed_s
        self.window_images = self.plan.images_after(self.session.step)
        self.comm.barrier()  # nobody touches the data before rank 0 has started the clock

    def build_pipelines(self) -> None:
        # Imported here: DALI loads within this stage, beside the others.
        from ..data.pipeline import build_eval_source, build_train_source

        where: Any = {
            "rank": self.session.place.rank,
            "device_id": self.ctx.device_id if decodes_on_gpu(self.run) else None,
        }
        self.train_source = build_train_source(
            self.run.data,
            self.plan,
            seeds=self.seeds,
            first_step=self.session.step + 1,
            layout=self.run.model.layout,
            **where,
        )
        self.eval_source = build_eval_source(
            self.run.data,
            batch_per_rank=self.run.eval.batch_per_rank,
            ranks=self.plan.ranks,
            **where,
        )

    def build_network(self) -> None:
        model = self.run.model
        if self.run.eval.bn_stats == "batch":  # keep the last batch's statistics, no average
            model = model.model_copy(update={"bn_momentum": 0.0})
        self.net, self.eval_net, self.loss = build_networks(
            model,
            self.run.data.classes,
            crop_px=self.run.data.crop_px,
            seed=self.seeds["weights"],
            ctx=self.ctx,
        )
        comm = self.run.comm
        self.comm.plan_groups(comm.groups, trainable(self.net), comm.wire)
        self.updater = Updater(
            trainable(self.net),
            self.run.optimizer,
            ctx=self.ctx,
            scaler=LossScaler(
                self.run.model.loss_scale,
                self.comm.buckets,
                batch=max(segment.global_batch_size for segment in self.plan.segments),
                reads=self.reads,
            ),
            epoch_at=self.plan.epoch_at,
        )

    def warm_up(self, *_: None) -> None:
        """A step and an evaluation batch on zeros: memory is taken, kernels are made.

        Weights keep their bits (learning rate 0), batch-norm statistics are put back.
        """
        batch, eval_batch = self.run.batch.per_rank, self.run.eval.batch_per_rank
        side = self.run.data.crop_px
        with autograd.record():
            logits = self.net(nd.zeros(image_shape(self.net, batch, side), self.ctx))
            losses = self.loss(logits, nd.zeros(batch, self.ctx))
        losses.backward(self.updater.scaler.head_gradients(1, losses))
        self.updater.step(1, Settings(0.0, 0.0, self.plan.global_batch_size))
        copy_parameters(self.net, self.eval_net)
        self.eval_net(nd.zeros(image_shape(self.eval_net, eval_batch, side), self.ctx))
        nd.waitall()
        self.updater.reset()
        for p in bn_statistics(self.net):
            p.data(self.ctx)[:] = 0 if p.name.endswith("mean") else 1
        nd.waitall()
        self.recovery.restore()
        self.digest = weights_digest(self.net, trained=True)

    def agree_on_weights(self, *_: None) -> None:
        """All ranks hold the same weights: drawn alike and compared, or rank 0's by broadcast.

        Ends with one reduction, so that each group has its connections and its place in Horovod's
        response cache.
        """
        if self.run.startup.weights == "broadcast" and self.session.resumed is None:
            self.comm.broadcast_(self.net.collect_params())
            self.digest = weights_digest(self.net, trained=True)
        self.comm.check_replicas(self.digest, "after start-up")
        self.comm.reduce()
        nd.waitall()

    def batches_of(self, source: Source) -> Callable[[], Batch]:
        """Its batches where the network is; what a CPU has decoded is copied to a GPU."""
        if source.device_id is not None or self.ctx == mx.cpu():
            return source.next
        return lambda: source.next().to(self.ctx)

    def trainer(self) -> Trainer:
        """What the hot loop needs of this rank."""
        return Trainer(
            self.net,
            self.loss,
            self.batches_of(self.train_source),
            self.comm,
            self.updater,
            self.settings_at,
            self.pace,
        )

    def train_blocks(self) -> None:
        """Blocks of epochs, an evaluation after each, until the target or the last evaluation."""
        log, first_epoch, reached = self.session.log, 1, False
        for eval_epoch in self.plan.eval_epochs:
            if not self.recovery.has_evaluated(eval_epoch):
                if log.state == "run":
                    log.block_start(first_epoch, eval_epoch - first_epoch + 1)
                self.block_start_s = self.session.metrics.elapsed_s
                for epoch in range(first_epoch, eval_epoch + 1):
                    self.train_epoch(epoch)
                nd.waitall()  # batch-norm statistics are final only now; ends the interval
                self.training_s += self.session.metrics.elapsed_s - self.block_start_s
                trained_at_s, last_evaluated_at_s = time.perf_counter(), self.evaluated_at_s
                accuracy = self.evaluate_epoch(eval_epoch)
                log.block_stop(first_epoch)
                write_gaps(self, first_epoch, eval_epoch, trained_at_s, last_evaluated_at_s)
                reached = accuracy.fraction >= self.run.eval.target
                if reached:
                    break
                self.recovery.after_evaluation(eval_epoch, accuracy)
            first_epoch = eval_epoch + 1
        log.run_stop(success=reached)
        write_result(self, reached=reached)

    def train_epoch(self, epoch: int) -> None:
        """The steps of one epoch; nothing here waits for the device between two epochs."""
        session, segment = self.session, self.plan.segment_of_epoch(epoch)
        if self.recovery.has_trained(epoch):
            return
        if session.log.state != "epoch":  # else the run goes on in the middle of one
            if segment.first_epoch == epoch > 1:
                session.change_batch(epoch, segment.global_batch_size)
            session.log.epoch_start(epoch)
        self.seed_dropout(epoch)
        active = session.place.rank < segment.active_ranks
        first, last = session.step + 1, self.plan.epoch_end_step(epoch)
        with session.timeline.span(f"epoch {epoch}"):
            steps = train_steps if active else idle_steps
            for point in steps(self.trainer(), first, last, self.plan.log_every_steps):
                self.write_metrics(point)
                if self.recovery.after_log_point(point.step):
                    self.seed_dropout(epoch)
        session.step = last
        session.log.epoch_stop(epoch)
        self.recovery.after_epoch(epoch)

    def seed_dropout(self, epoch: int) -> None:
        """MXNet's generator, of which no state can be had: seeded anew wherever a run may go on."""
        if self.run.model.network == "resnet":
            return
        step = self.session.step - self.plan.epoch_end_step(epoch - 1)
        key = (epoch, self.session.place.rank, *((step,) if step else ()))
        mx.random.seed(stream_seed(self.run.seed or 0, "dropout", *key) & 0x7FFFFFFF)

    def write_metrics(self, point: LogPoint) -> None:
        """Mean loss over all ranks; reading it waits for this step's forward, no further.

        With it travels whether a rank wants to stop.

        Raises:
            Hopeless, StopRun: on all ranks alike.
        """
        session = self.session
        session.step = point.step
        flags = nd.array(self.recovery.stop_flags(), self.ctx)
        sums = self.comm.sum_losses(nd.concat(point.loss_sum.reshape(1), flags, dim=0))
        loss_sum, *requests = self.reads.losses(sums)
        now = self.settings_at(point.step)
        images = point.steps * now.global_batch_size
        loss = loss_sum / images
        if session.place.rank == 0:
            self.report_loss(point.step, loss, now)
        check_loss(loss, point.step)
        if reason := agreed_stop(requests):
            raise StopRun(reason)

    def report_loss(self, step: int, loss: float, now: Settings) -> None:
        """Rank 0's line of a log point."""
        session, scaler = self.session, self.updater.scaler
        session.compare_clocks()
        now_s = session.metrics.elapsed_s
        done = self.plan.images_after(step)
        images_per_s = (done - self.window_images) / (now_s - self.window_s)
        self.window_s, self.window_images = now_s, done
        session.metrics.write(
            "train",
            step=step,
            epoch=self.plan.epoch_at(step),
            loss=loss,
            images_per_s=images_per_s,
            **now._asdict(),
            **({"loss_scale": scaler.scale.value} if scaler.is_dynamic else {}),
        )
        session.progress.trained(step, loss, now.lr, images_per_s, now_s)

    def evaluate_epoch(self, epoch: int) -> Accuracy:
        """Accuracy over the whole evaluation set, with the batch-norm statistics agreed on."""
        session, samples = self.session, self.run.data.eval_samples
        session.log.eval_start(epoch)
        start_s = session.metrics.elapsed_s
        with session.timeline.span(f"evaluate {epoch}"):
            self.recovery.check_replicas(epoch)
            agree_on_bn_statistics(
                bn_statistics(self.net),
                self.comm,
                mode=self.run.eval.bn_stats,
                active_ranks=self.plan.segment_of_epoch(epoch).active_ranks,
            )
            copy_parameters(self.net, self.eval_net)
            self.eval_entered_at_s = time.perf_counter()
            batches = eval_batches(samples, self.plan.ranks, self.run.eval.batch_per_rank)
            accuracy = evaluate(
                self.eval_net,
                self.batches_of(self.eval_source),
                self.comm,
                batches=batches,
                samples=samples,
                reads=self.reads,
            )
        self.evaluated_at_s = time.perf_counter()
        self.recovery.accuracy = accuracy.fraction
        session.log.eval_stop(epoch)
        session.log.eval_accuracy(epoch, accuracy.fraction)
        now_s = session.metrics.elapsed_s
        session.metrics.write(
            "eval",
            epoch=epoch,
            step=session.step,
            accuracy=accuracy.fraction,
            eval_s=now_s - start_s,
            **accuracy._asdict(),
        )
        session.progress.evaluated(epoch, accuracy.correct, accuracy.total, now_s)
        self.window_s, self.window_images = now_s, self.plan.images_after(session.step)
        return accuracy
