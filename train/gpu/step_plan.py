"""The network's step as our own plan: tables of cuDNN's calls and our kernels, made once a batch.

Forward is one operation of MXNet's engine and backward one for each group of gradients, whose
allreduce runs under the rest. Values live in one piece of memory, used again when their last reader
is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mxnet import nd

from .calls import Device, Segment, data_address
from .layer_calls import Writer
from .tape import Arena


class Shared(NamedTuple):
    """What all plans are given."""

    device: Device
    arena: Arena
    weights: list[nd.NDArray]
    """The weights of the network that is trained, side by side, an array a type."""
    statistics: list[nd.NDArray]
    """The running means and variances of all networks. Each is an array of its own: one of
    Horovod's operations sums them, and with two views of one array it would never begin."""
    loss_sum: nd.NDArray
    """The sum of the losses since the last log point."""


class TrainingPlan:
    """Forward, and backward group by group, for images of one shape.

    Args:
        shared: what all plans are given.
        writer: of a network and a shape, on a new tape.
        off_target: the smoothed target of each class that is not the label's.
        buckets: the arrays of the gradients.
    """

    def __init__(
        self,
        shared: Shared,
        writer: Writer,
        off_target: float,
        buckets: Sequence[nd.NDArray],
    ) -> None:
        device, arena, weights, statistics, loss_sum = shared
        writer.forward(training=True)
        writer.loss(off_target, loss_sum)
        begin = len(writer.tape.entries)
        writer.backward()
        calls = writer.tape.calls(arena)
        self.generation = arena.generation
        self.forward = Segment(
            device,
            calls[:begin],
            writer.settings,
            weights,
            [writer.settings, arena.token, *statistics, loss_sum],
            waits=False,  # what follows on the stream does, and readers wait for backward's first
        )
        self.backward = []
        for backward_part in cut(writer.written, buckets):
            writes = [
                arena.token,
                loss_sum,
                *(buckets[number] for number in backward_part.buckets),
            ]
            # without settings: forward has copied those of the step
            part = calls[begin : backward_part.end]
            self.backward.append(Segment(device, part, None, weights, writes))
            begin = backward_part.end


class BackwardPart(NamedTuple):
    """A part of backward: the number of the call that follows it, and the buckets it writes to."""

    end: int
    buckets: list[int]


def cut(
    written: Sequence[tuple[int, Any]], buckets: Sequence[nd.NDArray]
) -> list[BackwardPart]:
    """Backward's parts, each ending where a bucket of gradients is complete.

    Args:
        written: calls by number, rising, and the parameter whose gradient each completes.
        buckets: the arrays into which the gradients are views.
    """
    spans = []
    for bucket in buckets:
        first = data_address(bucket)
        size_bytes = bucket.size * np.dtype(bucket.dtype).itemsize
        spans.append(range(first, first + size_bytes))

    def bucket_of(parameter: Any) -> int:
        """The number of the bucket in which a parameter's gradient lies."""
        address = data_address(parameter.grad())
        return next(n for n, span in enumerate(spans) if address in span)

    # A part ends with the call that completes a bucket. Buckets that it writes to and a later part
    # completes are among its writes as well: the engine has to know of all.
    completed = [(call, bucket_of(parameter)) for call, parameter in written]
    last_call = {bucket: call for call, bucket in completed}
    parts = []
    begin = 0
    for last in sorted(set(last_call.values())):
        touched = {bucket for call, bucket in completed if begin <= call <= last}
        parts.append(BackwardPart(last + 1, sorted(touched)))
        begin = last + 1
    return parts


class ScoringPlan:
    """Logits of images of one shape, by the running statistics."""

    def __init__(self, shared: Shared, writer: Writer, logits: nd.NDArray) -> None:
        arena = shared.arena
        self.logits = logits
        writer.put(logits)
        writer.forward(training=False)
        calls = writer.tape.calls(arena)
        self.generation = arena.generation
        reads = [*shared.weights, *shared.statistics]
        writes = [writer.settings, arena.token, logits]
        self.run = Segment(shared.device, calls, writer.settings, reads, writes)
