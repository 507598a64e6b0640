"""What the other tests rely on in the fake and would not notice: that it refuses what CUDA refuses,
that its streams are lazy and its new memory is no number, and what it counts.

What it computes stands against the CPU's losses in test_plan.py.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_double, c_float, c_int, c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu.cuda import (
    NOT_SUPPORTED,
    THREAD_LOCAL,
    TO_HOST,
    Cuda,
    Tensor,
    compile_ptx,
    one,
)

Elsewhere = Callable[[Callable[[], Any]], Any]

RNG = np.random.default_rng(0)
SHAPE = (2, 8, 6, 6)
SIZE_BYTES = 2 * int(np.prod(SHAPE))
SPACE_BYTES = 1 << 20


@pytest.fixture(scope="module")
def cuda(fake: Path, emulated: Path) -> Iterator[Cuda]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKECUDA_LAZY", "1")
        patch.setenv("FAKECUDA_KERNELS", str(emulated))
        yield Cuda(fake / "libcuda.so.1")


def errors_of(cuda: Cuda, action: Callable[[], object]) -> list[str]:
    """What the fake finds wrong in an action."""
    count_before = len(cuda.report().errors)
    action()
    return cuda.report().errors[count_before:]


def counts_of(cuda: Cuda, action: Callable[[], object]) -> dict[str, int]:
    """What an action asks of the device."""
    counts_before = cuda.report().counts
    action()
    counts = {}
    for name, count in cuda.report().counts.items():
        counts[name] = count - counts_before.get(name, 0)
    return counts


class Layer:
    """A convolution of 3 x 3 in float16 whose filter is the identity, and its tensors."""

    def __init__(self, cuda: Cuda, layout: str = "NHWC") -> None:
        weights = np.zeros((8, 8, 3, 3))
        weights[:, :, 1, 1] = np.eye(8)
        self.cuda = cuda
        self.x = cuda.tensor(SHAPE, "float16", layout)
        self.y = cuda.tensor(SHAPE, "float16", layout)
        self.weights = cuda.tensor_of(weights, "float16", layout)
        self.filter = self.weights.filter_descriptor()
        self.convolution = cuda.convolution(stride=1, pad=1)
        self.space = cuda.allocate(SPACE_BYTES)

    def forward(
        self,
        target: c_void_p,
        *,
        beta: float = 0,
        algorithm: int = 1,
        space_bytes: int = SPACE_BYTES,
    ) -> int:
        """cuDNN's answer."""
        return self.cuda.status(
            "cudnnConvolutionForward",
            self.cuda.cudnn,
            one(1),
            *self.x.both,
            self.filter,
            self.weights.place,
            self.convolution,
            algorithm,
            self.space,
            c_size_t(space_bytes),
            one(beta),
            self.y.descriptor,
            target,
        )

    def to_filter(self, space_bytes: int) -> int:
        return self.cuda.status(
            "cudnnConvolutionBackwardFilter",
            self.cuda.cudnn,
            one(1),
            *self.x.both,
            *self.y.both,
            self.convolution,
            1,
            self.space,
            c_size_t(space_bytes),
            one(0),
            self.filter,
            self.weights.place,
        )


BN_RELU = 1
BN_ADD_RELU = 2
PERSISTENT = 2
EPSILON = 1e-3


class BatchNorm:
    """A batch norm with ReLU by cuDNN's functions with Ex, and its tensors."""

    def __init__(self, cuda: Cuda, operation: int = BN_RELU) -> None:
        self.cuda = cuda
        self.mode = PERSISTENT
        self.operation = operation
        self.relu = cuda.relu()
        self.statistics = cuda.made("Tensor")
        self.parameters = [cuda.put(np.ones(8, "float32")) for _ in range(4)]
        self.saved = [cuda.put(np.ones(8, "float32")) for _ in range(2)]
        self.space = (cuda.allocate(SPACE_BYTES), c_size_t(SPACE_BYTES))
        self.reserve = cuda.allocate(SPACE_BYTES)
        self.reserve_bytes = SPACE_BYTES
        self.place()

    def place(
        self, dtype: str = "float16", layout: str = "NHWC", channels: int = 8
    ) -> None:
        """Have tensors of a type, layout and number of channels."""

        def tensor() -> Tensor:
            return self.cuda.tensor_of(np.ones((2, channels, 6, 6)), dtype, layout)

        self.x = tensor()
        self.y = tensor()
        self.z = tensor()
        x = self.x.descriptor
        name = "cudnnDeriveBNTensorDescriptor"
        self.cuda.call(name, self.statistics, x, PERSISTENT)

    def forward(self) -> int:
        """cuDNN's answer."""
        return self._status(
            "cudnnBatchNormalizationForwardTrainingEx",
            one(1),
            one(0),
            *self.x.both,
            *self._addend(),
            *self.y.both,
            self.statistics,
            *self.parameters[:2],
            c_double(0.25),
            *self.parameters[2:],
            c_double(EPSILON),
        )

    def backward(self) -> int:
        return self._status(
            "cudnnBatchNormalizationBackwardEx",
            *(one(1), one(0)) * 2,
            *self.x.both,
            *self.y.both,
            *self.y.both,
            *self._addend(),
            *self.x.both,
            self.statistics,
            *self.parameters,
            c_double(EPSILON),
        )

    def _addend(self) -> tuple[c_void_p | None, c_void_p | None]:
        return self.z.both if self.operation == BN_ADD_RELU else (None, None)

    def _status(self, name: str, *arguments: Any) -> int:
        return self.cuda.status(
            name,
            self.cuda.cudnn,
            self.mode,
            self.operation,
            *arguments,
            *self.saved,
            self.relu,
            *self.space,
            self.reserve,
            c_size_t(self.reserve_bytes),
        )


# --- what is refused ---


def short_workspace(cuda: Cuda) -> int:
    return Layer(cuda).to_filter(space_bytes=0)


def misaligned(cuda: Cuda) -> int:
    address = cuda.allocate(1 << 16).value
    assert address is not None
    return Layer(cuda).forward(c_void_p(address + 8))


def winograd_of_nhwc(cuda: Cuda) -> int:
    layer = Layer(cuda)
    return layer.forward(layer.y.place, algorithm=6)


def short_output(cuda: Cuda) -> int:
    return Layer(cuda).forward(cuda.allocate(100))


def fused(cuda: Cuda, **tensors: Any) -> int:
    norm = BatchNorm(cuda)
    norm.place(**tensors)
    return norm.forward()


def fused_in_another_mode(cuda: Cuda) -> int:
    norm = BatchNorm(cuda)
    norm.mode = 1
    return norm.forward()


def short_reserve(cuda: Cuda) -> int:
    norm = BatchNorm(cuda, BN_ADD_RELU)
    norm.reserve_bytes = 512  # without ReLU's bits
    return norm.forward()


def reserve_of_another_call(cuda: Cuda) -> int:
    first = BatchNorm(cuda)
    second = BatchNorm(cuda)
    assert first.forward() == second.forward() == second.backward() == 0
    second.reserve = first.reserve
    assert second.backward() == 0
    # it is seen when the call runs
    return cuda.status("cudaStreamSynchronize", cuda.stream)


@pytest.mark.parametrize(
    ("refused", "status", "reason"),
    [
        (short_workspace, 3, "workspace of"),
        (misaligned, 3, "not aligned to 16"),
        (winograd_of_nhwc, NOT_SUPPORTED, "algorithm 6"),
        (short_output, 3, "passes the end of its allocation"),
        (partial(fused, layout="NCHW"), NOT_SUPPORTED, "with ReLU it takes"),
        (partial(fused, dtype="float32"), NOT_SUPPORTED, "with ReLU it takes"),
        (partial(fused, channels=6), NOT_SUPPORTED, "with ReLU it takes"),
        (fused_in_another_mode, NOT_SUPPORTED, "with ReLU it takes"),
        (short_reserve, 3, "reserve space of"),
        (reserve_of_another_call, 0, "the reserve space of another call"),
    ],
)
def test_what_cudnn_refuses(
    refused: Callable[[Cuda], int], status: int, reason: str, cuda: Cuda
) -> None:
    answers = []
    (error,) = errors_of(cuda, lambda: answers.append(refused(cuda)))
    assert answers == [status]
    assert reason in error


# --- kernels of our own, contexts, streams ---

INVALID_CONTEXT = 201
INVALID_HANDLE = 400
CONTEXT_IS_DESTROYED = 709


class Kernels:
    """Our own kernels, loaded as a driver loads them."""

    def __init__(self, cuda: Cuda, ptx: bytes) -> None:
        self.cuda = cuda
        module = c_void_p()
        self.function = c_void_p()
        cuda.call("cuModuleLoadData", byref(module), ptx)
        cuda.call("cuModuleGetFunction", byref(self.function), module, b"scale")

    def scale(
        self,
        array: c_void_p,
        factor: float,
        *,
        size: int = 1,
        stream: c_void_p | None = None,
        **shape: int,
    ) -> int:
        """Its blocks and threads are 1, where `shape` says no other."""
        arguments = (array, c_int(size), c_float(factor))
        buffers = [ctypes.create_string_buffer(bytes(a), 8) for a in arguments]
        addresses = [ctypes.addressof(buffer) for buffer in buffers]
        return self.cuda.status(
            "cuLaunchKernel",
            self.function,
            *(shape.get(side, 1) for side in ("gx", "gy", "gz", "bx", "by", "bz")),
            shape.get("shared", 0),
            stream or self.cuda.stream,
            (c_void_p * len(buffers))(*addresses),
            None,
        )


@pytest.fixture(scope="module")
def our_kernels(cuda: Cuda, kernels: str, site: Path) -> Kernels:
    return Kernels(cuda, compile_ptx(site, kernels, (8, 0)))


def test_our_own_kernels_run_when_their_stream_is_waited_for(
    cuda: Cuda, our_kernels: Kernels
) -> None:
    array = cuda.put(np.arange(100, dtype="float32"))
    ran = "kernels of our own that ran"
    count_before = cuda.report().counts.get(ran, 0)
    assert our_kernels.scale(array, 0.5, size=100, gx=3, bx=64) == 0
    assert cuda.report().counts.get(ran, 0) == count_before
    assert cuda.get(array, (100,), "float32").tolist() == [0.5 * i for i in range(100)]
    assert cuda.report().counts[ran] == count_before + 1


@pytest.mark.parametrize(("flags", "expected"), [(0, 7), (1, 0)])
def test_the_default_stream_waits_for_those_that_block_it(
    flags: int, expected: int, cuda: Cuda
) -> None:
    stream = c_void_p()
    cuda.call("cudaStreamCreateWithFlags", byref(stream), flags)
    address = cuda.put(np.zeros(1, "uint8"))
    cuda.call("cudaMemsetAsync", address, 7, c_size_t(1), stream)
    value = ctypes.c_ubyte()
    cuda.call("cudaMemcpy", byref(value), address, c_size_t(1), TO_HOST)
    assert value.value == expected


def test_new_memory_is_no_number(cuda: Cuda) -> None:
    assert np.isnan(cuda.tensor(SHAPE, "float16", "NHWC").read()).all()


@pytest.mark.parametrize(
    "shape", [{"bx": 1025}, {"shared": 49153}, {"gy": 65536}, {"gx": 0}]
)
def test_launches_beyond_the_limits_are_refused(
    shape: dict[str, Any], cuda: Cuda, our_kernels: Kernels
) -> None:
    assert our_kernels.scale(cuda.allocate(400), 0.5, **shape) == 1
    assert "scale: launched as" in cuda.report().errors[-1]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elsewhere]:
    """Runs a function in a new thread, which has no context; the machine has two devices."""
    monkeypatch.setenv("FAKECUDA_DEVICES", "3")
    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result()


def test_a_kernel_in_a_thread_of_another_context_is_refused(
    cuda: Cuda, our_kernels: Kernels, elsewhere: Elsewhere
) -> None:
    launch = partial(our_kernels.scale, cuda.allocate(400), 1)
    assert elsewhere(launch) == INVALID_CONTEXT  # none
    elsewhere(lambda: cuda.call("cudaSetDevice", 2))
    assert elsewhere(launch) == CONTEXT_IS_DESTROYED  # not yet made
    elsewhere(lambda: cuda.call("cudaFree", None))
    assert elsewhere(launch) == INVALID_CONTEXT  # another's
    elsewhere(lambda: cuda.call("cudaSetDevice", 0))
    assert elsewhere(launch) == 0


def test_streams_and_handles_stay_on_their_device(
    cuda: Cuda, our_kernels: Kernels, elsewhere: Elsewhere
) -> None:
    other_stream = c_void_p()
    elsewhere(lambda: cuda.call("cudaSetDevice", 1))
    elsewhere(lambda: cuda.call("cudaStreamCreateWithFlags", byref(other_stream), 1))
    event = c_void_p()
    cuda.call("cudaEventCreateWithFlags", byref(event), 0)
    address = cuda.scratch
    memset = cuda.status("cudaMemsetAsync", address, 0, c_size_t(8), other_stream)
    assert memset == INVALID_HANDLE
    assert our_kernels.scale(address, 1, stream=other_stream) == INVALID_HANDLE
    assert cuda.status("cudaEventRecord", event, other_stream) == INVALID_HANDLE
    # CUDNN_STATUS_MAPPING_ERROR
    assert cuda.status("cudnnSetStream", cuda.cudnn, other_stream) == 7
    layer = Layer(cuda)
    # CUDNN_STATUS_EXECUTION_FAILED
    assert elsewhere(lambda: layer.forward(layer.y.place)) == 8
    error = cuda.report().errors[-1]
    assert "a handle of device 0 in a thread whose device is 1" in error


# --- graphs ---

CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
CAPTURE_IMPLICIT = 906
ILLEGAL_ADDRESS = 700


class Graph:
    """What a function asks of the stream, captured."""

    def __init__(self, cuda: Cuda, asks: Callable[[], int]) -> None:
        self.cuda = cuda
        graph = c_void_p()
        self.executable = c_void_p()
        cuda.call("cudaStreamBeginCapture", cuda.stream, THREAD_LOCAL)
        self.answer = asks()
        self.ended = cuda.status("cudaStreamEndCapture", cuda.stream, byref(graph))
        if self.ended == 0:
            pointer = byref(self.executable)
            cuda.call("cudaGraphInstantiate", pointer, graph, None, None, 0)

    def launch(self) -> int:
        return self.cuda.status("cudaGraphLaunch", self.executable, self.cuda.stream)


def test_a_graph_runs_its_calls_again_on_what_memory_holds_then(
    cuda: Cuda, our_kernels: Kernels
) -> None:
    layer = Layer(cuda)
    factor = cuda.put(np.full(1, 3, "float32"))
    times: list[int] = []
    note = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: times.append(1))

    def asks() -> int:
        size = c_size_t(SIZE_BYTES)
        cuda.call("cudaMemsetAsync", layer.y.place, 0, size, cuda.stream)
        cuda.call("cudaLaunchHostFunc", cuda.stream, note, None)
        return our_kernels.scale(factor, 2) + layer.forward(layer.y.place, beta=1)

    graphs: list[Graph] = []
    counts = counts_of(cuda, lambda: graphs.append(Graph(cuda, asks)))
    (graph,) = graphs
    assert (graph.answer, graph.ended, times) == (0, 0, [])
    # nothing ran
    assert not any(counts[name] for name in ("launches", "cudnn calls", "tensor bytes"))
    for turn in (1, 2):
        x = RNG.normal(size=SHAPE).astype("float16")
        source = cuda.tensor_of(x, "float16", "NHWC")
        size = c_size_t(SIZE_BYTES)
        on_device = 3
        ends = (layer.x.place, source.place)
        cuda.call("cudaMemcpyAsync", *ends, size, on_device, cuda.stream)
        counts = counts_of(cuda, graph.launch)
        np.testing.assert_array_equal(layer.y.read(), x)
        assert cuda.get(factor, (1,), "float32").tolist() == [3 * 2**turn]
        assert times == [1] * turn
        assert (counts["launches"], counts["graph launches"]) == (1, 1)
        assert (counts["kernels"], counts["cudnn calls"]) == (1, 0)
        # beta reads the output
        assert counts["tensor bytes"] == 3 * SIZE_BYTES + 2 * 8 * 8 * 9


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("cudaMalloc", lambda _: (byref(c_void_p()), c_size_t(8)), CAPTURE_UNSUPPORTED),
        ("cudaStreamSynchronize", lambda cuda: (cuda.stream,), CAPTURE_UNSUPPORTED),
        ("cudaDeviceSynchronize", lambda _: (), CAPTURE_UNSUPPORTED),
        (
            "cudaMemsetAsync",
            lambda cuda: (cuda.scratch, 0, c_size_t(8), None),
            CAPTURE_IMPLICIT,
        ),
    ],
)
def test_what_a_capture_does_not_allow_spoils_it(
    name: str, arguments: Callable[[Cuda], tuple[Any, ...]], answer: int, cuda: Cuda
) -> None:
    graph = Graph(cuda, lambda: cuda.status(name, *arguments(cuda)))
    assert (graph.answer, graph.ended) == (answer, CAPTURE_INVALIDATED)
    cuda.call("cudaStreamSynchronize", cuda.stream)  # the stream is as before


def test_another_thread_may_take_memory_during_a_capture_and_not_wait_for_its_stream(
    cuda: Cuda, elsewhere: Elsewhere
) -> None:
    allowed = Graph(cuda, lambda: elsewhere(lambda: cuda.allocate(8)) is None)
    assert allowed.ended == 0
    wait = partial(cuda.status, "cudaStreamSynchronize", cuda.stream)
    spoilt = Graph(cuda, lambda: elsewhere(wait))
    assert (spoilt.answer, spoilt.ended) == (CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED)


def test_a_handle_within_a_call_of_another_thread_is_refused(cuda: Cuda) -> None:
    """cuDNN forbids it."""
    layer = Layer(cuda)
    algorithms = (c_int * 64)()
    count = c_int()
    question = (
        "cudnnGetConvolutionForwardAlgorithm_v7",
        cuda.cudnn,
        layer.x.descriptor,
        layer.filter,
        layer.convolution,
        layer.y.descriptor,
        1,
        byref(count),
        byref(algorithms),
    )
    assert cuda.status(*question) == 0
    holder = ctypes.cast(cuda.cudnn, ctypes.POINTER(ctypes.c_long))
    holder[2] = 1  # as fake::Handle notes a thread
    try:
        errors = errors_of(cuda, lambda: cuda.status(*question))
        assert layer.forward(layer.y.place) != 0
    finally:
        holder[2] = 0
    assert errors == ["a handle is used by two threads at a time"]


def test_a_call_that_is_to_fail_fails_once(cuda: Cuda) -> None:
    layer = Layer(cuda)
    for name, fail in (
        ("cudnnConvolutionForward", lambda: layer.forward(layer.y.place)),
        (
            "cudaStreamSynchronize",
            lambda: cuda.status("cudaStreamSynchronize", cuda.stream),
        ),
    ):
        cuda.library.fakecuda_fail_next(name.encode())
        assert fail() != 0
        assert fail() == 0


def test_what_is_written_behind_an_allocation_ends_the_process(
    fake: Path, root: Path
) -> None:
    program = (
        "import ctypes, sys; from tests.gpu.cuda import Cuda; "
        "place = Cuda(sys.argv[1]).allocate(1000).value; "
        "ctypes.memset(place, 0, 1024); print('within', flush=True); "
        "ctypes.memset(place, 0, 1025)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(fake / "libcuda.so.1")],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
    )
    assert done.stdout == "within\n"
    assert done.returncode == -signal.SIGSEGV


def test_a_graph_whose_memory_was_given_back_is_refused(cuda: Cuda) -> None:
    address = cuda.allocate(64)
    memset = ("cudaMemsetAsync", address, 0, c_size_t(64), cuda.stream)
    graph = Graph(cuda, lambda: cuda.status(*memset))
    assert graph.launch() == 0
    cuda.call("cudaFree", address)
    assert graph.launch() == ILLEGAL_ADDRESS


def test_a_driver_that_has_no_graphs_says_so(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_GRAPHS", "0")
    begin = ("cudaStreamBeginCapture", cuda.stream, THREAD_LOCAL)
    answers = []
    # nobody's fault
    assert errors_of(cuda, lambda: answers.append(cuda.status(*begin))) == []
    assert answers == [CAPTURE_UNSUPPORTED]


# --- counts ---


def test_bytes_of_batch_norms_are_those_of_kernels_that_read_once(cuda: Cuda) -> None:
    norm = BatchNorm(cuda, BN_ADD_RELU)
    mask_bytes = SIZE_BYTES // 16
    forward = counts_of(cuda, norm.forward)
    assert forward["tensor bytes"] == 3 * SIZE_BYTES + mask_bytes
    assert forward["cudnn calls"] == 1
    backward = counts_of(cuda, norm.backward)
    assert backward["tensor bytes"] == 4 * SIZE_BYTES + mask_bytes


@pytest.mark.parametrize(
    ("layout", "capability", "conversions"),
    [("NCHW", "7.0", 2), ("NHWC", "7.0", 0), ("NCHW", "6.0", 0)],
)
def test_tensors_that_cudnn_turns_for_its_tensor_cores_are_counted(
    layout: str,
    capability: str,
    conversions: int,
    cuda: Cuda,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_CAPABILITY", capability)
    layer = Layer(cuda, layout)
    counts = counts_of(cuda, lambda: layer.forward(layer.y.place))
    assert counts.get("layout conversions", 0) == conversions
    moved = 2 * SIZE_BYTES * conversions
    assert counts["tensor bytes"] == 2 * SIZE_BYTES + 2 * 8 * 8 * 9 + moved


def test_host_waits(cuda: Cuda) -> None:
    event = c_void_p()
    cuda.call("cudaEventCreateWithFlags", byref(event), 0)

    def wait() -> None:
        cuda.call("cudaEventRecord", event, cuda.stream)
        cuda.call("cudaEventSynchronize", event)
        cuda.call("cudaStreamSynchronize", cuda.stream)
        cuda.call("cudaDeviceSynchronize")

    assert counts_of(cuda, wait)["host waits"] == 3


NOT_COMPUTED = """
import sys
from tests.gpu.cuda import Cuda
from tests.gpu.test_fake import Layer
cuda = Cuda(sys.argv[1])
layer = Layer(cuda)
assert layer.forward(layer.y.place) == 0
assert not layer.y.read().any()  # as memory was taken: zeros
assert layer.forward(cuda.allocate(100)) == 3
assert cuda.report().counts["tensor bytes"] > 0
"""


def test_without_computing_calls_are_checked_and_counted(
    fake: Path, root: Path
) -> None:
    subprocess.run(
        [sys.executable, "-c", NOT_COMPUTED, str(fake / "libcuda.so.1")],
        env=os.environ | {"FAKECUDA_COMPUTE": "0"},
        cwd=root,
        check=True,
    )
