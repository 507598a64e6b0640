"""What a rank computes on a GPU by our own plan and kernels, which run where MXNet's wheel holds no
machine code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import nd

from ..communication.buckets import side_by_side
from ..gluon_private import lay_weight
from ..operators import TOP, Graphs, Operators
from ..step_times import Stamp
from .calls import SETTINGS, captured_graphs, check_segments, data_address, float_bits
from .cudnn import Cudnn
from .layer_calls import Writer
from .module import CudaModule, blocks_for, type_name
from .step_plan import ScoringPlan, Shared, TrainingPlan
from .tape import Arena, Tape


class PlanOperators(Operators):
    """Launches of `module`. Copies from the host take the place of MXNet's fills, which are kernels
    too."""

    planned = True
    warm_up_steps = 2
    """The second is captured."""

    def __init__(self, ctx: mx.Context, module: CudaModule) -> None:
        super().__init__(ctx)
        self.module = module
        self.launch = module.launch
        self.shared = Shared(
            device=module.device,
            weights=[],
            statistics=[],
            loss_sum=self.zeros(1),
            arena=Arena(self.zeros(1)),
        )
        self.cudnn: Cudnn | None = None

    @property
    def stamp(self) -> Stamp | None:
        """What notes the time on the stream of the steps."""
        return self.module.device.stamp(self.shared.arena.token)

    @property
    def graphs(self) -> Graphs:
        """The segments that run as CUDA graphs."""
        return captured_graphs()

    def finish(self) -> None:
        """Wait also for what only calls know of: launches and segments that failed."""
        super().finish()
        self.module.device.check()
        check_segments()

    def initialize(self, net: Any, initializer: mx.init.Initializer) -> None:
        """Also lays the weights of a type side by side: the engine has few arrays to watch, and
        kernels find each tensor by its address."""
        statistics = []
        trained = defaultdict(list)
        for p in net.collect_params().values():
            if p.grad_req == "null":
                statistics.append(p)
            else:
                trained[np.dtype(p.dtype).name].append(p)
                # else gluon would take arrays for the gradients, which lie in buckets
                p.grad_req = "null"
        net.initialize(initializer, ctx=self.ctx)
        for dtype, parameters in sorted(trained.items()):
            flat, views = side_by_side(self, [p.shape for p in parameters], dtype)
            self.shared.weights.append(flat)
            for p, view in zip(parameters, views, strict=True):
                lay_weight(p, view)
        self.shared.statistics.extend(p.data() for p in statistics)

    def zeros(self, shape: Any, dtype: Any = np.float32) -> nd.NDArray:
        """Zeros of the host, copied: their memory is there when this returns."""
        return nd.array(np.zeros(shape, dtype), self.ctx, dtype=dtype)

    def settings(self) -> nd.NDArray:
        """An array on the device for the settings of a step."""
        return self.zeros(SETTINGS, np.int64)

    def _elementwise(self, kernel: str, number: float, *arrays: nd.NDArray) -> None:
        """A kernel that walks over arrays of one size."""
        size = arrays[0].size
        self.launch(kernel, blocks_for(size), *arrays, size, number)

    def fill(self, array: nd.NDArray, value: float) -> None:
        """Set all elements by a kernel."""
        self._elementwise(f"fill_{type_name(array.dtype)}", value, array)

    def scale(self, array: nd.NDArray, factor: float) -> None:
        """Multiply in place by a kernel."""
        self._elementwise("scale", factor, array)

    def narrow(self, wide: nd.NDArray, half: nd.NDArray, factor: float) -> None:
        """Cast and scale in one kernel, which leaves `wide` as it is."""
        self._elementwise("narrow", factor, wide, half)

    def widen(self, half: nd.NDArray, wide: nd.NDArray, factor: float) -> None:
        """Cast and scale in one kernel."""
        self._elementwise("widen", factor, half, wide)

    def add_square(self, array: nd.NDArray, roots: nd.NDArray, sign: int) -> None:
        """Add signed squares by a kernel."""
        self._elementwise("add_square", sign, array, roots)

    def add_losses(self, losses: nd.NDArray, total: nd.NDArray | None) -> nd.NDArray:
        """A plan adds its losses to `loss_sum` in forward; those before a log point go here."""
        if total is None:
            self.launch("sum_losses", 1, losses, self.shared.loss_sum, losses.size)
        return self.shared.loss_sum

    def join(self, number: nd.NDArray, more: Sequence[float]) -> nd.NDArray:
        """A copy of the host's numbers, into whose first place the device's is copied."""
        joined = nd.array([0.0, *more], self.ctx)
        number.reshape(1).copyto(joined[:1])
        return joined

    def add_hits(
        self, scores: nd.NDArray, labels: nd.NDArray, total: nd.NDArray | None
    ) -> nd.NDArray:
        """Count by one kernel, a block an image; `total` is changed in place."""
        if total is None:
            total = self.zeros(3, np.int32)
        classes = scores.size // scores.shape[0]
        arguments = (scores, labels, total, classes, min(TOP, classes))
        self.launch(f"hits_{type_name(scores.dtype)}", scores.shape[0], *arguments)
        return total

    def criterion(
        self, net: Any, loss: Any, buckets: Sequence[nd.NDArray]
    ) -> PlanCriterion:
        """The losses and gradients of plans."""
        return PlanCriterion(self, net, loss, buckets)

    def scorer(self, net: Any) -> Scorer:
        """The evaluation of `net` by the weights that are trained."""
        return Scorer(self, net)

    def writer(
        self, net: Any, image_shape: Sequence[int], settings: nd.NDArray
    ) -> Writer:
        """What writes a plan for images of this shape."""
        device = self.module.device
        # a handle of cuDNN is for the device of the thread that makes it
        device.activate()
        if self.cudnn is None:
            self.cudnn = Cudnn(device, net.dtype)
        tape = Tape(self.cudnn, self.module)
        return Writer(
            tape, self.cudnn, net, image_shape, settings, self.module.capability
        )


class _Plans:
    """A network's plans, one for each shape of images."""

    def __init__(self, operators: PlanOperators, net: Any) -> None:
        self._operators = operators
        self._net = net
        self._settings = operators.settings()
        self._plans: dict[tuple[int, ...], Any] = {}

    def _plan_for(self, shape: tuple[int, ...]) -> Any:
        operators = self._operators
        plan = self._plans.get(shape)
        # The addresses in a plan are those of the memory that there was when it was made.
        if plan is None or plan.generation != operators.shared.arena.generation:
            writer = operators.writer(self._net, shape, self._settings)
            plan = self._new_plan(writer)
            self._plans[shape] = plan
        return plan

    def _new_plan(self, writer: Writer) -> Any:
        raise NotImplementedError


class PlanCriterion(_Plans):
    """Losses of a batch and the gradients.

    Args:
        operators: of the GPU.
        net: the network that is trained.
        loss: whose smoothing is taken over.
        buckets: the arrays of the gradients.
    """

    def __init__(
        self,
        operators: PlanOperators,
        net: Any,
        loss: Any,
        buckets: Sequence[nd.NDArray],
    ) -> None:
        super().__init__(operators, net)
        self._off_target = loss.off_target
        self._buckets = buckets
        self._plan: TrainingPlan | None = None
        self._batch: list[nd.NDArray] = []

    def forward(self, images: Any, labels: Any, scale: float) -> nd.NDArray:
        """Run the forward pass of the plan for these images."""
        plan = self._plan_for(images.shape)
        # has its memory at once, as `nd.zeros` has not
        losses = nd.empty(len(images), images.context)
        addresses = map(data_address, (images, labels, losses))
        settings = [*addresses, float_bits(scale)]
        plan.forward(settings, [images, labels], [losses])
        self._plan = plan
        self._batch = [images, labels]
        return losses

    def backward(self, losses: nd.NDArray, scale: float) -> None:  # noqa: ARG002
        """Run the backward pass of the last plan, bucket by bucket."""
        assert self._plan is not None
        # The stream may still read the batch and write the losses, until the first group is done.
        first, *rest = self._plan.backward
        first((), self._batch, [losses])
        for segment in rest:
            segment()
        self._batch = []

    def _new_plan(self, writer: Writer) -> TrainingPlan:
        plan = TrainingPlan(
            self._operators.shared, writer, self._off_target, self._buckets
        )
        self._operators.norm_layers = writer.norm_layers()
        return plan


class Scorer(_Plans):
    """Images to logits, by the network's running statistics."""

    layout = "NCHW"

    def __call__(self, images: nd.NDArray) -> nd.NDArray:
        """The logits, overwritten by the next batch of this shape."""
        # the first of its settings, by which the first kernel finds the images
        plan = self._plan_for(images.shape)
        plan.run([data_address(images)], [images])
        return plan.logits

    def _new_plan(self, writer: Writer) -> ScoringPlan:
        shape = (writer.images, self._net.classes)
        logits = self._operators.zeros(shape, self._net.dtype)
        return ScoringPlan(self._operators.shared, writer, logits)
