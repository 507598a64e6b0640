"""A process of on_hardware.py: `python -m tests.gpu.hardware_body OPTIONS PART [ROUTE] [BATCH]`
prints the rows of a part's table. OPTIONS: those of `Options`, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import metadata
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import rn50  # noqa: F401  before MXNet, whose finder it installs

if TYPE_CHECKING:
    from rn50.config.schema import Run
    from tests.gpu.steps import Steps

SEED = 1
WARM_UP_STEPS = 3
SUM_ELEMENTS = 25_557_032
"""Gradients of ResNet-50."""
SUMS = 20
PACKAGES = (
    "mxnet-cu112",
    "nvidia-cudnn-cu11",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "horovod",
    "nvidia-dali-cuda120",
)
SHOWN_STEPS = (1, 2, 5, 10, 20)
OF_ENTRY_Y = 10
OF_ENTRY_BETA = 10
"""Words of cudnnBatchNormalizationBackwardEx and cudnnConvolutionBackwardData (gpu/writer.py)."""


class Options(NamedTuple):
    config: str
    overrides: Sequence[str]
    rounds: int
    steps: int


DEFAULTS = Options(
    "dgxh100_8",
    (),
    rounds=5,
    steps=10,
)


def row(*cells: object) -> str:
    """Of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def show(*cells: object) -> None:
    print(row(*cells), flush=True)


def is_fake() -> bool:
    return hasattr(ctypes.CDLL("libcuda.so.1"), "fakecuda_report")


# --- what the machine is --------------------------------------------------------------------------


def machine(_: Options) -> None:
    from rn50.train.gpu.cuda_driver import dotted, read_gpus

    gpus = read_gpus()
    assert gpus is not None, "a driver expected"
    if is_fake():
        show("fake", "no GPU: every time on this page is of the host and means nothing")
    show(
        "driver",
        f"{gpus.driver_release or 'unknown release'}, CUDA {dotted(gpus.driver_cuda)}",
    )
    for gpu in gpus.devices:
        show("GPU", f"{gpu.name}, compute capability {dotted(gpu.capability)}")
    for name in PACKAGES:
        try:
            show(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            show(name, "not installed")


def doctor(_: Options) -> None:
    from rn50.launch.doctor import examine

    for line in examine([]):
        show(*line)


def losses(_: Options) -> None:
    import mxnet as mx
    import numpy as np

    from rn50.launch.doctor import MOST_OFF
    from rn50.train.trial_steps import trial_losses

    expected = trial_losses(mx.cpu(), "float32")
    columns = [expected]
    distances = []
    far = []
    for dtype, limit in MOST_OFF.items():
        computed = trial_losses(mx.gpu(0), dtype, "NHWC")
        distance = np.abs(computed - expected).max() / expected[0]
        columns.append(computed)
        distances.append(f"{distance:.1e}")
        if not distance <= limit:
            far.append(dtype)
    for step in SHOWN_STEPS:
        show(step, *(f"{column[step - 1]:.5f}" for column in columns))
    show("largest difference of the first", "", *distances)
    if far:
        raise ValueError(
            f"losses at most {MOST_OFF} from the CPU's expected, not so: {far}"
        )


# --- how fast it is -------------------------------------------------------------------------------


def steps_of(run: Run, batch: int) -> Steps:
    """Training steps on random images. Raises UserError: the GPU cannot run them so."""
    import mxnet as mx
    import numpy as np
    from mxnet import nd

    from tests.gpu.steps import Steps

    rng = np.random.default_rng(SEED)
    sizes = {
        "N": batch,
        "H": run.data.crop_px,
        "W": run.data.crop_px,
        "C": 3,
    }
    shape = [sizes[axis] for axis in run.model.layout]
    images = rng.standard_normal(shape, np.float32)
    labels = rng.integers(0, run.data.classes, batch)
    ctx = mx.gpu(0)
    return Steps(
        run,
        nd.array(images, ctx),
        nd.array(labels, ctx),
    )


def seconds(times: int, action: Callable[[], object]) -> float:
    """Of one of `times` actions, waited for at the end."""
    from mxnet import nd

    begun = time.perf_counter()
    for _ in range(times):
        action()
    nd.waitall()
    return (time.perf_counter() - begun) / times


def rate(options: Options, route: str, batch: str) -> None:
    import mxnet as mx

    from rn50.config.errors import UserError
    from rn50.config.load import load
    from rn50.train.gpu import calls

    if route == "eager":
        calls.EAGER_RUNS = sys.maxsize
    step = "operators" if route == "operators" else "plan"
    run = load(options.config, [*options.overrides, f"model.step={step}"]).run
    name = f"{route}, {batch}"
    try:
        steps = steps_of(run, int(batch))
    except UserError as error:
        show(name, f"refused: {error}")
        return
    seconds(WARM_UP_STEPS, steps)
    times_s = [seconds(options.steps, steps) for _ in range(options.rounds)]
    rates = sorted(int(batch) / time_s for time_s in times_s)
    free, total = mx.context.gpu_memory_info(0)
    show(
        name,
        f"{statistics.median(rates):,.0f}",
        f"{rates[0]:,.0f}",
        f"{rates[-1]:,.0f}",
        f"{1e3 * statistics.median(times_s):.2f}",
        f"{(total - free) / 1e9:.1f}",
    )


def calls(options: Options, batch: str) -> None:
    """Each call of a step, made from here, with an event before and after it. A strided
    convolution's input counts whole."""
    import numpy as np
    from mxnet import nd

    from rn50.config.load import load
    from rn50.train.gpu.calls import SETTINGS, data_address, float_bits
    from rn50.train.gpu.plan_operators import PlanOperators

    run = load(options.config, [*options.overrides, "model.step=plan"]).run
    steps = steps_of(run, int(batch))
    seconds(WARM_UP_STEPS, steps)
    operators = steps.operators
    assert isinstance(operators, PlanOperators)
    context = steps.images.context
    loss_values = nd.array(np.zeros(int(batch)), context)
    words = np.zeros(SETTINGS, np.int64)
    words[:4] = (
        data_address(steps.images),
        data_address(steps.labels),
        data_address(loss_values),
        float_bits(1.0),
    )
    settings = nd.array(words, context, dtype="int64")
    writer = operators.writer(
        steps.net,
        steps.images.shape,
        settings,
    )
    writer.forward(training=True)
    writer.loss(steps.loss.other, operators.shared.loss_sum)
    writer.backward()
    made = [call for _, call in writer.tape.calls(operators.shared.arena)]
    nd.waitall()  # what the calls read has to be there
    stream = operators.module.device.stream
    actions = [action(call, stream) for call in made]
    rounds_ms = [elapsed_ms(actions, stream) for _ in range(options.rounds)]
    medians_ms = np.median(rounds_ms, axis=0)
    kinds: dict[str, Any] = defaultdict(lambda: np.zeros(3))
    for entry, time_ms in zip(writer.tape.entries, medians_ms, strict=True):
        name = "our kernels" if entry.blocks else entry.function.removeprefix("cudnn")
        kinds[name] += (
            1,
            moved_bytes(entry, writer.tape.workspace),
            time_ms,
        )
    kinds["all"] = sum(kinds.values())
    for name, (number, moved, time_ms) in kinds.items():
        show(
            name,
            int(number),
            f"{moved / int(batch) / 1e6:.1f}",
            f"{time_ms:.2f}",
            f"{moved / time_ms / 1e6:,.0f}",
        )
    update_s = seconds(options.steps, steps.update)
    show("update, from the host", 3, "", f"{1e3 * update_s:.2f}", "")


def elapsed_ms(
    actions: Sequence[Callable[[], int]], stream: ctypes.c_void_p
) -> list[float]:
    """Between the ends of calls on a stream: short ones wait for the host, which makes them."""
    from rn50.train.gpu.calls import checked, cuda

    events = [ctypes.c_void_p() for _ in range(len(actions) + 1)]
    for event in events:
        checked("cudaEventCreate", cuda().cudaEventCreate(ctypes.byref(event)))
    record = cuda().cudaEventRecord
    record(events[0], stream)
    for make, event in zip(actions, events[1:], strict=True):
        checked("a call of the plan", make())
        record(event, stream)
    checked("cudaStreamSynchronize", cuda().cudaStreamSynchronize(stream))
    times_ms = []
    for begin, end in pairwise(events):
        time_ms = ctypes.c_float()
        checked(
            "events",
            cuda().cudaEventElapsedTime(
                ctypes.byref(time_ms),
                begin,
                end,
            ),
        )
        times_ms.append(time_ms.value)
    for event in events:
        cuda().cudaEventDestroy(event)
    return times_ms


def action(call: Any, stream: ctypes.c_void_p) -> Callable[[], int]:
    """What makes a call, as step.c does."""
    from rn50.train.gpu.calls import WORDS, cuda
    from rn50.train.gpu.module import THREADS

    if not call.blocks:
        words_type = [ctypes.c_uint64] * WORDS
        reals_type = [ctypes.c_double] * 2
        function = ctypes.CFUNCTYPE(ctypes.c_int, *words_type, *reals_type)(
            call.function
        )
        words = [*call.words, *call.reals]
        return lambda: function(*words)
    first = ctypes.addressof(call) + type(call).words.offset
    parameters = (ctypes.c_void_p * WORDS)(*(first + 8 * n for n in range(WORDS)))
    kernel = ctypes.c_void_p(call.function)
    shape = (
        ctypes.c_uint(call.blocks),
        1,
        1,
        THREADS,
        1,
        1,
        0,
    )
    return lambda: cuda().cuLaunchKernel(
        kernel,
        *shape,
        stream,
        parameters,
        None,
    )


def moved_bytes(entry: Any, workspace: Any) -> int:
    """What a call reads and writes, by the sizes of what it is given."""
    from mxnet import nd

    from rn50.train.gpu.memory import Buffer
    from rn50.train.gpu.tape import words_of

    words = list(words_of(entry))
    if entry.function == "cudnnBatchNormalizationBackwardEx":
        words[OF_ENTRY_Y] = None  # ReLU's signs are in the reserve space
    if (
        entry.function == "cudnnConvolutionBackwardData"
        and words[OF_ENTRY_BETA] == words[1]
    ):
        words.append(words[-1])  # added to what is there
    size_bytes = 0
    for word in words:
        if isinstance(word, Buffer) and word is not workspace:
            size_bytes += word.size_bytes
        elif isinstance(word, nd.NDArray):
            size_bytes += word.size * word.dtype().itemsize
    return size_bytes


def nccl(options: Options) -> None:
    """One rank's sums, through Horovod as in a run."""
    import mxnet as mx

    from rn50.config.load import load
    from rn50.logging.timeline import Timeline
    from rn50.train.communication.communicator import Communicator
    from rn50.train.communication.connection import Connection
    from rn50.train.devices import operators_for

    overrides = [*options.overrides, "system.nodes=1", "system.ranks_per_node=1"]
    run = load(options.config, overrides).run
    operators = operators_for(run.model, mx.gpu(0))
    connection = Connection(run, Timeline(0), over_mpi=False)
    connection.begin()
    comm = Communicator(operators, connection)
    begun = time.perf_counter()
    comm.start()
    show("the first, with joining", f"{1e3 * (time.perf_counter() - begun):.0f}")
    gradients = operators.zeros(SUM_ELEMENTS, "float16")
    comm.sum_(gradients, "gradients", 0)
    each_s = seconds(SUMS, lambda: comm.sum_(gradients, "gradients", 0))
    show(f"{SUM_ELEMENTS:,} of float16", f"{1e3 * each_s:.2f}")
    comm.stop()


def main(text: str, name: str, *words: str) -> None:
    options = Options(**json.loads(text))
    parts: dict[str, Callable[..., None]] = {
        part.__name__: part for part in (machine, doctor, losses, rate, calls, nccl)
    }
    parts[name](options, *words)
    sys.stderr.flush()
    os._exit(0)  # a library that lost its GPU can hang on its way out


if __name__ == "__main__":
    main(*sys.argv[1:])
