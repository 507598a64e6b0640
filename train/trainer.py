"""The objects that train one rank, and the start-up that builds them in overlapped stages."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import mxnet as mx

from ..config.plan import Plan
from ..config.schema import Run
from ..config.values import NORMS
from ..data.pipeline import Batch, build_eval_source, build_train_source
from ..logging.clock import Moment
from . import kernels
from .capabilities import decodes_on_gpu
from .checkpoint.restore import restore
from .communication.communicator import Communicator, communicator, device_context
from .communication.identity import part_digests
from .context import RunContext
from .devices import operators_for, updater_for
from .host_reads import LossTrail, RunAheadLimiter
from .network.build import (
    build_networks,
    copy_parameters,
    image_shape,
    replica_digest,
    reset_statistics,
    trainable,
)
from .operators import Criterion, Operators
from .profile_window import ProfileWindow
from .run_log import RunLog
from .schedule import Settings, step_settings
from .step_times import StepTimes
from .update.loss_scale import LossScaler
from .update.norms import NormRecorder
from .update.optimizer import Updater
from .warning import warn


class BatchSource(Protocol):
    """Gives one batch after the other; `device_id`: the GPU that it leaves them on, if any."""

    device_id: int | None

    def next(self) -> Batch:
        """The next batch."""


class Sources(NamedTuple):
    """The data of one rank; nothing is read before the first batch."""

    train: BatchSource
    evaluation: BatchSource


class Model(NamedTuple):
    """Networks, loss and optimizer. The evaluation network has parameters of its own."""

    net: Any
    eval_net: Any
    criterion: Criterion
    updater: Updater


@dataclass(frozen=True)
class Trainer:
    """One rank after start-up. What changes in a run is in `context.state` and in these objects."""

    context: RunContext
    comm: Communicator
    model: Model
    sources: Sources
    next_batch: Callable[[], Batch]
    next_eval_batch: Callable[[], Batch]
    settings_at: Callable[[int], Settings]
    update: Callable[[int, Settings], None]
    """Enqueues the update of a step."""
    norms: NormRecorder | None
    """Measures the norms of steps within `update`."""
    limit_run_ahead: RunAheadLimiter
    loss_trail: LossTrail
    times: StepTimes
    profile: ProfileWindow
    log: RunLog

    @property
    def run(self) -> Run:
        """The config."""
        return self.context.run

    def device_done(self) -> Moment:
        """When the device will have done all steps that are enqueued."""
        return self.times.moment(self.model.updater.written_last)

    @property
    def plan(self) -> Plan:
        """Its durations as steps."""
        return self.context.plan


def start_up(
    context: RunContext,
    sources: Callable[[RunContext, mx.Context], Sources] | None = None,
) -> Trainer:
    """Everything that does not need the data; ends with the clock running on all ranks.

    Args:
        context: the process.
        sources: makes the data of this rank; None: from the config's set.
    """
    run = context.run
    ctx = device_context(run.system.device, context.process.local_rank)
    if ctx.device_type == "cpu":  # our optimizer's operator is a CPU's
        kernels.load()
    operators = operators_for(run.model, ctx)
    comm = communicator(operators, context.connection, context.process.world_size)
    stage = context.timeline.span

    def build() -> Model:
        """Build the network, then warm it up."""
        with stage("build network"):
            model = build_model(context, comm)
        with stage("warm up network"):
            warm_up(context, model)
        return model

    data, model = overlapped(
        stage("open connections")(comm.start),
        stage("build pipelines")(partial(sources or build_sources, context, ctx)),
        build,
        serial=run.startup.serial,
        cores=run.system.cores_per_rank,
    )
    with stage("agree on weights"):
        verify_replicas(context, comm, model.net)
    context.start_clock([p.name for p in trainable(model.net)])
    times = StepTimes(context.plan.log_every_steps, operators.stamp)
    context.done_step = times.done_step
    next_of_evaluation = batches_of(data.evaluation, ctx)

    def next_eval_batch() -> Batch:
        """The next batch of an evaluation, counted for the watchdog."""
        context.eval_batches += 1
        return next_of_evaluation()

    updater = model.updater
    norms = None
    if run.log.profile == NORMS and context.process.rank == 0:
        norms = NormRecorder(updater, context.plan)
    comm.barrier()  # no rank touches the data before rank 0 has started the clock
    return Trainer(
        context=context,
        comm=comm,
        model=model,
        sources=data,
        next_batch=batches_of(data.train, ctx),
        next_eval_batch=next_eval_batch,
        settings_at=step_settings(run, context.plan),
        update=norms.step if norms else updater.step,
        norms=norms,
        limit_run_ahead=RunAheadLimiter(),
        loss_trail=LossTrail(),
        times=times,
        profile=ProfileWindow(context),
        log=RunLog(context),
    )


def overlapped(
    connect: Callable[[], object],
    *computing: Callable[[], Any],
    serial: bool,
    cores: int,
) -> list[Any]:
    """The results of functions that compute, of which as many as this rank has cores run at a time.
    `connect` waits for other ranks most of its time and runs beside them. Raises the first error,
    as soon as it happens: the others may wait for other ranks.

    Args:
        serial: one after the other, for comparison and for debugging.
    """
    pool = ThreadPoolExecutor(1 if serial else cores, thread_name_prefix="startup")
    connector = pool if serial else ThreadPoolExecutor(1, thread_name_prefix="connect")
    connecting = connector.submit(connect)
    results = [pool.submit(action) for action in computing]
    try:
        for future in as_completed([connecting, *results]):
            future.result()
    finally:
        for threads in (pool, connector):
            threads.shutdown(wait=False, cancel_futures=True)
    return [future.result() for future in results]


def build_sources(context: RunContext, ctx: mx.Context) -> Sources:
    """DALI's pipelines, from the step at which the run stands."""
    run = context.run
    plan = context.plan
    where: Any = {
        "rank": context.process.rank,
        "device_id": ctx.device_id if decodes_on_gpu(run) else None,
    }
    train = build_train_source(
        run.data,
        plan,
        seeds=context.seeds,
        first_step=context.state.step + 1,
        layout=run.model.layout,
        **where,
    )
    evaluation = build_eval_source(
        run.data, batch_per_rank=run.eval.batch_per_rank, ranks=plan.ranks, **where
    )
    return Sources(train, evaluation)


def build_model(context: RunContext, comm: Communicator) -> Model:
    """Networks with seeded weights; their gradients in the communicator's groups."""
    run = context.run
    model = run.model
    if run.eval.bn_stats == "batch":  # keep the last batch's statistics, no average
        model = model.model_copy(update={"bn_momentum": 0.0})
    net, eval_net, loss = build_networks(
        model,
        run.data.classes,
        crop_px=run.data.crop_px,
        seed=context.seeds["weights"],
        operators=comm.operators,
    )
    comm.plan_groups(run.comm.groups, trainable(net), run.comm.gradient_dtype)
    batches = [segment.global_batch_size for segment in context.plan.segments]
    scaler = LossScaler(
        run.model.loss_scale,
        () if comm.operators.planned else comm.buckets,
        batch=max(batches),
    )
    updater = updater_for(
        comm.operators,
        trainable(net),
        run.optimizer,
        comm.buckets,
        scaler=scaler,
        epoch_at=context.plan.epoch_at,
    )
    criterion = comm.operators.criterion(net, loss, comm.buckets)
    return Model(net, eval_net, criterion, updater)


def warm_up(context: RunContext, model: Model) -> None:
    """A step on zeros for every batch of the run and an evaluation batch: memory is taken, kernels
    are made.

    Weights keep their bits (learning rate 0), batch-norm statistics are put back.
    """
    run = context.run
    side = run.data.crop_px
    net, eval_net, criterion, updater = model
    operators = updater.operators
    zeros = operators.zeros
    scale = updater.scaler.value_at(1)
    for batch in (
        warm_up_batches(context.plan, context.state.step) * operators.warm_up_steps
    ):
        images = zeros(image_shape(net, batch, side))
        labels = zeros(batch)
        criterion.backward(criterion.forward(images, labels, scale), scale)
    for _ in range(operators.warm_up_steps):
        updater.step(1, Settings(0.0, 0.0, context.plan.global_batch_size))
        copy_parameters(net, eval_net, operators)
        eval_shape = image_shape(eval_net, run.eval.batch_per_rank, side)
        eval_net(zeros(eval_shape))
    operators.finish()
    warn_of_graphs(operators, context.process.rank)
    updater.reset()
    reset_statistics(net, operators)
    operators.finish()
    if context.resumed is not None:
        restore(
            context.resumed,
            net,
            updater,
            rank=context.process.rank,
            ranks=context.plan.ranks,
        )


def warn_of_graphs(operators: Operators, rank: int) -> None:
    """Say which part of a step the driver did not capture: at 32 images an H200 needs twice the
    time without graphs."""
    graphs = operators.graphs
    if rank == 0 and graphs and graphs.captured < graphs.parts:
        warn(f"CUDA graphs: {graphs} captured; the others make their calls one by one")


def warm_up_batches(plan: Plan, step: int) -> list[int]:
    """Images per rank of all segments that follow `step`, the largest first, which takes the memory
    of a plan; that of the next step comes last.

    A static graph holds one shape at a time: what a later segment needs (memory in MXNet's pool,
    oneDNN's and cuDNN's kernels) is made here and kept, and the next step finds its own shape.
    """
    present = plan.segment_of_step(step + 1)
    segments = plan.segments[plan.segments.index(present) :]
    later = {segment.per_rank for segment in segments} - {present.per_rank}
    return [*sorted(later, reverse=True), present.per_rank]


def verify_replicas(context: RunContext, comm: Communicator, net: Any) -> None:
    """All ranks hold the same weights, drawn alike and compared, or rank 0's by broadcast, and are
    of one run (`identity.py`).

    Ends with one reduction, so that each group has its connections and its place in Horovod's
    response cache.

    Args:
        context: this process.
        comm: the ranks.
        net: whose weights rank 0 broadcasts, if the config says so.
    """
    if context.run.startup.weights == "broadcast" and context.resumed is None:
        comm.broadcast_(net.collect_params())
    digests = part_digests(context.identity)
    digests["weights"] = replica_digest(net)
    comm.check_replicas(digests, "after start-up", context.state.step)
    comm.reduce()
    comm.operators.finish()


def batches_of(source: BatchSource, ctx: mx.Context) -> Callable[[], Batch]:
    """Its batches where the network is; what a CPU has decoded is copied to a GPU."""
    if source.device_id is not None or ctx == mx.cpu():
        return source.next
    return lambda: source.next().to(ctx)
