"""Training steps of a network on one batch, as a rank makes them."""

from collections.abc import Callable
from typing import Any

import rn50  # noqa: F401  before MXNet, whose finder it installs

# isort: split
from mxnet import nd

from rn50.config.schema import Run
from rn50.logging.timeline import Timeline
from rn50.train.communication.buckets import lay_out_gradients
from rn50.train.communication.communicator import Communicator, device_context
from rn50.train.communication.connection import Connection
from rn50.train.devices import operators_for, updater_for
from rn50.train.gpu.norms import ANY, TABLE, Norms, Row
from rn50.train.network.build import build_networks, trainable
from rn50.train.process_info import read_process_info
from rn50.train.schedule import Settings
from rn50.train.update.loss_scale import LossScaler

LR = 0.01
MOMENTUM = 0.9


def force(norms: Norms) -> None:
    """Have all GPUs and batches take these norms, in this process."""
    for capability, gpu in TABLE.items():
        TABLE[capability] = gpu._replace(rows=(Row(ANY, norms),))


def join(run: Run) -> Communicator:
    """This rank among the others, on its GPU."""
    process = read_process_info()
    connection = Connection(run, Timeline(0), over_mpi=process.over_mpi)
    connection.begin()
    ctx = device_context("gpu", process.local_rank)
    comm = Communicator(operators_for(run.model, ctx), connection)
    comm.start()
    return comm


def nothing(*_: Any) -> None:
    pass


class Steps:
    """A network and what trains it on the device of the images.

    Args:
        comm: of this rank, where its steps are to be summed with others.

    Raises:
        UserError: the device cannot run them so.
    """

    def __init__(
        self,
        run: Run,
        images: nd.NDArray,
        labels: nd.NDArray,
        scale: float = 1.0,
        comm: Communicator | None = None,
    ) -> None:
        self.operators: Any = (
            comm.operators if comm else operators_for(run.model, images.context)
        )
        self.net, _, self.loss = build_networks(
            run.model,
            run.data.classes,
            crop_px=run.data.crop_px,
            seed=1,
            operators=self.operators,
        )
        parameters = trainable(self.net)
        if comm:
            comm.plan_groups(run.comm.groups, parameters, run.comm.gradient_dtype)
            self.buckets = comm.buckets
        else:
            self.buckets = lay_out_gradients(
                parameters, run.comm.groups, self.operators
            )
        self._updater = updater_for(
            self.operators,
            parameters,
            run.optimizer,
            self.buckets,
            scaler=LossScaler(scale),
        )
        self._criterion = self.operators.criterion(self.net, self.loss, self.buckets)
        self.images = images
        self.labels = labels
        self._scale = scale
        self._settings = Settings(LR, MOMENTUM, len(labels))

    def __call__(
        self,
        after: Callable[[str, list[nd.NDArray]], None] = nothing,
        reduce: Callable[[], None] = nothing,
    ) -> nd.NDArray:
        """A step; its losses. `after`: of StepTimes; `reduce`: of the communicator."""
        losses = self._criterion.forward(self.images, self.labels, self._scale)
        after("forward", [losses])
        self._criterion.backward(losses, self._scale)
        after("backward", self.buckets[-1:])
        reduce()
        after("reduction", self.buckets)
        self.update()
        after("update", self._updater.written_last)
        return losses

    def update(self) -> None:
        self._updater.step(1, self._settings)

    def writer(self, settings: nd.NDArray | None = None) -> Any:
        """Of a plan that has no calls yet; `settings`: those of a step, where it is to run."""
        if settings is None:
            settings = self.operators.settings()
        return self.operators.writer(self.net, self.images.shape, settings)

    def written(self, settings: nd.NDArray | None = None) -> Any:
        """The writer of a whole step's plan, up to its update."""
        writer = self.writer(settings)
        writer.forward(training=True)
        writer.loss(self.loss.off_target, self.operators.shared.loss_sum)
        writer.backward()
        return writer
