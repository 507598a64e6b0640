"""cuDNN's backend: several operations that one of its engines computes in one call.

A graph of operations is described first, without cuDNN. Then cuDNN is asked for an engine that
takes it, on this GPU and for these shapes. Where it has none, the caller does without.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

SINGLE = 0
HALF = 2
"""cudnnDataType_t."""
WORKSPACE_BYTES = 4 << 30
"""The most of a plan or of an algorithm."""

Shape = tuple[int, int, int, int]
"""Images, height, width, channels; of a filter: channels out, height, width, channels in."""

_HANDLE = 0
_DATA_TYPE = 1
_BOOLEAN = 2
_INT64 = 3
_FLOAT = 4
_POINTER = 6
_CONVOLUTION_MODE = 7
_HEURISTICS_MODE = 8
_NOTE = 11
_POINTWISE_MODE = 14
_DESCRIPTOR = 15
_STATISTICS_MODE = 16
"""cudnnBackendAttributeType_t."""
_C_TYPES: dict[int, Any] = {
    _HANDLE: ctypes.c_void_p,
    _BOOLEAN: ctypes.c_bool,
    _INT64: ctypes.c_int64,
    _FLOAT: ctypes.c_float,
    _POINTER: ctypes.c_void_p,
    _DESCRIPTOR: ctypes.c_void_p,
}
"""Of the others: an enumeration's."""

_POINTWISE = 0
_CONVOLUTION = 1
_ENGINE = 2
_CONFIGURATION = 3
_HEURISTICS = 4
_PLAN = 5
FORWARD = 10
BACKWARD_FILTER = 11
BACKWARD_DATA = 12
_POINTWISE_OPERATION = 13
_STATISTICS = 14
_GRAPH = 15
_PACK = 16
TENSOR = 17
_NORM_BACK = 23
"""cudnnBackendDescriptorType_t."""

_FIRST_ATTRIBUTE = {
    _POINTWISE: 0,
    _CONVOLUTION: 100,
    _HEURISTICS: 200,
    _CONFIGURATION: 300,
    _PLAN: 400,
    FORWARD: 700,
    BACKWARD_DATA: 706,
    BACKWARD_FILTER: 712,
    _POINTWISE_OPERATION: 750,
    _STATISTICS: 770,
    _GRAPH: 800,
    TENSOR: 900,
    _PACK: 1000,
    _ENGINE: 1300,
    _NORM_BACK: 1620,
}
"""cudnnBackendAttributeName_t: those of a descriptor follow each other."""
_RESULTS = 202
_ENGINE_OF = 300
_WORKSPACE = 402
_NOTES = 1303

_ADD = 0
_MULTIPLY = 1
_SUBTRACT = 9
_RELU = 100
_RELU_BACK = 200
"""cudnnPointwiseMode_t."""
_INSTANT = 0
_FALLBACK = 2
"""cudnnBackendHeurMode_t."""
_NONDETERMINISTIC = 4
_MOST_NOTES = 9
_MOST_CONFIGURATIONS = 32
_ALIGN_BYTES = 16


class Numbers(NamedTuple):
    """The value of an attribute."""

    type: int
    numbers: tuple[Any, ...]


class Described(NamedTuple):
    """A descriptor before cuDNN has made it. `values`: of its attributes from the first on; None is
    left out."""

    kind: int
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
    """A graph that an engine takes: its descriptor, and the memory that it needs meanwhile."""

    descriptor: int
    workspace_bytes: int


class _RefusedError(Exception):
    """By cuDNN, with a status."""


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
    mode = Numbers(_STATISTICS_MODE, (0,))
    statistics = Described(_STATISTICS, (mode, _single, y, *sums))
    return (*operations, _convolve(FORWARD, shapes, source, y), statistics)


def filter_back(shapes: Convolving) -> Operations:
    """The gradient w of a filter, whose input is ReLU of x `scale` + `bias`, by its output's y."""
    operations, source = _normalised(shapes.x, normalises=True)
    y = _maps("y", shapes.y)
    return (*operations, _convolve(BACKWARD_FILTER, shapes, source, y))


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
    joined = [(_ADD, _maps("joined", shape))] * joins
    added = [(_ADD, _maps("z", shape))] * adds
    joining, gradient = _chain("g", shape, data, joined)
    steps = [(_SUBTRACT, mean), (_MULTIPLY, inverse), (_MULTIPLY, scale), (_ADD, bias)]
    normalising, value = _chain("v", shape, x, steps + added)
    unset = (None,) * 4
    of_relu = (_pointwise(_RELU_BACK), value, *unset, masked, gradient)
    of_norm = (_single, mean, inverse, scale, x, masked, *sums)
    return (
        _convolve(BACKWARD_DATA, shapes, data, _maps("y", shapes.y)),
        *joining,
        *normalising,
        Described(_POINTWISE_OPERATION, of_relu),
        Described(_NORM_BACK, of_norm),
    )


def _normalised(shape: Shape, *, normalises: bool) -> tuple[Operations, Described]:
    """What comes before a convolution, and its input."""
    x = _maps("x", shape)
    scale, bias = (_of_channels(name, shape[-1], HALF) for name in ("scale", "bias"))
    steps = [(_MULTIPLY, scale), (_ADD, bias), (_RELU, None)]
    return _chain("v", shape, x, steps * normalises)


def _chain(
    name: str,
    shape: Shape,
    value: Described,
    steps: Sequence[tuple[int, Described | None]],
) -> tuple[Operations, Described]:
    """Operations element by element one after the other, and the result of the last."""
    operations = []
    for number, (mode, operand) in enumerate(steps):
        result = _between(f"{name}{number}", shape)
        parts = (_pointwise(mode), value, operand, result)
        operations.append(Described(_POINTWISE_OPERATION, parts))
        value = result
    return tuple(operations), value


_single = Numbers(_DATA_TYPE, (SINGLE,))


def _int64(*numbers: int) -> Numbers:
    return Numbers(_INT64, numbers)


def _tensor(name: str, shape: Shape, dtype: int, *, virtual: bool = False) -> Described:
    images, height, width, channels = shape
    strides = (height * width * channels, 1, width * channels, channels)
    values = (
        _int64(_ALIGN_BYTES),
        Numbers(_DATA_TYPE, (dtype,)),
        _int64(images, channels, height, width),
        _int64(*strides),
        None,
        None,
        _int64(_number(name)),
        Numbers(_BOOLEAN, (virtual,)),
    )
    return Described(TENSOR, values)


def _number(name: str) -> int:
    """Of a tensor, within a graph."""
    return int.from_bytes(name.encode(), "big")


def _maps(name: str, shape: Shape) -> Described:
    return _tensor(name, shape, HALF)


def _between(name: str, shape: Shape) -> Described:
    """Values that an engine does not write to the memory."""
    return _tensor(name, shape, SINGLE, virtual=True)


def _of_channels(name: str, channels: int, dtype: int = SINGLE) -> Described:
    return _tensor(name, (1, 1, 1, channels), dtype)


def _pointwise(mode: int) -> Described:
    return Described(_POINTWISE, (Numbers(_POINTWISE_MODE, (mode,)), _single))


def _convolve(kind: int, shapes: Convolving, x: Described, y: Described) -> Described:
    strides = _int64(shapes.stride, shapes.stride)
    padding = _int64(shapes.padding, shapes.padding)
    mode = Numbers(_CONVOLUTION_MODE, (1,))
    sides = (_int64(1, 1), strides, padding, padding)
    how = Described(_CONVOLUTION, (_single, mode, *sides, _int64(2)))
    one = Numbers(_FLOAT, (1.0,))
    zero = Numbers(_FLOAT, (0.0,))
    return Described(kind, (one, zero, how, _maps("w", shapes.w), x, y))


# --- engines -------------------------------------------------------------------------------------


class Backend:
    """Plans of graphs. They live as long as the process.

    Args:
        library: which has cuDNN's functions.
        handle: of cuDNN, for the GPU that they are for.
    """

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self._handle = Numbers(_HANDLE, (handle,))
        self._made: dict[Described, int] = {}
        self._plans: dict[Operations, Plan | None] = {}

    def plan(self, operations: Operations) -> Plan | None:
        """That of the first engine by cuDNN's heuristics; None: cuDNN has none for this GPU or
        these shapes."""
        if operations not in self._plans:
            self._plans[operations] = next(self.plans(operations), None)
        return self._plans[operations]

    def plans(self, operations: Operations) -> Iterator[Plan]:
        """Those of all deterministic engines that take it, in the order of cuDNN's heuristics."""
        try:
            graph = self._graph(operations)
        except _RefusedError:
            return
        for mode in (_INSTANT, _FALLBACK):
            yield from self._planned(self._configurations(graph, mode))

    def pack(self, operands: dict[str, int], workspace: int) -> int:
        """A descriptor with the address of each tensor."""
        values = (
            _int64(*map(_number, operands)),
            Numbers(_POINTER, tuple(operands.values())),
            None,
            Numbers(_POINTER, (workspace,)),
        )
        return self._make(_PACK, values)

    def _graph(self, operations: Operations) -> int:
        made = map(self._described, operations)
        return self._make(_GRAPH, (self._handle, Numbers(_DESCRIPTOR, tuple(made))))

    def _configurations(self, graph: int, mode: int) -> Sequence[int]:
        try:
            how = Numbers(_HEURISTICS_MODE, (mode,))
            heuristics = self._make(_HEURISTICS, (how, _made(graph)))
            found = [self._new(_CONFIGURATION) for _ in range(_MOST_CONFIGURATIONS)]
            results = (ctypes.c_void_p * len(found))(*found)
            count = self._get(heuristics, _RESULTS, _DESCRIPTOR, results, len(found))
        except _RefusedError:
            return ()
        return found[:count]

    def _planned(self, configurations: Sequence[int]) -> Iterator[Plan]:
        for configuration in configurations:
            try:
                if not self._is_deterministic(configuration):
                    continue
                descriptor = self._make(_PLAN, (self._handle, _made(configuration)))
                size_bytes = ctypes.c_int64()
                self._get(descriptor, _WORKSPACE, _INT64, ctypes.byref(size_bytes))
            except _RefusedError:
                continue
            if size_bytes.value <= WORKSPACE_BYTES:
                yield Plan(descriptor, size_bytes.value)

    def _is_deterministic(self, configuration: int) -> bool:
        engine = ctypes.c_void_p(self._new(_ENGINE))
        self._get(configuration, _ENGINE_OF, _DESCRIPTOR, ctypes.byref(engine))
        notes = (ctypes.c_int * _MOST_NOTES)()
        number = engine.value or 0
        count = self._get(number, _NOTES, _NOTE, notes, _MOST_NOTES)
        return _NONDETERMINISTIC not in notes[:count]

    def _described(self, described: Described) -> int:
        if described not in self._made:
            self._made[described] = self._make(*described)
        return self._made[described]

    def _make(self, kind: int, values: Sequence[Any]) -> int:
        """Raises _RefusedError: cuDNN does not take it."""
        descriptor = self._new(kind)
        for name, value in enumerate(values, _FIRST_ATTRIBUTE[kind]):
            if value is None:
                continue
            if isinstance(value, Described):
                value = _made(self._described(value))
            self._set(descriptor, name, value)
        self._ask("Finalize", ctypes.c_void_p(descriptor))
        return descriptor

    def _new(self, kind: int) -> int:
        descriptor = ctypes.c_void_p()
        self._ask("CreateDescriptor", kind, ctypes.byref(descriptor))
        return descriptor.value or 0

    def _set(self, descriptor: int, name: int, value: Numbers) -> None:
        c_type = _C_TYPES.get(value.type, ctypes.c_int)
        array = (c_type * len(value.numbers))(*value.numbers)
        count = ctypes.c_int64(len(array))
        self._ask(
            "SetAttribute", ctypes.c_void_p(descriptor), name, value.type, count, array
        )

    def _get(
        self, descriptor: int, name: int, kind: int, to: Any, most: int = 1
    ) -> int:
        """How many there are. `to`: gets them."""
        count = ctypes.c_int64()
        self._ask(
            "GetAttribute",
            ctypes.c_void_p(descriptor),
            name,
            kind,
            ctypes.c_int64(most),
            ctypes.byref(count),
            to,
        )
        return count.value

    def _ask(self, name: str, *arguments: Any) -> None:
        status = self._library[f"cudnnBackend{name}"](*arguments)
        if status:
            raise _RefusedError(name, status)


def _made(descriptor: int) -> Numbers:
    return Numbers(_DESCRIPTOR, (descriptor,))
