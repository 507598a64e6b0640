"""The part of a page from hardware about our norm kernels: the time of each, by shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rn50.config.schema import Run

HEADER = ("kernel", "rows", "channels", "calls", "us", "MB", "GB/s")


def rows(run: Run, batch: int, rounds: int) -> Iterator[tuple[Any, ...]]:
    """The median time of a call of each kernel and shape, in the order of a step. The maps hold
    what the memory held."""
    import numpy as np
    from mxnet import nd

    from rn50.train.gpu.norms import Norms
    from tests.gpu.hardware_body import action, elapsed_ms, steps_of
    from tests.gpu.steps import force

    force(Norms.OWN)
    steps = steps_of(run, batch)
    operators: Any = steps.operators
    tape = steps.written().tape
    made_calls = tape.calls(operators.shared.arena)
    stream = operators.module.device.stream
    entries = []
    actions = []
    for entry, (_, call) in zip(tape.entries, made_calls, strict=True):
        if entry.function.startswith(("fill", "norm")):
            entries.append(entry)
            actions.append(action(call, stream))
    nd.waitall()
    rounds_ms = [elapsed_ms(actions, stream) for _ in range(rounds)]
    times_ms = defaultdict(list)
    for entry, time_ms in zip(entries, np.median(rounds_ms, axis=0), strict=True):
        if entry.function.startswith("norm"):
            times_ms[described(entry, tape.workspace)].append(time_ms)
    for (*kernel, moved), of_kernel in times_ms.items():
        time_ms = np.median(of_kernel)
        yield (
            *kernel,
            len(of_kernel),
            round(1e3 * time_ms, 1),
            round(moved / 1e6, 1),
            round(moved / time_ms / 1e6),
        )


def described(entry: Any, workspace: Any) -> tuple[str, int, int, int]:
    """A kernel's name, the rows and channels of its maps, the bytes that it is given."""
    from rn50.train.gpu.memory import Buffer
    from rn50.train.gpu.module import SOURCE, parameters

    names = parameters(SOURCE.read_text())[entry.function]
    first = names.index("int rows")
    size_bytes = 0
    for operand in entry.arguments:
        if isinstance(operand, Buffer) and operand is not workspace:
            size_bytes += operand.size_bytes
    return entry.function, *entry.arguments[first : first + 2], size_bytes
