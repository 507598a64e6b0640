"""The part of a page from hardware about our norm kernels: the time of each, by shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rn50.config.schema import Run

HEADER = ("kernel", "rows", "channels", "calls", "us", "MB", "GB/s")


class Shape(NamedTuple):
    kernel: str
    rows: int
    channels: int


def rows(run: Run, batch: int, rounds: int) -> Iterator[tuple[Any, ...]]:
    """Of each kernel and shape the median time of a call, in the order of a step. The maps hold
    what the memory held."""
    import numpy as np
    from mxnet import nd

    from rn50.train.gpu.memory import Buffer
    from rn50.train.gpu.module import SOURCE, parameters
    from rn50.train.gpu.norms import Norms
    from tests.gpu.hardware_body import action, elapsed_ms, steps_of
    from tests.gpu.steps import force

    force(Norms.OWN)
    steps = steps_of(run, batch)
    operators: Any = steps.operators
    writer = operators.writer(steps.net, steps.images.shape, operators.settings())
    writer.forward(training=True)
    writer.loss(steps.loss.other, operators.shared.loss_sum)
    writer.backward()
    tape = writer.tape
    made = tape.calls(operators.shared.arena)
    names = parameters(SOURCE.read_text())
    stream = operators.module.device.stream
    actions = []
    shapes = []
    bytes_of: dict[Shape, int] = {}
    for entry, (_, call) in zip(tape.entries, made, strict=True):
        if not entry.function.startswith(("fill", "norm")):
            continue
        actions.append(action(call, stream))
        found = dict(zip(names[entry.function], entry.words, strict=True))
        shape = Shape(
            entry.function, found.get("int rows", 0), found.get("int channels", 0)
        )
        shapes.append(shape)
        maps = [word for word in entry.words if isinstance(word, Buffer)]
        bytes_of[shape] = sum(
            word.size_bytes for word in maps if word is not tape.workspace
        )
    nd.waitall()
    times_ms = np.median([elapsed_ms(actions, stream) for _ in range(rounds)], axis=0)
    times = defaultdict(list)
    for shape, time_ms in zip(shapes[1:], times_ms[1:], strict=True):  # after the fill
        times[shape].append(time_ms)
    for shape, of_shape in times.items():
        time_ms = float(np.median(of_shape))
        moved = bytes_of[shape]
        yield (
            *shape,
            len(of_shape),
            round(1e3 * time_ms, 1),
            round(moved / 1e6, 1),
            round(moved / time_ms / 1e6),
        )
