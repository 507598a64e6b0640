"""Part of `make gpu-hardware`: the graphs of a network's convolutions that engines of cuDNN
take on this GPU, and the time of each engine. A row a graph and engine, the fused ones first."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rn50.config.schema import Run
    from rn50.train.gpu.backend import Backend, Convolving, Operations, Plan

HEADER = (
    "filter, stride and input",
    "layers",
    "graph",
    "engine",
    "workspace MB",
    "us",
    "MB",
    "GB/s",
)
ENGINES = 802
"""CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT."""
ITEM_BYTES = {0: 4, 2: 2}
"""The sizes of numbers by cudnnDataType_t."""


def rows(run: Run, batch: int, rounds: int) -> Iterator[tuple[Any, ...]]:
    """The rows of all different convolutions; engine "none" where a graph is refused."""
    from rn50.train.gpu.layers import Convolution
    from tests.gpu.hardware_body import steps_of

    steps = steps_of(run, batch)
    writer = steps.writer()
    operators: Any = steps.operators
    backend = operators.cudnn.backend
    layers = Counter(
        writer.convolving(layer)
        for layer in writer.network.layers
        if isinstance(layer, Convolution)
    )
    for graphs in (fused, plain):
        for shapes, count in layers.items():
            for name, operations in graphs(shapes):
                begin = (described(shapes), count, name)
                plans = list(every_plan(backend, operations))
                for number, plan in enumerate(plans):
                    cells = measured(steps, plan, operations, rounds)
                    yield (*begin, number, *cells)
                if not plans:
                    yield (*begin, "none", "", "", "", "")


def fused(shapes: Convolving) -> Iterator[tuple[str, Operations]]:
    from rn50.train.gpu import backend

    yield "forward, sums", backend.forward(shapes)
    for joins, adds in product((False, True), repeat=2):
        name = "data" + ", joined" * joins + ", added" * adds + ", sums"
        yield name, backend.data_back(shapes, joins=joins, adds=adds)
    yield "norm, forward, sums", backend.forward(shapes, normalises=True)
    yield "norm, filter", backend.filter_back(shapes)


def plain(shapes: Convolving) -> Iterator[tuple[str, Operations]]:
    from rn50.train.gpu import backend

    for name, kind in (
        ("forward", backend.Kind.FORWARD),
        ("data", backend.Kind.BACKWARD_DATA),
        ("filter", backend.Kind.BACKWARD_FILTER),
    ):
        x = backend._maps("x", shapes.x)
        y = backend._maps("y", shapes.y)
        yield name, (backend._convolve(kind, shapes, x, y),)


def every_plan(engines: Backend, operations: Operations) -> Iterator[Plan]:
    """Those of all deterministic engines by their numbers, each with its own choices."""
    from rn50.train.gpu import backend
    from rn50.train.gpu.backend import Type

    graph = engines._graph(operations)
    (count,) = engines._get(graph, ENGINES, Type.INT64)
    for number in range(count):
        values = (Type.DESCRIPTOR(graph), Type.INT64(number))
        try:
            engine = engines._make(backend.Kind.ENGINE, values)
            described = (Type.DESCRIPTOR(engine),)
            configuration = engines._make(backend.Kind.CONFIGURATION, described)
        except backend._RefusedError:
            continue
        yield from engines._planned([configuration])


def described(shapes: Convolving) -> str:
    out, side, _, channels = shapes.w
    return f"{side}x{side} {channels} to {out} / {shapes.stride} of {shapes.x[1]} px"


def measured(
    steps: Any, plan: Plan, operations: Operations, rounds: int
) -> tuple[float, ...]:
    """Megabytes of workspace, median microseconds, megabytes of all tensors, GB/s."""
    from tests.gpu.hardware_body import action, elapsed_ms

    writer = steps.writer()
    sizes = dict(tensors(operations))
    operands = {name: writer.tape.buffer(size) for name, size in sizes.items()}
    writer.tape.graph("graph", plan, **operands)
    operators = steps.operators
    stream = operators.module.device.stream
    ((_, call),) = writer.tape.calls(operators.shared.arena)
    times_ms = elapsed_ms([action(call, stream)] * (rounds + 1), stream)
    time_us = 1e3 * statistics.median(times_ms[1:])
    moved_bytes = sum(sizes.values())
    return (
        round(plan.workspace_bytes / 1e6, 1),
        round(time_us, 1),
        round(moved_bytes / 1e6, 1),
        round(moved_bytes / max(time_us, 1e-3) / 1e3),
    )


def tensors(part: Any) -> Iterator[tuple[str, int]]:
    """Those of operations that lie in memory, by name, with their bytes."""
    from rn50.train.gpu.backend import Described, Kind

    if not isinstance(part, Described):
        if type(part) is tuple:
            for member in part:
                yield from tensors(member)
        return
    if part.kind is not Kind.TENSOR:
        yield from tensors(part.values)
        return
    _, dtype, sides, _, _, _, number, virtual = part.values
    if not virtual.numbers[0]:
        name = number.numbers[0].to_bytes(8, "big").lstrip(b"\0").decode()
        yield name, math.prod(sides.numbers) * ITEM_BYTES[dtype.numbers[0]]
