"""What a rank computes beside its network, by MXNet's operators: losses, casts, sums, counts.

`gpu/plan_operators.py` computes the same by our own kernels; `devices.py` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import mxnet as mx
import numpy as np
from mxnet import autograd, nd
from mxnet.ndarray import NDArray

from .step_times import Stamp

TOP = 5


class Graphs(NamedTuple):
    """Parts of a step that were captured as CUDA graphs, of those that have run often enough."""

    captured: int
    parts: int

    def __str__(self) -> str:
        return f"{self.captured} of {self.parts} segments"


class NormLayers(NamedTuple):
    """How the batch norms of a step run: `norms` was chosen, and so many layers have their sums
    from the convolution before them, those of backward from the one after, and are applied by it.
    """

    norms: str
    layers: int
    sums: int
    slopes: int
    applied: int

    def __str__(self) -> str:
        return (
            f"{self.norms}: of {self.layers} layers convolutions sum {self.sums}, "
            f"{self.slopes} in backward, and apply {self.applied}"
        )


class Operators:
    """MXNet's operators, on a CPU or a GPU of whose capability its wheel holds machine code."""

    planned = False
    """Is the network's step a plan of our own?"""
    warm_up_steps = 1
    """Until a step is as all others."""

    def __init__(self, ctx: mx.Context) -> None:
        self.ctx = ctx

    @property
    def stamp(self) -> Stamp | None:
        """What notes the time for `step_times.py`, if not the host's clock."""
        return None

    norm_layers: NormLayers | None = None
    """None: they are MXNet's operators."""

    @property
    def graphs(self) -> Graphs | None:
        """The parts of a step that run as CUDA graphs; None: a step has no such parts."""
        return None

    def finish(self) -> None:
        """Wait until the device has done all that is enqueued. What is concluded after it (a
        score, a checkpoint) rests on work that succeeded. Raises UserError: some of it failed."""
        nd.waitall()

    def zeros(self, shape: Any, dtype: Any = np.float32) -> NDArray:
        """An array of zeros."""
        return nd.zeros(shape, self.ctx, dtype=dtype)

    def initialize(self, net: Any, initializer: mx.init.Initializer) -> None:
        """Fill the parameters of a network; those that are trained get arrays for gradients."""
        net.initialize(initializer, ctx=self.ctx)

    def fill(self, array: NDArray, value: float) -> None:
        """Set all elements."""
        array[:] = value

    def scale(self, array: NDArray, factor: float) -> None:
        """Multiply a float32 array in place."""
        array *= factor

    def narrow(self, wide: NDArray, half: NDArray, factor: float) -> None:
        """half = factor wide, from float32 to float16; what `wide` holds after it is undefined."""
        wide *= factor  # in place: no array is made in a step
        nd.cast(wide, dtype="float16", out=half)

    def widen(self, half: NDArray, wide: NDArray, factor: float) -> None:
        """wide = factor half, from float16 to float32."""
        nd.cast(half, dtype="float32", out=wide)
        wide *= factor

    def add_square(self, array: NDArray, roots: NDArray, sign: int) -> None:
        """array += sign other^2."""
        array += sign * roots * roots

    def add_losses(self, losses: NDArray, total: NDArray | None) -> NDArray:
        """The sum of a batch's losses and of `total`, as one number on the device."""
        loss_sum = losses.sum()
        return loss_sum if total is None else loss_sum + total

    def join(self, number: NDArray, more: Sequence[float]) -> NDArray:
        """One array of a number on the device and of numbers of the host."""
        return nd.concat(number.reshape(1), nd.array(more, self.ctx), dim=0)

    def add_hits(
        self, scores: NDArray, labels: NDArray, total: NDArray | None
    ) -> NDArray:
        """Add to `total`: images whose class has the highest score, those whose class is among the
        five highest, and images, all without padding (label -1)."""
        # float16 counts classes up to 2,048 only, and MXNet compares equal types alone.
        scores = scores.astype("float32", copy=False)
        highest = scores.topk(k=min(TOP, scores.shape[1]))
        hits = scores.argmax(axis=1) == labels
        near = nd.broadcast_equal(highest, labels.reshape((-1, 1)))
        seen = labels >= 0
        sums = [array.sum().reshape(1) for array in (hits, near, seen)]
        counts = nd.concat(*sums, dim=0).astype("int32")
        return counts if total is None else counts + total

    def criterion(
        self,
        net: Any,
        loss: Any,
        buckets: Sequence[NDArray],  # noqa: ARG002
    ) -> Criterion:
        """The losses of a network and its gradients, which lie in `buckets`."""
        return AutogradCriterion(net, loss)


class Criterion(Protocol):
    """Losses of a batch, and backward from them times the loss scale."""

    def forward(self, images: Any, labels: Any, scale: float) -> NDArray:
        """Enqueue the forward pass; one loss an image, not scaled."""
        ...

    def backward(self, losses: NDArray, scale: float) -> None:
        """Enqueue the backward pass of the last forward."""
        ...


class AutogradCriterion:
    """The criterion by MXNet's autograd."""

    def __init__(self, net: Any, loss: Any) -> None:
        self._net = net
        self._loss = loss
        self._head: NDArray = None
        """The scale, once for each loss."""
        self._made_for: object = None
        """The scale and the shape of the losses."""

    def forward(
        self,
        images: Any,
        labels: Any,
        scale: float,  # noqa: ARG002
    ) -> NDArray:
        """Record the forward pass; the scale comes in backward."""
        with autograd.record():
            return self._loss(self._net(images), labels)

    def backward(self, losses: NDArray, scale: float) -> None:
        """Go back from the losses with the scale as each one's gradient."""
        made_for = (scale, losses.shape)
        if made_for != self._made_for:
            self._head = nd.full(losses.shape, scale, losses.context)
            self._made_for = made_for
        losses.backward(self._head)
