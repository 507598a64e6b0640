"""cuDNN's descriptors, algorithms and sizes for tensors in NHWC; its calls are made by step.c."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ...host.errors import UserError
from .backend import WORKSPACE_BYTES, Backend, DataType, Shape
from .calls import Device, checked, cuda


class BatchNormOperation(IntEnum):
    """cudnnBatchNormOps_t."""

    NORM = 0
    NORM_RELU = 1
    NORM_ADD_RELU = 2


FUSED_CHANNELS = 4
"""cuDNN's batch norm does ReLU and a sum in float16 alone, where channels are a multiple of it."""
SPATIAL_PERSISTENT = 2  # cudnnBatchNormMode_t
_NHWC = 1  # cudnnTensorFormat_t
_CROSS_CORRELATION = 1  # cudnnConvolutionMode_t
_AVERAGE_WITHOUT_PADDING = 2  # cudnnPoolingMode_t
_TENSOR_CORES = 1  # cudnnMathType_t: CUDNN_TENSOR_OP_MATH
_RELU = 1  # cudnnActivationMode_t
_PROPAGATE_NAN = 1  # cudnnNanPropagation_t
_DETERMINISTIC = 1  # cudnnDeterminism_t
_MAX_ALGORITHMS = 16


# cudnnConvolutionFwdAlgoPerf_t, and the two alike
class _Performance(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math_type", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


class Operands(NamedTuple):
    """What a convolution reads and writes, each a value or its gradient."""

    input: Any
    filter: Any
    output: Any


ORDER = {
    "Forward": attrgetter("input", "filter", "output"),
    "BackwardData": attrgetter("filter", "output", "input"),
    "BackwardFilter": attrgetter("input", "output", "filter"),
}
"""The order in which cuDNN's functions take the operands, the result last, by the end of the
functions' names."""


class Algorithm(NamedTuple):
    """How a convolution is computed. `convolution`: its descriptor."""

    number: int
    convolution: int
    workspace_bytes: int


class Cudnn:
    """Descriptors of tensors of one type. They live as long as the process.

    Args:
        device: where the calls will run.
        dtype: of the tensors; sums of products are float32.
    """

    def __init__(self, device: Device, dtype: Any) -> None:
        self._library = cuda()
        self._type = DataType.HALF if np.dtype(dtype) == np.float16 else DataType.SINGLE
        self._made: dict[tuple[Any, ...], int] = {}
        handle = ctypes.c_void_p()
        self._checked("cudnnCreate", ctypes.byref(handle))
        self._checked("cudnnSetStream", handle, device.stream)
        self.handle = handle.value or 0
        """The handle of the calls, which the engine's worker makes. No other thread may use it."""
        # Sizes and algorithms are asked for by this thread while the worker runs calls.
        self._asking = ctypes.c_void_p()
        self._checked("cudnnCreate", ctypes.byref(self._asking))
        self.backend = Backend(self._library, self._asking.value or 0)
        # They live as long as this does: a call has their addresses.
        self._one = ctypes.c_float(1)
        self._zero = ctypes.c_float(0)
        self.one = ctypes.addressof(self._one)
        self.zero = ctypes.addressof(self._zero)
        """Factors of results, and of what lies there before."""

    def tensor(self, shape: Shape) -> int:
        """The descriptor of maps."""
        # N, C, H, W in this order, also where the format says that channels come last
        images, height, width, channels = shape
        settings = (_NHWC, self._type, images, channels, height, width)
        return self._descriptor("Tensor", "cudnnSetTensor4dDescriptor", settings)

    def statistics(self, channels: int) -> int:
        """The descriptor of batch norm's parameters, float32."""
        settings = (_NHWC, DataType.SINGLE, 1, channels, 1, 1)
        return self._descriptor("Tensor", "cudnnSetTensor4dDescriptor", settings)

    def filter(self, shape: Shape) -> int:
        """The descriptor of a convolution's weight."""
        out, height, width, channels = shape
        settings = (self._type, _NHWC, out, channels, height, width)
        return self._descriptor("Filter", "cudnnSetFilter4dDescriptor", settings)

    def average(self, height: int, width: int) -> int:
        """The descriptor of a pooling over whole maps."""
        # the window is the map: no padding, and strides that are never made
        settings = (_AVERAGE_WITHOUT_PADDING, _PROPAGATE_NAN, height, width, 0, 0, 1, 1)
        return self._descriptor("Pooling", "cudnnSetPooling2dDescriptor", settings)

    def relu(self) -> int:
        """The descriptor of the activation."""
        # NaN comes through, as in device.cu; the number is for other activations
        settings = (_RELU, _PROPAGATE_NAN, ctypes.c_double(0))
        return self._descriptor("Activation", "cudnnSetActivationDescriptor", settings)

    def algorithm(
        self, direction: str, descriptors: Operands, stride: int, padding: int
    ) -> Algorithm:
        """The fastest deterministic one by cuDNN's heuristics, the same on all GPUs of a kind.

        Args:
            direction: a key of ORDER.
            descriptors: of the operands.
            stride: of the convolution.
            padding: of the convolution.

        Raises:
            UserError: cuDNN has none.
        """
        # 0 is cuDNN's default, which lets float32 run as TF32 where a GPU has it
        math_type = _TENSOR_CORES if self._type == DataType.HALF else 0
        convolution = self._convolution(stride, padding, math_type)
        count = ctypes.c_int()
        answers = (_Performance * _MAX_ALGORITHMS)()
        name = f"cudnnGetConvolution{direction}Algorithm_v7"
        first, second, result = ORDER[direction](descriptors)
        operands = map(ctypes.c_void_p, (first, second, convolution, result))
        self._checked(
            name,
            self._asking,
            *operands,
            _MAX_ALGORITHMS,
            ctypes.byref(count),
            ctypes.byref(answers),
        )
        for answer in answers[: count.value]:
            # The list is sorted by the expected time.
            usable = answer.status == 0 and answer.memory <= WORKSPACE_BYTES
            if usable and answer.determinism == _DETERMINISTIC:
                # Its workspace is that of the type of mathematics with which it was listed.
                convolution = self._convolution(stride, padding, answer.math_type)
                size_bytes = self.size(
                    f"cudnnGetConvolution{direction}WorkspaceSize",
                    first,
                    second,
                    convolution,
                    result,
                    answer.algorithm,
                )
                return Algorithm(answer.algorithm, convolution, size_bytes)
        raise UserError(f"{name}: a deterministic algorithm expected, found none")

    def size(self, name: str, *arguments: int) -> int:
        """The bytes that one of cuDNN's functions for sizes answers."""
        size_bytes = ctypes.c_size_t()
        self._checked(
            name,
            self._asking,
            *map(ctypes.c_void_p, arguments),
            ctypes.byref(size_bytes),
        )
        return size_bytes.value

    def _convolution(self, stride: int, padding: int, math_type: int) -> int:
        settings = (
            padding,
            padding,
            stride,
            stride,
            1,  # dilation
            1,
            _CROSS_CORRELATION,
            DataType.SINGLE,
        )
        name = "cudnnSetConvolution2dDescriptor"
        descriptor = self._descriptor("Convolution", name, settings, math_type)
        self._checked(
            "cudnnSetConvolutionMathType", ctypes.c_void_p(descriptor), math_type
        )
        return descriptor

    def _descriptor(
        self, described: str, setter: str, settings: tuple[Any, ...], *more: int
    ) -> int:
        # Among the settings is a c_double, which has no hash of its value.
        key = (described, *more, *map(str, settings))
        if key not in self._made:
            descriptor = ctypes.c_void_p()
            self._checked(f"cudnnCreate{described}Descriptor", ctypes.byref(descriptor))
            self._checked(setter, descriptor, *settings)
            self._made[key] = descriptor.value or 0
        return self._made[key]

    def _checked(self, name: str, *arguments: Any) -> None:
        checked(name, self._library[name](*arguments))
