"""cuDNN's backend: several operations that one of its engines computes in one call.

A graph of operations is described first, without cuDNN. Then cuDNN is asked for an engine that
takes it, on this GPU and for these shapes. Where it has none, the caller does without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple, TypeAlias

WORKSPACE_BYTES = 4 << 30
"""The most workspace that a plan or an algorithm may ask for."""

Shape = tuple[int, int, int, int]
"""Images, height, width, channels; of a filter: channels out, height, width, channels in."""


class DataType(IntEnum):
    """cudnnDataType_t."""

    SINGLE = 0
    HALF = 2


class Type(Enum):
    """The type of an attribute's values: its number (cudnnBackendAttributeType_t), and what holds
    one value."""

    HANDLE = (0, ctypes.c_void_p)
    DATA_TYPE = (1, ctypes.c_int)
    BOOLEAN = (2, ctypes.c_bool)
    INT64 = (3, ctypes.c_int64)
    FLOAT = (4, ctypes.c_float)
    POINTER = (6, ctypes.c_void_p)
    CONVOLUTION_MODE = (7, ctypes.c_int)
    HEURISTICS_MODE = (8, ctypes.c_int)
    NOTE = (11, ctypes.c_int)
    POINTWISE_MODE = (14, ctypes.c_int)
    DESCRIPTOR = (15, ctypes.c_void_p)
    STATISTICS_MODE = (16, ctypes.c_int)

    def __init__(self, number: int, holder: Any) -> None:
        self.number = number
        self.holder = holder

    def __call__(self, *numbers: Any) -> Numbers:
        """Values of this type."""
        return Numbers(self, numbers)


class Kind(Enum):
    """The kind of a descriptor: its number (cudnnBackendDescriptorType_t), and that of its first
    attribute (cudnnBackendAttributeName_t). The attributes of a descriptor follow each other."""

    POINTWISE = (0, 0)
    CONVOLUTION = (1, 100)
    ENGINE = (2, 1300)
    CONFIGURATION = (3, 300)
    HEURISTICS = (4, 200)
    PLAN = (5, 400)
    FORWARD = (10, 700)
    BACKWARD_FILTER = (11, 712)
    BACKWARD_DATA = (12, 706)
    POINTWISE_OPERATION = (13, 750)
    STATISTICS = (14, 770)
    GRAPH = (15, 800)
    PACK = (16, 1000)
    TENSOR = (17, 900)
    NORM_BACK = (23, 1620)  # CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR

    def __init__(self, number: int, first_attribute: int) -> None:
        self.number = number
        self.first_attribute = first_attribute


# Attributes that are read: of the heuristics, a configuration, a plan and an engine.
_RESULTS = 202
_ENGINE_OF = 300
_WORKSPACE = 402
_NOTES = 1303


class Pointwise(IntEnum):
    """cudnnPointwiseMode_t."""

    ADD = 0
    MULTIPLY = 1
    SUBTRACT = 9
    RELU = 100
    RELU_BACK = 200


class Heuristics(IntEnum):
    """cudnnBackendHeurMode_t: what cuDNN answers at once, and what it knows as a way out."""

    INSTANT = 0
    FALLBACK = 2


_SUM_AND_SQUARES = 0  # cudnnGenStatsMode_t
_CROSS_CORRELATION = 1  # cudnnConvolutionMode_t
_NONDETERMINISTIC = 4  # cudnnBackendNumericalNote_t, of which there are nine
_MAX_NOTES = 9
_MAX_CONFIGURATIONS = 32
_ALIGN_BYTES = 16  # engines with tensor cores load vectors of so many bytes


class Numbers(NamedTuple):
    """The values of an attribute."""

    type: Type
    numbers: tuple[Any, ...]


class Described(NamedTuple):
    """A descriptor before cuDNN has made it, with the values of its attributes from the first on.
    An attribute whose value is None is left out."""

    kind: Kind
    values: tuple[Any, ...]


Operations: TypeAlias = tuple[Described, ...]


class Convolving(NamedTuple):
    """A convolution's input, filter and output, in NHWC."""

    x: Shape
    w: Shape
    y: Shape
    stride: int
    padding: int


class Plan(NamedTuple):
    """How an engine computes a graph: cuDNN's descriptor, and the workspace that it needs."""

    descriptor: int
    workspace_bytes: int


class _RefusedError(Exception):
    """cuDNN does not take a descriptor; the arguments are the function and its status."""


# --- graphs --------------------------------------------------------------------------------------


def forward(shapes: Convolving, *, normalises: bool = False) -> Operations:
    """The convolution of x by w into y, and its `sum` and `squares` over each channel.

    Args:
        normalises: the input is not x but ReLU of x `scale` + `bias`, both float16.
    """
    operations, source = _normalised(shapes.x, normalises=normalises)
    y = _maps("y", shapes.y)
    channels = shapes.y[-1]
    sums = [_of_channels(name, channels) for name in ("sum", "squares")]
    mode = Type.STATISTICS_MODE(_SUM_AND_SQUARES)
    statistics = Described(Kind.STATISTICS, (mode, _single, y, *sums))
    return (*operations, _convolve(Kind.FORWARD, shapes, source, y), statistics)


def filter_back(shapes: Convolving) -> Operations:
    """The gradient w of a filter, whose input is ReLU of x `scale` + `bias`, by its output's y."""
    operations, source = _normalised(shapes.x, normalises=True)
    y = _maps("y", shapes.y)
    return (*operations, _convolve(Kind.BACKWARD_FILTER, shapes, source, y))


def data_back(
    shapes: Convolving, *, joins: bool = False, adds: bool = False
) -> Operations:
    """The data gradient of y by w through ReLU of a batch norm, and that norm's own sums.

    `norm_x` is the norm's input, of which it knows `mean` and `inverse` deviation, with `scale` and
    `bias`. Results: `masked`, the gradient of the norm's output; `d_scale` and `d_bias`; and the
    factors of the norm's data gradient `by_dy` masked + `by_x` norm_x + `plus`.

    Args:
        joins: another gradient `joined` of the same values is added first.
        adds: the norm's output and `z` were added before ReLU.
    """
    shape = shapes.x
    names = "mean inverse scale bias d_scale d_bias by_dy by_x plus"
    mean, inverse, scale, bias, *sums = (
        _of_channels(name, shape[-1]) for name in names.split()
    )
    x = _maps("norm_x", shape)
    masked = _maps("masked", shape)
    data = _between("data", shape)
    joined = [(Pointwise.ADD, _maps("joined", shape))] if joins else []
    added = [(Pointwise.ADD, _maps("z", shape))] if adds else []
    joining, gradient = _chain("g", shape, data, joined)
    steps = [
        (Pointwise.SUBTRACT, mean),
        (Pointwise.MULTIPLY, inverse),
        (Pointwise.MULTIPLY, scale),
        (Pointwise.ADD, bias),
    ]
    normalising, value = _chain("v", shape, x, steps + added)
    # second input, result and two factors, which forward operations have
    unset = (None, None, None, None)
    of_relu = (_pointwise(Pointwise.RELU_BACK), value, *unset, masked, gradient)
    of_norm = (_single, mean, inverse, scale, x, masked, *sums)
    return (
        _convolve(Kind.BACKWARD_DATA, shapes, data, _maps("y", shapes.y)),
        *joining,
        *normalising,
        Described(Kind.POINTWISE_OPERATION, of_relu),
        Described(Kind.NORM_BACK, of_norm),
    )


def _normalised(shape: Shape, *, normalises: bool) -> tuple[Operations, Described]:
    """What comes before a convolution, and its input."""
    x = _maps("x", shape)
    if not normalises:
        return (), x
    scale, bias = (
        _of_channels(name, shape[-1], DataType.HALF) for name in ("scale", "bias")
    )
    steps = [(Pointwise.MULTIPLY, scale), (Pointwise.ADD, bias), (Pointwise.RELU, None)]
    return _chain("v", shape, x, steps)


def _chain(
    name: str,
    shape: Shape,
    value: Described,
    steps: Sequence[tuple[Pointwise, Described | None]],
) -> tuple[Operations, Described]:
    """Operations element by element one after the other, and the result of the last."""
    operations = []
    for number, (mode, operand) in enumerate(steps):
        result = _between(f"{name}{number}", shape)
        parts = (_pointwise(mode), value, operand, result)
        operations.append(Described(Kind.POINTWISE_OPERATION, parts))
        value = result
    return tuple(operations), value


_single = Type.DATA_TYPE(DataType.SINGLE)


def _tensor(
    name: str, shape: Shape, dtype: DataType, *, virtual: bool = False
) -> Described:
    # cuDNN has the dimensions of all tensors in the order N, C, H, W. The strides say that the
    # channels of a pixel lie side by side.
    images, height, width, channels = shape
    strides = (height * width * channels, 1, width * channels, channels)
    values = (
        Type.INT64(_ALIGN_BYTES),
        Type.DATA_TYPE(dtype),
        Type.INT64(images, channels, height, width),
        Type.INT64(*strides),
        None,  # two of tensors whose channels come in vectors
        None,
        Type.INT64(_number(name)),
        Type.BOOLEAN(virtual),
    )
    return Described(Kind.TENSOR, values)


def _number(name: str) -> int:
    """The number of a tensor within a graph."""
    # cuDNN tells tensors apart by an int64: the letters of a name, of which seven fit.
    return int.from_bytes(name.encode(), "big")


def _maps(name: str, shape: Shape) -> Described:
    return _tensor(name, shape, DataType.HALF)


def _between(name: str, shape: Shape) -> Described:
    """Values that an engine does not write to the memory."""
    return _tensor(name, shape, DataType.SINGLE, virtual=True)


def _of_channels(
    name: str, channels: int, dtype: DataType = DataType.SINGLE
) -> Described:
    return _tensor(name, (1, 1, 1, channels), dtype)


def _pointwise(mode: Pointwise) -> Described:
    return Described(Kind.POINTWISE, (Type.POINTWISE_MODE(mode), _single))


def _convolve(kind: Kind, shapes: Convolving, x: Described, y: Described) -> Described:
    strides = Type.INT64(shapes.stride, shapes.stride)
    padding = Type.INT64(shapes.padding, shapes.padding)
    mode = Type.CONVOLUTION_MODE(_CROSS_CORRELATION)
    # dilation, strides, and the padding before and behind; then of how many dimensions they are
    sides = (Type.INT64(1, 1), strides, padding, padding, Type.INT64(2))
    how = Described(Kind.CONVOLUTION, (_single, mode, *sides))
    factors = (Type.FLOAT(1.0), Type.FLOAT(0.0))
    return Described(kind, (*factors, how, _maps("w", shapes.w), x, y))


# --- engines -------------------------------------------------------------------------------------


class Backend:
    """Plans of graphs. They live as long as the process.

    Args:
        library: which has cuDNN's functions.
        handle: of cuDNN, for the GPU that they are for.
    """

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self._handle = Type.HANDLE(handle)
        self._made: dict[Described, int] = {}
        self._plans: dict[Operations, Plan | None] = {}

    def plan(self, operations: Operations) -> Plan | None:
        """The plan of the first engine by cuDNN's heuristics; None: cuDNN has none for this GPU or
        these shapes."""
        if operations not in self._plans:
            self._plans[operations] = next(self.plans(operations), None)
        return self._plans[operations]

    def plans(self, operations: Operations) -> Iterator[Plan]:
        """The plans of all deterministic engines that take it, in cuDNN's order."""
        try:
            graph = self._graph(operations)
        except _RefusedError:
            return
        for mode in Heuristics:
            yield from self._planned(self._configurations(graph, mode))

    def pack(self, operands: dict[str, int], workspace: int) -> int:
        """A descriptor with the address of each tensor."""
        values = (
            Type.INT64(*map(_number, operands)),
            Type.POINTER(*operands.values()),
            None,  # what lies between operations stays in the engine
            Type.POINTER(workspace),
        )
        return self._make(Kind.PACK, values)

    def _graph(self, operations: Operations) -> int:
        descriptors = map(self._described, operations)
        return self._make(Kind.GRAPH, (self._handle, Type.DESCRIPTOR(*descriptors)))

    def _configurations(self, graph: int, mode: Heuristics) -> Sequence[int]:
        try:
            how = Type.HEURISTICS_MODE(mode)
            heuristics = self._make(Kind.HEURISTICS, (how, Type.DESCRIPTOR(graph)))
            # cuDNN makes none: it fills those that it is given
            empty = [self._new(Kind.CONFIGURATION) for _ in range(_MAX_CONFIGURATIONS)]
            return self._get(heuristics, _RESULTS, Type.DESCRIPTOR, empty)
        except _RefusedError:
            return ()

    def _planned(self, configurations: Sequence[int]) -> Iterator[Plan]:
        for configuration in configurations:
            try:
                if not self._is_deterministic(configuration):
                    continue
                described = (self._handle, Type.DESCRIPTOR(configuration))
                descriptor = self._make(Kind.PLAN, described)
                (size_bytes,) = self._get(descriptor, _WORKSPACE, Type.INT64)
            except _RefusedError:
                continue
            # Only a plan says how much it needs: its configuration does not.
            if size_bytes <= WORKSPACE_BYTES:
                yield Plan(descriptor, size_bytes)

    def _is_deterministic(self, configuration: int) -> bool:
        # Replicas are compared bit for bit, so no engine may add in the order of its blocks.
        empty = [self._new(Kind.ENGINE)]
        (engine,) = self._get(configuration, _ENGINE_OF, Type.DESCRIPTOR, empty)
        notes = self._get(engine, _NOTES, Type.NOTE, [0] * _MAX_NOTES)
        return _NONDETERMINISTIC not in notes

    def _described(self, described: Described) -> int:
        if described not in self._made:
            self._made[described] = self._make(*described)
        return self._made[described]

    def _make(self, kind: Kind, values: Sequence[Any]) -> int:
        """Raises _RefusedError: cuDNN does not take it."""
        descriptor = self._new(kind)
        for name, value in enumerate(values, kind.first_attribute):
            if value is None:
                continue
            if isinstance(value, Described):
                value = Type.DESCRIPTOR(self._described(value))
            self._set(descriptor, name, value)
        self._ask("Finalize", ctypes.c_void_p(descriptor))
        return descriptor

    def _new(self, kind: Kind) -> int:
        descriptor = ctypes.c_void_p()
        self._ask("CreateDescriptor", kind.number, ctypes.byref(descriptor))
        return descriptor.value or 0

    def _set(self, descriptor: int, name: int, attribute: Numbers) -> None:
        type, numbers = attribute
        self._ask(
            "SetAttribute",
            ctypes.c_void_p(descriptor),
            name,
            type.number,
            ctypes.c_int64(len(numbers)),
            (type.holder * len(numbers))(*numbers),
        )

    def _get(
        self, descriptor: int, name: int, type: Type, initial: Sequence[int] = (0,)
    ) -> Sequence[int]:
        """The values of an attribute. cuDNN writes over the initial ones: numbers, or empty
        descriptors, which it fills."""
        array = (type.holder * len(initial))(*initial)
        count = ctypes.c_int64()
        self._ask(
            "GetAttribute",
            ctypes.c_void_p(descriptor),
            name,
            type.number,
            ctypes.c_int64(len(array)),
            ctypes.byref(count),
            array,
        )
        return array[: count.value]

    def _ask(self, name: str, *arguments: Any) -> None:
        status = self._library[f"cudnnBackend{name}"](*arguments)
        if status:
            raise _RefusedError(name, status)
