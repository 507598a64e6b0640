"""Work for the GPU as operations of MXNet's engine: tables of calls, which step.c makes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

import mxnet as mx
from mxnet import nd

from ...host.errors import UserError
from .. import kernels
from ..operators import Graphs
from ..step_times import EngineContext, Stamp

WORDS = 30
"""Words of a call (step.c)."""
SETTINGS = 16
"""Words of the settings of a run (step.c)."""
EAGER_RUNS = 1
"""Runs of a segment before it is captured: the first run of a kernel may load its code."""
_CONNECTED = (
    "cuLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaLaunchHostFunc",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphInstantiate",
    "cudaGraphLaunch",
    "cudaGetLastError",
)
"""The functions that step.c calls, in its order."""
_NON_BLOCKING = 1  # cudaStreamNonBlocking
_GPU = 2  # Context::kGPU
_PLAIN = ctypes.c_int(0)  # FnProperty::kNormal


class Call(ctypes.Structure):
    """A call of cuDNN, or with `blocks` the launch of a kernel, laid out as in step.c."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
        ("words", ctypes.c_uint64 * WORDS),
        ("reals", ctypes.c_double * 2),
    )


class _Table(ctypes.Structure):
    """The calls of a segment and how their last run ended, laid out as in step.c."""

    _fields_ = (
        ("calls", ctypes.POINTER(Call)),
        ("count", ctypes.c_int64),
        ("settings", ctypes.c_void_p),
        ("waits", ctypes.c_int64),
        ("eager_runs", ctypes.c_int64),
        ("graph", ctypes.c_void_p),
        ("failed", ctypes.c_int64),
        ("status", ctypes.c_int64),
    )


class _Run(ctypes.Structure):
    """A run of a table with settings of its own, laid out as in step.c."""

    _fields_ = (
        ("table", ctypes.POINTER(_Table)),
        ("settings", ctypes.c_uint64 * SETTINGS),
    )


@cache
def cuda() -> ctypes.CDLL:
    """All functions of CUDA, cuDNN and NVRTC: those that set-up installed are loaded with MXNet.
    Raises UserError: MXNet is over another CUDA."""
    ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    functions = ctypes.CDLL(None)
    if not hasattr(functions, "cudnnCreate"):
        raise UserError(
            "model.step: the CUDA libraries of scripts/setup.sh --gpu for the plan expected, found "
            "an MXNet over others; use model.step=operators"
        )
    return functions


def address_of(function: Any) -> int:
    """The address of a function of a library."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def data_address(array: nd.NDArray | None) -> int:
    """The address of an array on its device; 0: there is none. It has to have its memory: that of
    `nd.zeros` and of copies to another device is taken by the operation that fills it."""
    if array is None:
        return 0
    pointer = ctypes.c_void_p()
    mx.base.check_call(
        mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer))
    )
    return pointer.value or 0


def float_bits(value: float) -> int:
    """A float32 as the lower half of a word."""
    return int.from_bytes(struct.pack("<f", value), "little")


class Device:
    """A GPU, and the stream on which all steps run one after the other."""

    def __init__(self, ctx: mx.Context) -> None:
        functions = cuda()
        self._context = EngineContext(_GPU, ctx.device_id)
        self.activate()
        stream = ctypes.c_void_p()
        status = functions.cudaStreamCreateWithFlags(
            ctypes.byref(stream), _NON_BLOCKING
        )
        checked("cudaStreamCreateWithFlags", status)
        self.stream = stream
        self._library = ctypes.CDLL(str(kernels.build(kernels.STEP_SOURCE)))
        addresses = [address_of(functions[name]) for name in _CONNECTED]
        addresses.append(stream.value or 0)  # the last member of step.c's `cuda`
        self._library.rn50_connect(_pointers(addresses))
        self._launch_status = ctypes.c_int.in_dll(self._library, "rn50_launch_status")

    def activate(self) -> None:
        """Make it the device of this thread: each has its own, which begins as the first GPU."""
        checked("cudaSetDevice", cuda().cudaSetDevice(self._context.number))

    def stamp(self, after: nd.NDArray) -> Stamp:
        """What notes when the stream has come that far, between the operations that write `after`:
        put into a stream that is being captured it would become a part of the graph."""
        operation = ctypes.cast(self._library.rn50_stamp_step, ctypes.c_void_p)
        return Stamp(operation, self._context, [after])

    def check(self) -> None:
        """Raise UserError: a launch failed."""
        checked("cuLaunchKernel", self._launch_status.value)

    def push(
        self,
        name: str,
        parameter: ctypes.Structure,
        reads: Iterable[nd.NDArray],
        writes: Iterable[nd.NDArray],
    ) -> None:
        """Enqueue a function of step.c. Raises UserError: an earlier launch failed.

        Args:
            name: of the function.
            parameter: what it is given; a copy lives until it is done.
            reads: arrays that it reads.
            writes: arrays that it writes.
        """
        self.check()
        size = ctypes.sizeof(parameter)
        # The engine frees it when the operation is done; Python's memory may be gone by then.
        memory = _C.malloc(size)
        ctypes.memmove(memory, ctypes.byref(parameter), size)
        # The engine has an array once among what an operation needs.
        write_handles = {array.handle.value for array in writes}
        read_handles = {array.handle.value for array in reads} - write_handles
        mx.base.check_call(
            mx.base._LIB.MXEnginePushSyncND(
                ctypes.cast(self._library[name], ctypes.c_void_p),
                ctypes.c_void_p(memory),
                ctypes.cast(_C.free, ctypes.c_void_p),
                ctypes.byref(self._context),
                _pointers(read_handles),
                len(read_handles),
                _pointers(write_handles),
                len(write_handles),
                ctypes.byref(_PLAIN),
                0,
                name.encode(),
            )
        )


class Segment:
    """Calls that are one operation of the engine.

    Args:
        device: where the calls run.
        calls: each with what it is called in a message.
        settings: on the device, SETTINGS words; what the kernels read that changes with each run.
        reads: all arrays that the calls read, but for those of a run.
        writes: all that they write. A view counts as the array that it shows.
        waits: is the work done when the operation is? Else somebody later waits.
    """

    def __init__(
        self,
        device: Device,
        calls: Sequence[tuple[str, Call]],
        settings: nd.NDArray | None,
        reads: Sequence[nd.NDArray],
        writes: Sequence[nd.NDArray],
        *,
        waits: bool = True,
    ) -> None:
        self._device = device
        names, entries = zip(*calls, strict=True)
        self._names = ("the step", *names)
        """The names of calls by the number that step.c gives one that failed; 0: none did."""
        self._calls = (Call * len(entries))(*entries)
        self._settings = settings
        self._reads = list(reads)
        self._writes = list(writes)
        self._table = _Table(
            calls=self._calls,
            count=len(calls),
            settings=data_address(settings),
            waits=waits,
            eager_runs=EAGER_RUNS,
        )
        _SEGMENTS.append(self)

    def __call__(
        self,
        settings: Sequence[int] = (),
        reads: Sequence[nd.NDArray] = (),
        writes: Sequence[nd.NDArray] = (),
    ) -> None:
        """Enqueue a run. Raises UserError: an earlier one failed."""
        self.check()
        run = _Run(
            table=ctypes.pointer(self._table),
            settings=(ctypes.c_uint64 * SETTINGS)(*settings),
        )
        self._device.push(
            "rn50_run", run, [*self._reads, *reads], [*self._writes, *writes]
        )

    def check(self) -> None:
        """Raise UserError: a run failed."""
        status = self._table.status  # written after the number
        checked(self._names[self._table.failed], status)

    @property
    def is_captured(self) -> bool | None:
        """Whether it runs as a graph; None: it has not run often enough to be captured."""
        # step.c counts down with each run, and captures in the one that begins with 0
        if self._table.eager_runs >= 0:
            return None
        return bool(self._table.graph)


def check_segments() -> None:
    """Raise UserError: a run of any segment failed. A segment itself tells only when it is called
    again, which after the last step before an evaluation or a checkpoint it is not."""
    for segment in _SEGMENTS:
        segment.check()


def captured_graphs() -> Graphs:
    """How many of this process's segments run as graphs."""
    states = [segment.is_captured for segment in _SEGMENTS]
    return Graphs(states.count(True), len(states) - states.count(None))


def _pointers(addresses: Collection[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(addresses))(*addresses)


def checked(name: str, status: int) -> None:
    """Raise UserError for the answer of a call that failed."""
    if status:
        raise UserError(f"{name}: success expected on the GPU, found status {status}")


_SEGMENTS: list[Segment] = []
"""All that were made: the engine may be about to walk the table of one that Python let go."""

_C = ctypes.CDLL(None)
_C.malloc.restype = ctypes.c_void_p
_C.malloc.argtypes = [ctypes.c_size_t]
