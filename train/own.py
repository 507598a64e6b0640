"""What a rank computes beside cuDNN's network, by our own kernels (kernels/device.cu): they run on
GPUs for which MXNet's wheel holds no machine code, and a step launches a quarter of the kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, nd

from ..config.schema import Model, Optimizer
from .buckets import side_by_side
from .gpu import visible_gpu
from .gpu_code import choose_kernels
from .kernels.device import CudaModule, Module, blocks_for
from .networks import Loss, trainable
from .operators import TOP, Criterion, Operators
from .optimizer import AKIBA_EPSILON, AKIBA_MU2, Updater
from .schedule import Settings

CHUNK = 16384
"""Elements of a tensor that one block takes (device.cu)."""


class OwnOperators(Operators):
    """Launches of `module`. Copies from the host take the place of MXNet's fills, which are kernels
    too."""

    own = True

    def __init__(self, ctx: mx.Context, module: Module) -> None:
        super().__init__(ctx)
        self.module = module
        self.weights: list[nd.NDArray] = []
        """The weights of the network that is trained, side by side, an array a type."""
        self._kernels: dict[str, Callable[..., None]] = {}

    def launch(self, name: str, blocks: int, *arguments: object) -> None:
        """Enqueue a kernel that finds all its arrays among its arguments."""
        if name not in self._kernels:
            self._kernels[name] = self.module.kernel(name)
        self._kernels[name](blocks, *arguments)

    def initialize(self, net: Any, initializer: mx.init.Initializer) -> None:
        """Also lays the weights of a type side by side: the engine then has few arrays to watch,
        and kernels find each tensor by its address."""
        trained = trainable(net)
        for p in trained:
            p.grad_req = "null"
        net.initialize(initializer, ctx=self.ctx)
        for kind in sorted({np.dtype(p.dtype).name for p in trained}):
            of_kind = [p for p in trained if np.dtype(p.dtype).name == kind]
            flat, views = side_by_side(self, [p.shape for p in of_kind], kind)
            for p, view in zip(of_kind, views, strict=True):
                p.data().copyto(view)
                p._data = [view]
                p._grad_req = "write"  # by its setter it would be filled with an array of its own
            self.weights.append(flat)

    def zeros(self, shape: Any, dtype: Any = np.float32) -> nd.NDArray:
        return nd.array(np.zeros(shape, dtype), self.ctx, dtype=dtype)

    def fill(self, array: nd.NDArray, value: float) -> None:
        kind = _kind(array)
        self.launch(f"fill_{kind}", blocks_for(array.size), array, array.size, value)

    def scale(self, array: nd.NDArray, factor: float) -> None:
        self.launch("scale", blocks_for(array.size), array, array.size, factor)

    def narrow(self, wide: nd.NDArray, half: nd.NDArray, factor: float) -> None:
        self.launch("narrow", blocks_for(wide.size), wide, half, wide.size, factor)

    def widen(self, half: nd.NDArray, wide: nd.NDArray, factor: float) -> None:
        self.launch("widen", blocks_for(wide.size), half, wide, wide.size, factor)

    def add_square(self, array: nd.NDArray, other: nd.NDArray, sign: int) -> None:
        self.launch("add_square", blocks_for(array.size), array, other, array.size, sign)

    def copy_channels_first(self, source: nd.NDArray, target: nd.NDArray) -> None:
        out, height, width, channels = source.shape
        name = f"channels_first_{_kind(source)}"
        arguments = (source, target, out, height * width, channels)
        self.launch(name, blocks_for(source.size), *arguments)

    def add_losses(self, losses: nd.NDArray, total: nd.NDArray | None) -> nd.NDArray:
        first = total is None
        if total is None:
            total = nd.empty((1,), self.ctx)
        self.launch("add_losses", 1, losses, total, losses.size, int(first))
        return total

    def join(self, number: nd.NDArray, more: Sequence[float]) -> nd.NDArray:
        joined = nd.array([0.0, *more], self.ctx)
        number.reshape(1).copyto(joined[:1])
        return joined

    def add_hits(
        self, scores: nd.NDArray, labels: nd.NDArray, total: nd.NDArray | None
    ) -> nd.NDArray:
        if total is None:
            total = self.zeros(3, np.int32)
        classes = scores.size // scores.shape[0]
        arguments = (scores, labels, total, classes, min(TOP, classes))
        self.launch(f"hits_{_kind(scores)}", scores.shape[0], *arguments)
        return total

    def criterion(self, loss: Loss) -> Criterion:
        return OwnCriterion(self, loss)


class OwnCriterion(Criterion):
    """Losses and the gradient of the logits in one kernel; MXNet's autograd goes on from there."""

    def __init__(self, operators: OwnOperators, loss: Loss) -> None:
        super().__init__(loss)
        self._operators = operators
        self._logits: Any = None
        self._gradient: Any = None

    def forward(self, net: Any, images: Any, labels: Any, scale: float) -> nd.NDArray:
        with autograd.record():
            logits = net(images)
        losses = nd.empty((logits.shape[0],), logits.context)
        gradient = nd.empty(logits.shape, logits.context, dtype=logits.dtype)
        classes = logits.size // logits.shape[0]
        arguments = (logits, labels, losses, gradient, classes, self.loss.other, scale)
        self._operators.launch(f"loss_{_kind(logits)}", logits.shape[0], *arguments)
        self._logits = logits
        self._gradient = gradient
        return losses

    def backward(self, losses: nd.NDArray, scale: float) -> None:  # noqa: ARG002
        self._logits.backward(self._gradient)
        self._logits = self._gradient = None


class OwnUpdater(Updater):
    """Three launches a step for all tensors: sums of squares, learning rates, update."""

    operators: OwnOperators

    def __init__(self, *arguments: Any, buckets: Sequence[nd.NDArray], **options: Any) -> None:
        self._buckets = list(buckets)
        self._flats = list[nd.NDArray]()
        super().__init__(*arguments, **options)

    def _zeros(self, shapes: Sequence[tuple[int, ...]]) -> list[nd.NDArray]:
        flat, views = side_by_side(self.operators, shapes, np.float32)
        self._flats.append(flat)
        return views

    def _masters(self, parameters: Sequence[Any]) -> dict[str, nd.NDArray]:
        half = [p for p in parameters if p.data().dtype == np.float16]
        masters = self._zeros([p.shape for p in half]) if half else []
        for p, master in zip(half, masters, strict=True):
            master[:] = nd.array(p.data().asnumpy().astype(np.float32))
        return dict(zip((p.name for p in half), masters, strict=True))

    def _prepare(self) -> None:
        """The table of the tensors' addresses, and for each block the tensor of its chunk."""
        tensors = self._tensors
        ctx = self.operators.ctx
        chunks = [-(-t.weight.size // CHUNK) for t in tensors]
        first = np.cumsum([0, *chunks])
        rows = [
            [
                *map(_address, (t.weight, t.gradient, t.momentum, t.master, square)),
                t.weight.size,
                int(first[number]),
                int(t.master is not None),
            ]
            for number, (t, square) in enumerate(zip_longest(tensors, self._squares))
        ]
        self._blocks = int(first[-1])

        def on_device(values: Any, kind: str) -> nd.NDArray:
            return nd.array(np.array(values, kind), ctx, dtype=kind)

        self._table = on_device(rows, "int64")
        self._chunks = on_device(np.repeat(np.arange(len(tensors)), chunks), "int32")
        self._etas = on_device([self._rule.eta if t.scaled else 0 for t in tensors], "float32")
        self._decays = on_device([t.decay for t in tensors], "float32")
        self._sums = self.operators.zeros(2 * self._blocks)
        self._rates = self.operators.zeros(len(tensors) + 1)
        weights = self.operators.weights
        changed = [*weights, *self._flats]
        kernel = self.operators.module.kernel
        self._square_sums = kernel("square_sums", reads=[*changed, *self._buckets])
        rule = "update_rmsprop" if self._squares else "update"
        self._update = kernel(rule, reads=self._buckets, writes=changed)
        self.written_last = weights

    def _apply(self, step: int, now: Settings) -> None:
        rule = self._rule
        scaler = self.scaler
        count = len(self._tensors)
        rescale = self._rescale(now)
        self._square_sums(self._blocks, self._table, self._chunks, self._sums)
        self.operators.launch(
            "rates",
            1,
            self._table,
            self._etas,
            self._decays,
            self._sums,
            self._rates,
            count,
            int(scaler.is_dynamic),
            now.lr,
            rescale,
            rule.epsilon,
            self._trust_decay_factor,
            int(rule.epsilon_only_below),
        )
        arguments = [self._table, self._chunks, self._decays, self._rates, count]
        arguments += [now.momentum, rescale]
        if self._squares:
            arguments += [now.lr, *self._akiba_shares(step, now), AKIBA_MU2, AKIBA_EPSILON]
        self._update(self._blocks, *arguments)
        if scaler.is_dynamic:  # a copy: the next steps write theirs before this one is read
            finite = nd.empty((1,), self.operators.ctx)
            self._rates[count:].copyto(finite)
            scaler.note(step, finite)


def operators_for(model: Model, ctx: mx.Context) -> Operators:
    """The operators of a device for a network: the one place where they are chosen."""
    if ctx.device_type == "cpu":
        return Operators(ctx)
    gpu = visible_gpu(ctx.device_id)
    if choose_kernels(model, gpu.name, gpu.capability) == "mxnet":
        return Operators(ctx)
    return OwnOperators(ctx, CudaModule(ctx, gpu.capability))


def updater_for(
    operators: Operators,
    parameters: Sequence[Any],
    settings: Optimizer,
    buckets: Sequence[nd.NDArray],
    **more: Any,
) -> Updater:
    """What applies an optimizer step to `parameters`, whose gradients lie in `buckets`."""
    if isinstance(operators, OwnOperators):
        return OwnUpdater(parameters, settings, operators=operators, buckets=buckets, **more)
    return Updater(parameters, settings, operators=operators, **more)


def _address(array: nd.NDArray | None) -> int:
    """Where an array lies on its device; 0: there is none."""
    if array is None:
        return 0
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def _kind(array: nd.NDArray) -> str:
    return "half" if array.dtype == np.float16 else "float"
