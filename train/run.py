"""A run on one rank, phase by phase: start-up, epochs, evaluations, stop."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np

from ..logging.clock import Moment, present
from ..logging.records import EPOCH_LIMIT, Stopped
from . import host_reads
from .checkpoint.state import blocks_left, is_between_blocks, is_within_epoch
from .checkpointer import Checkpointer
from .context import RunContext
from .evaluate import Accuracy, evaluate, sync_bn_statistics
from .loop import LogPoint, train_steps, zero_gradient_steps
from .network.build import copy_parameters, replica_digest
from .seeding import stream_seed
from .stopping import Cause, StopTraining, agreed_stop, check_learning, judge_loss
from .trainer import Trainer, start_up


def train_and_evaluate(context: RunContext) -> None:
    """Run to the target or to the last evaluation; rank 0 leaves the files of a run."""
    trainer = start_up(context)
    checkpointer = Checkpointer(trainer)
    try:
        reached = train_blocks(trainer, checkpointer)
        context.log.run_stop(success=reached)
        write_result(trainer, reached=reached)
        if reached:  # the model that the run was for; its clock has stopped
            checkpointer.save_now(is_best=True)
    except StopTraining as stop:  # on all ranks at the same step
        checkpointer.save_now()
        trainer.comm.operators.finish()  # the ends of its epochs are known
        context.log.abort()
        write_result(trainer, reached=False, stopped=stop.cause)
    checkpointer.finish()
    trainer.comm.stop()
    context.write_timeline()


def write_result(
    trainer: Trainer, *, reached: bool, stopped: Stopped | None = None
) -> None:
    """The result, with what each rank needed; all ranks call it when the run's clock has stopped.
    What it does itself is not in the run's time."""
    context = trainer.context
    time_s = context.elapsed_s
    context.give_back()
    trainer.profile.end()
    trainer.log.result(
        trainer.model.net,
        trainer.comm,
        trainer.times.all_ms(),
        time_s=time_s,
        reached=reached,
        stopped=stopped,
    )


def train_blocks(trainer: Trainer, checkpointer: Checkpointer) -> bool:
    """Blocks of epochs, an evaluation after each, until the target or the last evaluation. Returns
    whether the target was reached."""
    context = trainer.context
    plan = trainer.plan
    state = context.state
    for first_epoch, last_epoch in blocks_left(plan, state):
        stop_if_due(trainer)
        previous_end = present()
        if is_between_blocks(plan, state):
            context.log.event(
                "block_start",
                moment=previous_end,
                first_epoch_num=first_epoch,
                epoch_count=last_epoch - first_epoch + 1,
            )
        for epoch in range(state.epochs_trained + 1, last_epoch + 1):
            previous_end = train_epoch(trainer, checkpointer, epoch, previous_end)
            if epoch < last_epoch:
                checkpointer.save_if_due()
        trainer.comm.operators.finish()  # batch-norm statistics are final only now
        trainer.limit_run_ahead.clear()
        trainer.times.end_block()
        accuracy = evaluate_epoch(trainer, last_epoch)
        context.log.event("block_stop", first_epoch_num=first_epoch)
        is_best = state.record_evaluation(last_epoch, accuracy.fraction)
        if accuracy.fraction >= trainer.run.eval.target:
            return True
        is_last = last_epoch == plan.eval_epochs[-1]
        if plan.min_accuracy_by_steps <= state.step and not is_last:
            check_learning(
                accuracy.correct, accuracy.total, trainer.run.data.classes, last_epoch
            )
        checkpointer.save_if_due(is_best=is_best)
    return False


def train_epoch(
    trainer: Trainer, checkpointer: Checkpointer, epoch: int, previous_end: Moment
) -> Moment:
    """The steps of one epoch; nothing here waits for the device between two epochs.

    Args:
        trainer: one rank after start-up.
        checkpointer: saves within the epoch.
        epoch: from 1.
        previous_end: when the device was done with the steps before.

    Returns:
        When it has done this epoch.
    """
    context = trainer.context
    plan = trainer.plan
    state = context.state
    segment = plan.segment_of_epoch(epoch)
    last = plan.epoch_end_step(epoch)
    host_asked = present()
    stop_if_due(trainer)
    if not is_within_epoch(plan, state):
        if segment.first_epoch == epoch > 1:
            trainer.log.batch_change(epoch, segment.global_batch_size, previous_end)
        context.log.event("epoch_start", moment=previous_end, epoch_num=epoch)
    seed_dropout(trainer, epoch)
    active = context.process.rank < segment.active_ranks
    steps = train_steps if active else zero_gradient_steps
    context.timeline.phase = f"epoch {epoch}"
    for point in steps(trainer, state.step + 1, last, plan.log_every_steps):
        log_point(trainer, point)
        if checkpointer.saves_within_epochs and checkpointer.save_if_due():
            seed_dropout(trainer, epoch)
    last = min(last, context.stop.last_step)
    state.advance(plan, last)
    done = trainer.device_done()
    context.timeline.add_device(f"epoch {epoch}", [previous_end, host_asked], done)
    if last < plan.epoch_end_step(epoch):
        raise StopTraining(context.stop.cause)
    state.epochs_trained = epoch
    context.log.event("epoch_stop", moment=done, epoch_num=epoch)
    return done


def stop_if_due(trainer: Trainer) -> None:
    """Raise StopTraining between two epochs, before either the log or an evaluation knows of the
    second, where the step before was the last that all ranks train or the epoch the last of the
    budget."""
    stop = trainer.context.stop
    state = trainer.context.state
    if not stop.may_begin(state.step + 1):
        raise StopTraining(stop.cause)
    budget = trainer.run.limits.epochs
    if budget is not None and state.epochs_trained >= budget:
        raise StopTraining(Stopped(limit=EPOCH_LIMIT))


def seed_dropout(trainer: Trainer, epoch: int) -> None:
    """MXNet's generator, of which no state can be had: seeded anew wherever a run may go on."""
    if not trainer.model.net.has_dropout:
        return
    context = trainer.context
    key = [epoch, context.process.rank]
    step = context.state.step - trainer.plan.epoch_end_step(epoch - 1)
    if step:
        key.append(step)
    seed = stream_seed(trainer.run.seed or 0, "dropout", *key)
    mx.random.seed(seed & 0x7FFFFFFF)


def log_point(trainer: Trainer, point: LogPoint) -> None:
    """Mean loss over all ranks; reading it waits for this step's forward, no further.

    With it travels whether a rank wants to stop. Raises AllRanksError, StopTraining: on all ranks
    alike."""
    context = trainer.context
    budget_s = trainer.run.limits.time_s
    context.state.advance(trainer.plan, point.step)
    if budget_s is not None and context.elapsed_s >= budget_s:
        context.stop(Cause.OUT_OF_TIME)
    comm = trainer.comm
    joined = comm.operators.join(point.loss_sum, context.stop.flags)
    sums = comm.add_up(joined, "loss")
    loss_sum, *requests = host_reads.losses(sums)
    settings = trainer.settings_at(point.step)
    scaler = trainer.model.updater.scaler
    loss = loss_sum / (point.steps * settings.global_batch_size)
    scale = scaler.scale.value if scaler.is_dynamic else None
    trainer.log.train(point.step, point.steps, loss, settings, scale)
    if trainer.norms is not None:
        trainer.log.norms(point.step, trainer.norms.take())
    trainer.log.step_times(point.step, trainer.times.log_point())
    check_loss(trainer, loss, point.step)
    if cause := agreed_stop(requests):
        raise StopTraining(cause)


def check_loss(trainer: Trainer, loss: float, step: int) -> None:
    """Raise AllRanksError for a loss over all ranks that is not finite, by whose it was first."""
    if math.isfinite(loss):
        trainer.loss_trail.clear()
        return
    first = np.int32(trainer.loss_trail.first_not_finite())
    rows = trainer.comm.gather_bytes(first.tobytes(), "losses")
    first_steps = np.frombuffer(b"".join(rows), np.int32).tolist()
    raise judge_loss(loss, step, first_steps, trainer.comm.gather_names())


def evaluate_epoch(trainer: Trainer, epoch: int) -> Accuracy:
    """Accuracy over the whole evaluation set, with the batch-norm statistics agreed on.

    The caller has waited for all of training.
    """
    context = trainer.context
    comm = trainer.comm
    net = trainer.model.net
    run = trainer.run
    start_s = context.elapsed_s
    context.log.event("eval_start", epoch_num=epoch)
    with context.timeline.span(f"evaluate {epoch}"):
        digest = replica_digest(net)
        digests = {"weights": digest}
        comm.check_replicas(digests, f"after epoch {epoch}", context.state.step)
        comm.agreed_digest = digest
        sync_bn_statistics(
            net,
            comm,
            mode=run.eval.bn_stats,
            active_ranks=trainer.plan.segment_of_epoch(epoch).active_ranks,
        )
        eval_net = trainer.model.eval_net
        copy_parameters(net, eval_net, comm.operators)
        accuracy = evaluate(eval_net, trainer.next_eval_batch, comm, run)
    context.log.event("eval_stop", epoch_num=epoch)
    context.log.event("eval_accuracy", accuracy.fraction, epoch_num=epoch)
    trainer.log.evaluation(epoch, accuracy, start_s)
    return accuracy
