"""One rank of one run, phase by phase: cache clear, start-up, clock, epochs, evaluations, stop."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from mxnet import autograd, nd

from ..config.plan import Plan, build_plan
from ..config.schema import Run
from ..data.atomic import write_file
from ..data.cache import drop_caches
from ..data.probe import DataProbe
from ..data.sampling import eval_batches
from ..logging.metrics import Metrics
from ..logging.mlperf import MLPerfLog
from ..logging.timeline import Timeline
from .comm import Communicator, context
from .evaluate import Accuracy, average_bn_statistics, evaluate
from .loop import LogPoint, Trainer, train_steps
from .optimizer import Updater
from .placement import Placement
from .progress import Progress
from .resnet import bn_statistics, build_networks, trainable
from .schedule import warmup_poly
from .seeding import stream_seeds
from .startup import Stage, run_stages
from .weights import weights_digest


class Rank:
    """State of one rank over a run."""

    def __init__(self, run: Run, config_sha256: str, out: Path, place: Placement) -> None:
        self.run = run
        self.plan: Plan = build_plan(run)
        self.config_sha256 = config_sha256
        self.out = out
        self.place = place
        first = place.rank == 0
        self.log = MLPerfLog(out / "result_0.txt" if first else None)
        self.metrics = Metrics(out / "metrics.jsonl" if first else None)
        self.progress = Progress(self.plan, run.eval.target, shown=first)
        self.timeline = Timeline(place.rank)
        self.step = 0
        # The window of the throughput figure: since the last log point or evaluation.
        self.window_s, self.window_step = 0.0, 0
        self.training_s = 0.0

    def train(self) -> None:
        """Run to the target or to the last evaluation; rank 0 leaves the files of a run."""
        self.prepare()
        self.start_up()
        self._train_blocks()
        self.comm.stop()

    def prepare(self) -> None:
        """Caches of the data set dropped, and a watch on it, before the model exists."""
        self.log.submission(self.run)
        folder = Path(self.run.data.path)
        self.probe: DataProbe | None = None
        with self.timeline.span("cache clear"):
            if self.place.local_rank == 0:
                drop_caches(folder)
                self.probe = DataProbe(folder)
        self.log.cache_clear()
        self.log.init_start()
        self.init_start_s = time.perf_counter()

    def start_up(self) -> None:
        run, plan = self.run, self.plan
        self.seeds = stream_seeds(run.seed or 0)
        self.ctx = context(run.system.device, self.place.local_rank)
        self.comm = Communicator(self.ctx)
        stages = [
            Stage("connect ranks", self.comm.start),
            Stage("build pipelines", self._build_pipelines),
            Stage("build network", self._build_network),
            Stage("agree on weights", self._agree_on_weights, ("connect ranks", "build network")),
            Stage("warm up on zeros", self._warm_up, ("agree on weights", "build pipelines")),
        ]
        run_stages(stages, self.timeline, serial=run.startup.serial)
        self.log.hyperparameters(run, plan)
        if self.probe is not None:
            self.probe.check_untouched()
        self.log.init_stop()
        self.init_s = time.perf_counter() - self.init_start_s
        self.log.run_start(run)
        self.metrics.start_clock()
        self.comm.barrier()  # nobody touches the data before rank 0 has started the clock

    def _build_pipelines(self) -> None:
        # Imported here: DALI loads within this stage, beside the others.
        from ..data.pipeline import build_eval_source, build_train_source

        where: Any = {
            "rank": self.place.rank,
            "ranks": self.place.size,
            "device_id": None if self.run.system.device == "cpu" else self.place.local_rank,
        }
        self.train_source = build_train_source(
            self.run.data, batch_per_rank=self.run.batch.per_rank, seeds=self.seeds, **where
        )
        self.eval_source = build_eval_source(
            self.run.data, batch_per_rank=self.run.eval.batch_per_rank, **where
        )

    def _build_network(self) -> None:
        run = self.run
        self.net, self.eval_net, self.loss = build_networks(
            run.model, run.data.classes, seed=self.seeds["weights"], ctx=self.ctx
        )
        self.updater = Updater(
            trainable(self.net),
            run.optimizer,
            global_batch_size=self.plan.global_batch_size,
            ctx=self.ctx,
        )

    def _agree_on_weights(self, *_: None) -> None:
        """All ranks hold the same weights: drawn alike and compared, or rank 0's by broadcast."""
        parameters = self.net.collect_params()
        if self.run.startup.weights == "broadcast":
            self.comm.broadcast_(parameters)
        self.comm.check_replicas(weights_digest(self.net))
        gradients = [p.grad(self.ctx) for p in trainable(self.net)]
        self.comm.plan_groups(self.run.comm.groups, gradients)

    def _warm_up(self, *_: None) -> None:
        """A step and an evaluation batch on zeros: memory, kernels and Horovod's cache are set.

        Weights keep their bits (learning rate 0), batch-norm statistics are put back.
        """
        run = self.run
        side = run.data.crop_px
        images = nd.zeros((run.batch.per_rank, 3, side, side), self.ctx)
        with autograd.record():
            losses = self.loss(self.net(images), nd.zeros(run.batch.per_rank, self.ctx))
        losses.backward()
        self.comm.reduce()
        self.updater.step(0.0)
        self.eval_net(nd.zeros((run.eval.batch_per_rank, 3, side, side), self.ctx))
        nd.waitall()
        for p in bn_statistics(self.net):
            p.data(self.ctx)[:] = 0 if p.name.endswith("mean") else 1
        self.updater.reset()
        nd.waitall()

    def trainer(self) -> Trainer:
        """What the hot loop needs of this rank."""
        return Trainer(
            self.net, self.loss, self.train_source.next, self.comm, self.updater, self._lr_at
        )

    def _train_blocks(self) -> None:
        """Blocks of epochs, an evaluation after each, until the target or the last evaluation."""
        run, plan, log = self.run, self.plan, self.log
        trainer = self.trainer()
        first_epoch = 1
        reached = False
        for eval_epoch in plan.eval_epochs:
            log.block_start(first_epoch, eval_epoch - first_epoch + 1)
            block_s = self.metrics.elapsed_s
            for epoch in range(first_epoch, eval_epoch + 1):
                log.epoch_start(epoch)
                with self.timeline.span(f"epoch {epoch}"):
                    last = plan.epoch_end_step(epoch)
                    for point in train_steps(trainer, self.step + 1, last, plan.log_every_steps):
                        self.write_metrics(point)
                self.step = last
                log.epoch_stop(epoch)
            accuracy = self._evaluate(eval_epoch, block_s)
            log.block_stop(first_epoch)
            first_epoch = eval_epoch + 1
            reached = accuracy.fraction >= run.eval.target
            if reached:
                break
        log.run_stop(success=reached)
        self._finish(eval_epoch, accuracy, reached)

    def _evaluate(self, epoch: int, block_start_s: float) -> Accuracy:
        run = self.run
        self.log.eval_start(epoch)
        with self.timeline.span(f"evaluate {epoch}"):
            if run.eval.bn_stats == "average":
                average_bn_statistics(bn_statistics(self.net), self.comm)
            nd.waitall()  # ends the training interval: what follows is evaluation time
            start_s = self.metrics.elapsed_s
            self.training_s += start_s - block_start_s
            accuracy = evaluate(
                self.eval_net,
                self.eval_source.next,
                self.comm,
                batches=eval_batches(
                    run.data.eval_samples, self.plan.ranks, run.eval.batch_per_rank
                ),
                samples=run.data.eval_samples,
            )
        self.log.eval_stop(epoch)
        self.log.eval_accuracy(epoch, accuracy.fraction)
        now_s = self.metrics.elapsed_s
        self.metrics.write(
            "eval",
            epoch=epoch,
            step=self.step,
            accuracy=accuracy.fraction,
            correct=accuracy.correct,
            total=accuracy.total,
            eval_s=now_s - start_s,
        )
        self.progress.evaluated(epoch, accuracy, now_s)
        self.window_s, self.window_step = now_s, self.step
        return accuracy

    def _lr_at(self, step: int) -> float:
        s = self.run.schedule
        return warmup_poly(
            step,
            base_lr=self.run.optimizer.base_lr,
            end_lr=s.end_lr,
            power=s.power,
            warmup_steps=self.plan.warmup_steps,
            decay_steps=self.plan.decay_steps,
        )

    def write_metrics(self, point: LogPoint) -> None:
        """Mean loss over all ranks; reading it waits for this step's forward, no further."""
        loss_sum = self.comm.sum_losses(point.loss_sum)
        if self.place.rank != 0:
            return
        loss = float(loss_sum.asscalar()) / (point.steps * self.plan.global_batch_size)
        now_s = self.metrics.elapsed_s
        images = (point.step - self.window_step) * self.plan.global_batch_size
        images_per_s = images / (now_s - self.window_s)
        self.window_s, self.window_step = now_s, point.step
        lr = self._lr_at(point.step)
        self.metrics.write(
            "train",
            step=point.step,
            epoch=point.step / self.plan.steps_per_epoch,
            loss=loss,
            lr=lr,
            images_per_s=images_per_s,
        )
        self.progress.trained(point.step, loss, lr, images_per_s, now_s)

    def _finish(self, epoch: int, accuracy: Accuracy, reached: bool) -> None:
        time_s = self.metrics.elapsed_s
        result = {
            "status": "success" if reached else "aborted",
            "time_to_train_s": time_s,
            "init_s": self.init_s,
            "epochs": epoch,
            "eval_accuracy": accuracy.fraction,
            "target": self.run.eval.target,
            "images_per_s": self.step * self.plan.global_batch_size / self.training_s,
            "ranks": self.plan.ranks,
            "global_batch_size": self.plan.global_batch_size,
            "config_sha256": self.config_sha256,
            "seed": self.run.seed,
            "weights_digest": weights_digest(self.net).hex(),
        }
        if self.place.rank == 0:
            write_file(self.out / "result.json", json.dumps(result, indent=1) + "\n")
            write_file(self.out / "timeline.json", self.timeline.to_json())
