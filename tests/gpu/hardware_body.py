"""A process of on_hardware.py: `python -m tests.gpu.hardware_body OPTIONS PART [WORD ...]`.

Prints the rows of a part's table, a list of JSON each. OPTIONS: those of `Options`, as JSON."""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import byref, c_void_p
from functools import partial
from importlib import metadata
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rn50  # noqa: F401  before MXNet, whose finder it installs
from rn50.config.load import load
from rn50.config.schema import Run
from rn50.host.errors import UserError
from rn50.host.inherited import LOCAL_JOB, inherited
from rn50.host.programs import NoAnswer, ask
from rn50.launch.launchers import build_job

if TYPE_CHECKING:
    from rn50.train.communication.communicator import Communicator
    from tests.gpu.steps import Steps

SEED = 1
WARM_UP_STEPS = 3
LOAD_S = 2.0
"""Steps run for so long while clocks and power are asked for."""
COPY_BYTES = 256 << 20
DEVICE_TO_DEVICE = 3
THREAD_LOCAL = 1
NON_BLOCKING = 1
EMPTY_KERNELS = 1000
SPIN_NS = 1_000_000
SPIN_BLOCKS = 24
SPIN_THREADS = 640
"""A sum of NCCL takes multiprocessors away so: by blocks of so many threads and 40 KB."""
SPIN = """
extern "C" __global__ void spin(long long ns) {
  __shared__ volatile char held[40960];
  long long begun, now;
  held[threadIdx.x] = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begun < ns);
}
"""
WITHIN_BACKWARD = 0.5
"""A share of a step's time: forward takes a third."""
PACKAGES = (
    "mxnet-cu112",
    "nvidia-cudnn-cu11",
    "nvidia-nccl-cu11",
    "nvidia-nccl-cu12",
    "horovod",
    "nvidia-dali-cuda120",
)
CLOCKS = (
    "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle_reasons.active"
)
OF_ENTRY_Y = 10
OF_ENTRY_BETA = 10
"""Words of cudnnBatchNormalizationBackwardEx and cudnnConvolutionBackwardData."""


class Options(NamedTuple):
    """`folder`: of images and runs. `patience_s`: for a run."""

    config: str
    overrides: Sequence[str]
    rounds: int
    steps: int
    folder: str = "results/gpu"
    patience_s: float = 60.0

    def run(self, *overrides: str) -> Run:
        return load(self.config, [*overrides, *self.overrides]).run


DEFAULTS = Options("dgxh100_8", (), rounds=5, steps=10)


def show(*cells: object) -> None:
    print(json.dumps(cells), flush=True)


def cuda(name: str, *arguments: Any) -> None:
    """A call of CUDA that has to succeed."""
    from rn50.train.gpu import calls

    calls.checked(name, calls.cuda()[name](*arguments))


def spread(times_s: Iterable[float]) -> list[float]:
    """Median, lowest and highest in ms."""
    ms = sorted(1e3 * time_s for time_s in times_s)
    values = (statistics.median(ms), ms[0], ms[-1])
    return [round(value, 3) for value in values]


# --- what the machine is --------------------------------------------------------------------------


def machine(options: Options, batch: int) -> None:
    from rn50.train.cuda.driver import dotted, read_gpus

    gpus = read_gpus()
    assert gpus is not None, "a driver expected"
    if hasattr(ctypes.CDLL("libcuda.so.1"), "fakecuda_report"):
        show("fake", "no GPU: every time on this page is of the host and means nothing")
    release = gpus.driver_release or "unknown release"
    show("driver", f"{release}, CUDA {dotted(gpus.driver_cuda)}")
    for gpu in gpus.devices:
        show("GPU", f"{gpu.name}, compute capability {dotted(gpu.capability)}")
    for name in PACKAGES:
        try:
            show(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            show(name, "not installed")
    steps = steps_of(options.run(), batch)
    stream = steps.operators.module.device.stream
    copies_ms = elapsed_ms([copy_action(stream)] * options.steps, stream)
    show("copy", f"{2 * COPY_BYTES / statistics.median(copies_ms) / 1e6:,.0f} GB/s")
    launch = empty_graph(steps.operators.module, stream)
    graphs_ms = elapsed_ms([launch] * options.steps, stream)
    empty_us = 1e3 * statistics.median(graphs_ms) / EMPTY_KERNELS
    show("empty kernel in a graph", f"{empty_us:.2f} us")
    show(f"{CLOCKS}, under steps of {batch}", under_load(steps))


def copy_action(stream: c_void_p) -> Callable[[], None]:
    """A copy from the device's memory to the device's memory."""
    ends = [c_void_p(), c_void_p()]
    size = ctypes.c_size_t(COPY_BYTES)
    for end in ends:
        cuda("cudaMalloc", byref(end), size)
    return partial(cuda, "cudaMemcpyAsync", *ends, size, DEVICE_TO_DEVICE, stream)


def empty_graph(module: Any, stream: c_void_p) -> Callable[[], None]:
    """Launches a graph of kernels that have nothing to do."""
    graph = c_void_p()
    executable = c_void_p()
    call = module.call("fill_float", 1, (None, 0, 0.0))
    launch = action(call, stream)
    cuda("cudaStreamBeginCapture", stream, THREAD_LOCAL)
    for _ in range(EMPTY_KERNELS):
        launch()
    cuda("cudaStreamEndCapture", stream, byref(graph))
    cuda("cudaGraphInstantiate", byref(executable), graph, None, None, 0)
    return partial(cuda, "cudaGraphLaunch", executable, stream)


def under_load(steps: Steps) -> str:
    """What nvidia-smi says while the GPU has steps to do."""
    from mxnet import nd

    seconds(WARM_UP_STEPS, steps)
    for _ in range(max(1, int(LOAD_S / seconds(1, steps)))):
        steps()
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    query = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={CLOCKS}", "--format=csv"]
    try:
        clocks = ask(query).out.strip().rpartition("\n")[2]
    except NoAnswer as error:
        clocks = str(error)
    nd.waitall()
    return clocks


def doctor(_: Options) -> None:
    from rn50.launch.doctor import examine

    for line in examine([]):
        show(*line)


def nccl(_: Options) -> None:
    from rn50.launch.doctor import gpus_together
    from rn50.train.cuda.driver import read_gpus

    gpus = read_gpus()
    assert gpus is not None
    for line in gpus_together(len(gpus.devices)):
        show(*line)


def memory(options: Options, loading: str, batch: int) -> None:
    """GB that are in use after each part of a rank's start, others' as well."""
    os.environ["CUDA_MODULE_LOADING"] = loading
    import mxnet as mx

    def note(part: str) -> None:
        mx.nd.waitall()
        free, total = mx.context.gpu_memory_info(0)
        show(loading, part, round((total - free) / 1e9, 2))

    note("context")
    mx.nd.array([1], mx.gpu(0))
    note("MXNet's worker")
    steps = steps_of(options.run(), batch)
    note(f"network, {batch} images")
    steps()
    arena = steps.operators.shared.arena
    note(f"first step, with {arena.size_bytes / 1e9:.2f} of activations")
    seconds(WARM_UP_STEPS, steps)
    note("graphs")


# --- how fast it is -------------------------------------------------------------------------------


def steps_of(run: Run, batch: int, comm: Communicator | None = None) -> Steps:
    """Training steps on random images. Raises UserError: the GPU cannot run them so."""
    import mxnet as mx
    import numpy as np
    from mxnet import nd

    from tests.gpu.steps import Steps

    rng = np.random.default_rng(SEED)
    sizes = {"N": batch, "H": run.data.crop_px, "W": run.data.crop_px, "C": 3}
    shape = [sizes[axis] for axis in run.model.layout]
    images = rng.standard_normal(shape, np.float32)
    labels = rng.integers(0, run.data.classes, batch)
    ctx = mx.gpu(0)
    return Steps(run, nd.array(images, ctx), nd.array(labels, ctx), comm=comm)


def seconds(times: int, action: Callable[[], object]) -> float:
    """The time of one of `times` actions, waited for at the end. Raises UserError: one failed."""
    from mxnet import nd

    from rn50.train.gpu.calls import check_segments

    begun_s = time.perf_counter()
    for _ in range(times):
        action()
    nd.waitall()
    check_segments()
    return (time.perf_counter() - begun_s) / times


def several(options: Options, action: Callable[[], object]) -> list[float]:
    """ms of an action: median, lowest and highest of the rounds."""
    seconds(WARM_UP_STEPS, action)
    return spread(seconds(options.steps, action) for _ in range(options.rounds))


def steps(options: Options, batch: int) -> None:
    """Steps as they are chosen, then with their stamps, then through Horovod of one rank."""
    from rn50.train.step_times import StepTimes
    from tests.gpu.steps import join, nothing

    run = options.run("system.nodes=1", "system.ranks_per_node=1")
    comm = join(run)
    steps = steps_of(run, batch, comm)
    times = StepTimes(options.steps, steps.operators.stamp)
    numbers = count(1)

    def stamped(reduce: Callable[[], None] = nothing) -> None:
        times.begin(next(numbers))
        times.have_batch()
        steps(times.after, reduce)

    variants: dict[str, Callable[[], object]] = {
        "alone": steps,
        "with stamps": stamped,
        "through Horovod": lambda: stamped(comm.reduce),
    }
    for variant, action in variants.items():
        ms = several(options, action)
        rate = round(1e3 * batch / ms[0], 1)
        show(variant, batch, run.comm.cycle_ms, *ms, rate)
    comm.stop()


def ways(options: Options, batch: int) -> None:
    """Steps with each way of batch norm."""
    from rn50.train.cuda.driver import dotted, visible_gpu

    capability = dotted(visible_gpu(0).capability)
    for name in forced_norms():
        try:
            steps = steps_of(options.run(), batch)
            ms = several(options, steps)
        except UserError as error:
            show(name, batch, capability, "", "", "", str(error))
            continue
        show(name, batch, capability, *ms)
        arena = steps.operators.shared.arena
        cuda("cudaFree", c_void_p(arena.address))


def forced_norms() -> Iterator[str]:
    """The ways of the table of norms, each in force until the next is asked for."""
    try:
        norms: Any = importlib.import_module("rn50.train.gpu.norms")
    except ModuleNotFoundError:
        yield "CUDNN"
        return
    table = norms.TABLE
    for member in norms.Norms:
        rows = (norms.Row(norms.ANY, member),)
        norms.TABLE = {
            capability: gpu._replace(rows=rows) for capability, gpu in table.items()
        }
        yield member.name


def spin(options: Options, batch: int) -> None:
    """Steps while kernels of a stream with priority take multiprocessors away from backward."""
    steps = steps_of(options.run(), batch)
    seconds(WARM_UP_STEPS, steps)
    launch = spin_action(steps.operators.module.device)
    step_s = statistics.median(seconds(1, steps) for _ in range(options.steps))
    for kernels in (0, 1, 8):

        def step(kernels: int = kernels) -> None:
            steps()
            time.sleep(WITHIN_BACKWARD * step_s)
            for _ in range(kernels):
                launch()

        times_s = [seconds(1, step) for _ in range(2 * options.steps)]
        show(kernels, batch, *spread(times_s))


def spin_action(device: Any) -> Callable[[], None]:
    from rn50.train.cuda.driver import visible_gpu
    from rn50.train.gpu.module import compiled

    major, minor = visible_gpu(0).capability
    module = c_void_p()
    function = c_void_p()
    stream = c_void_p()
    highest = ctypes.c_int()
    device.activate()
    binary = compiled(SPIN, f"--gpu-architecture=compute_{major}{minor}")
    cuda("cuModuleLoadData", byref(module), binary)
    cuda("cuModuleGetFunction", byref(function), module, b"spin")
    cuda("cudaDeviceGetStreamPriorityRange", None, byref(highest))
    cuda("cudaStreamCreateWithPriority", byref(stream), NON_BLOCKING, highest)
    ns = ctypes.c_int64(SPIN_NS)
    shape = (SPIN_BLOCKS, 1, 1, SPIN_THREADS, 1, 1, 0)

    def launch() -> None:
        parameters = (c_void_p * 1)(ctypes.addressof(ns))
        cuda("cuLaunchKernel", function, *shape, stream, parameters, None)

    return launch


def calls(options: Options, batch: int) -> None:
    """Each call of a step, made from here, with an event before and after it. A strided
    convolution's input counts whole."""
    import numpy as np
    from mxnet import nd

    from rn50.train.gpu.calls import SETTINGS, data_address, float_bits

    steps = steps_of(options.run("model.step=plan"), batch)
    seconds(WARM_UP_STEPS, steps)
    operators = steps.operators
    context = steps.images.context
    loss_values = nd.array(np.zeros(batch), context)
    values = np.zeros(SETTINGS, np.int64)
    values[:4] = (
        data_address(steps.images),
        data_address(steps.labels),
        data_address(loss_values),
        float_bits(1.0),
    )
    settings = nd.array(values, context, dtype="int64")
    writer = steps.written(settings)
    stream = operators.module.device.stream
    made_calls = [call for _, call in writer.tape.calls(operators.shared.arena)]
    actions = [action(call, stream) for call in made_calls]
    nd.waitall()  # what the calls read has to be there
    rounds_ms = [elapsed_ms(actions, stream) for _ in range(options.rounds)]
    medians_ms = np.median(rounds_ms, axis=0)
    products = flops(writer)
    for entry, time_ms in zip(writer.tape.entries, medians_ms, strict=True):
        is_convolution = entry.function.startswith("cudnnConvolution")
        work = products.get(entry.layer, 0) if is_convolution else 0
        moved = moved_bytes(entry, writer.tape)
        name = "our kernels" if entry.blocks else entry.function.removeprefix("cudnn")
        row = (name, batch, entry.layer, entry.function)
        show(*row, round(1e3 * time_ms, 2), moved, work)
    update_s = seconds(options.steps, steps.update)
    show("update, from the host", batch, "", "", round(1e6 * update_s, 2), 0, 0)


def flops(writer: Any) -> dict[str, int]:
    """The FLOP of a convolution in each direction, by the name of its weight."""
    from rn50.train.gpu.layers import Convolution, Dense

    work = {}
    for layer in writer.network.layers:
        if isinstance(layer, Dense):
            layer = layer.as_convolution
        if isinstance(layer, Convolution):
            maps = writer.network.values[layer.target]
            pixels = writer.images * maps.height * maps.width
            work[layer.weight.name] = 2 * pixels * math.prod(layer.shape)
    return work


def elapsed_ms(actions: Sequence[Callable[[], Any]], stream: c_void_p) -> list[float]:
    """The times between the ends of calls on a stream: short ones wait for the host, which makes
    them. An action raises what fails, or answers its status."""
    from rn50.train.gpu.calls import checked

    events = [c_void_p() for _ in range(len(actions) + 1)]
    for event in events:
        cuda("cudaEventCreate", byref(event))
    cuda("cudaEventRecord", events[0], stream)
    for make, event in zip(actions, events[1:], strict=True):
        checked("a call", make())
        cuda("cudaEventRecord", event, stream)
    cuda("cudaStreamSynchronize", stream)
    times_ms = []
    for begin, end in pairwise(events):
        time_ms = ctypes.c_float()
        cuda("cudaEventElapsedTime", byref(time_ms), begin, end)
        times_ms.append(time_ms.value)
    for event in events:
        cuda("cudaEventDestroy", event)
    return times_ms


def action(call: Any, stream: c_void_p) -> Callable[[], Any]:
    """What makes a call, as step.c does."""
    from rn50.train.gpu.calls import WORDS
    from rn50.train.gpu.module import THREADS

    if not call.blocks:
        words_type = [ctypes.c_uint64] * WORDS
        reals_type = [ctypes.c_double] * 2
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *words_type, *reals_type)
        return partial(prototype(call.function), *call.words, *call.reals)
    first = ctypes.addressof(call) + type(call).words.offset
    parameters = (c_void_p * WORDS)(*(first + 8 * n for n in range(WORDS)))
    kernel = c_void_p(call.function)
    shape = (call.blocks, 1, 1, THREADS, 1, 1, 0)
    return partial(cuda, "cuLaunchKernel", kernel, *shape, stream, parameters, None)


def moved_bytes(entry: Any, tape: Any) -> int:
    """What a call reads and writes, by the sizes of what it is given."""
    from mxnet import nd

    from rn50.train.gpu.memory import Buffer
    from rn50.train.gpu.tape import arguments_of

    operands = list(arguments_of(entry))
    if entry.function == "cudnnBatchNormalizationBackwardEx":
        operands[OF_ENTRY_Y] = None  # ReLU's signs are in the reserve space
    if (
        entry.function == "cudnnConvolutionBackwardData"
        and operands[OF_ENTRY_BETA] == operands[1]
    ):
        operands.append(operands[-1])  # added to what is there
    size_bytes = 0
    for operand in operands:
        if isinstance(operand, Buffer) and operand is not tape.workspace:
            size_bytes += operand.size_bytes
        elif isinstance(operand, nd.NDArray):
            size_bytes += operand.size * operand.dtype().itemsize
    return size_bytes


def of_module(options: Options, name: str, batch: int) -> None:
    """The header and the rows of a module of this folder."""
    try:
        module = importlib.import_module(f"tests.gpu.{name}")
    except ModuleNotFoundError:
        show("not there", f"tests/gpu/{name}.py")
        return
    show(*module.HEADER)
    for cells in module.rows(options.run(), batch, options.rounds):
        show(*cells)


# --- whole runs -----------------------------------------------------------------------------------


def digests(options: Options, batch: int) -> None:
    """What two processes have to have in common, bit for bit."""
    from mxnet import nd

    steps = steps_of(options.run(), batch)
    losses = [steps() for _ in range(2 * options.steps)]
    nd.waitall()
    computed = {"losses": losses, "weights": steps.operators.shared.weights}
    for name, arrays in computed.items():
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(array.asnumpy())
        show(name, batch, digest.hexdigest()[:16])


def launch(options: Options, label: str, config: str, *overrides: str) -> None:
    """`rn50 launch`, and what its last log point says of its steps."""
    folder = Path(options.folder) / "runs" / re.sub(r"\W+", "_", label)
    overrides = (*overrides, f"system.results={folder}", *options.overrides)
    show(label, *launched(options, ["launch", config, *overrides], folder))


def stop_and_resume(options: Options, ranks: int) -> None:
    """An epoch of `quick` on several GPUs, then another one from its checkpoint."""
    folder = Path(options.folder) / "runs" / "quick"
    images = f"data.path={folder}/images"
    arguments = [
        "system.device=gpu",
        f"system.ranks_per_node={ranks}",
        f"system.results={folder}",
        images,
        "data.synthetic={}",
        "limits.epochs=1",
        "log.every=4 steps",
        f"batch.per_rank={-(-64 // ranks)}",
        *options.overrides,
    ]
    show(
        "quick, one epoch", *launched(options, ["launch", "quick", *arguments], folder)
    )
    arguments = ["launch", "--resume", str(newest(folder)), images, "limits.epochs=2"]
    show("quick, resumed", *launched(options, arguments, folder))


def newest(folder: Path) -> Path:
    return max(folder.glob("*/2*/"), key=os.path.getmtime)


def launched(
    options: Options, arguments: Sequence[str], folder: Path
) -> Iterator[object]:
    """The exit code, images/s, and ms of a step, of input and of what sums expose in it."""
    program = str(Path(sys.executable).with_name("rn50"))
    environment = inherited(os.environ, LOCAL_JOB)
    done = ask([program, *arguments], options.patience_s, environment)
    result = re.search("^RESULT (.*)", done.out, re.M)
    if result is None:
        raise UserError(f"{done.said()}: rn50 {' '.join(arguments)}")
    lines = (newest(folder) / "metrics.jsonl").read_text().splitlines()
    records = {record["kind"]: record for record in map(json.loads, lines)}
    yield done.code
    yield round(records["train"]["recent_images_per_s"], 1)
    for name in ("step", "input", "reduction"):
        yield round(records["steps"][f"{name}_p50_ms"], 2)
    yield result[1][:120]


PARTS: dict[str, Callable[..., None]] = {
    part.__name__: part
    for part in (machine, memory, doctor, steps, ways, spin, calls, of_module, digests)
}
"""They compute here, in the environment of a run's rank."""
COMMANDS: dict[str, Callable[..., None]] = {
    part.__name__: part for part in (nccl, launch, stop_and_resume)
}
"""They start ranks, which have it."""


def main(options_json: str, name: str, *arguments: str) -> None:
    options = Options(**json.loads(options_json))
    values = [
        int(argument) if argument.isdigit() else argument for argument in arguments
    ]
    if name in PARTS:
        job, _ = build_job(options.run(), "gloo", ())
        os.environ.update(job.environment)
    (PARTS | COMMANDS)[name](options, *values)
    sys.stderr.flush()
    os._exit(0)  # a library that lost its GPU can hang on its way out


if __name__ == "__main__":
    main(*sys.argv[1:])
