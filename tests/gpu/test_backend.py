"""Graphs of cuDNN's backend on the fake: their numbers against NumPy's, and what is refused.

They prove how descriptors are wired, shapes, pointers and numbers. Which graphs the real cuDNN
takes and how fast they are, a card has to say (hardware_engines.py).
"""

from collections.abc import Iterator
from ctypes import byref, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50.train.gpu import backend
from rn50.train.gpu.backend import Backend, Convolving, Operations, Plan
from tests.gpu.cuda import Cuda
from tests.gpu.hardware_engines import every_plan, plain

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
IMAGES = 2
PX = 6
IN = 16
OUT = 24
TOLERANCE = 4e-3
"""Float16 has 11 bits; sums are of some hundred products."""
BAD_PARAM = 3
NOT_INITIALIZED = 1
TENSOR = 17
UNSOUND = "calls that are not deterministic"
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def cuda(fake: Path) -> Iterator[Cuda]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKECUDA_LAZY", "1")
        yield Cuda(fake / "libcuda.so.1")


@pytest.fixture
def engines(cuda: Cuda) -> Backend:
    return Backend(cuda.library, cuda.cudnn.value or 0)


def shapes_of(
    side: int, stride: int, channels: int = IN, filters: int = OUT
) -> Convolving:
    padding = side // 2
    px = (PX + 2 * padding - side) // stride + 1
    return Convolving(
        (IMAGES, PX, PX, channels),
        (filters, side, side, channels),
        (IMAGES, px, px, filters),
        stride,
        padding,
    )


KERNELS = [shapes_of(3, 1), shapes_of(1, 1), shapes_of(3, 2), shapes_of(1, 2)]


def half(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float16)


def single(channels: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, channels).astype(np.float32)


def results_of(
    cuda: Cuda,
    engines: Backend,
    operations: Operations,
    inputs: Arrays,
    outputs: Arrays,
) -> Arrays:
    """What a graph writes. `outputs`: arrays of their shapes and types."""
    plan = engines.plan(operations)
    assert plan is not None
    report_before = cuda.report()
    operands = on_device(cuda, inputs | outputs)
    execute(cuda, engines, plan, operands)
    results = {}
    for name, array in outputs.items():
        result = cuda.get(operands[name], array.shape, array.dtype.name)
        results[name] = result.astype(np.float64)
    after = cuda.report()
    assert after.errors == report_before.errors
    assert UNSOUND not in after.counts
    return results


def on_device(cuda: Cuda, arrays: Arrays) -> dict[str, c_void_p]:
    return {name: cuda.put(array) for name, array in arrays.items()}


def arrays_of(shapes: Convolving) -> Arrays:
    """A convolution's tensors."""
    return {"x": half(*shapes.x), "w": half(*shapes.w), "y": half(*shapes.y)}


def execute(
    cuda: Cuda, engines: Backend, plan: Plan, operands: dict[str, c_void_p]
) -> None:
    space = cuda.allocate(plan.workspace_bytes + 1)
    addresses = {name: address.value or 0 for name, address in operands.items()}
    pack = engines.pack(addresses, space.value or 0)
    status = cuda.status(
        "cudnnBackendExecute", cuda.cudnn, c_void_p(plan.descriptor), c_void_p(pack)
    )
    assert status == 0, cuda.report().errors[-1]


def patches_of(x: np.ndarray, shapes: Convolving) -> np.ndarray:
    """Images, height, width, channels, then the filter's sides."""
    pad = (shapes.padding, shapes.padding)
    padded = np.pad(x.astype(np.float64), ((0, 0), pad, pad, (0, 0)))
    view: Any = np.lib.stride_tricks.sliding_window_view
    windows = view(padded, shapes.w[1:3], (1, 2))
    return np.asarray(windows[:, :: shapes.stride, :: shapes.stride])


def convolved(x: np.ndarray, w: np.ndarray, shapes: Convolving) -> np.ndarray:
    return np.einsum("nhwcrs,krsc->nhwk", patches_of(x, shapes), w.astype(np.float64))


def data_gradient(dy: np.ndarray, w: np.ndarray, shapes: Convolving) -> np.ndarray:
    _, height, width, _ = shapes.x
    pad = shapes.padding
    dx = np.zeros((IMAGES, height + 2 * pad, width + 2 * pad, shapes.x[-1]))
    _, side, _, _ = shapes.w
    for row, column in np.ndindex(*dy.shape[1:3]):
        top = row * shapes.stride
        left_px = column * shapes.stride
        slope = dy[:, row, column].astype(np.float64)
        part = np.einsum("nk,krsc->nrsc", slope, w)
        dx[:, top : top + side, left_px : left_px + side] += part
    return dx[:, pad : pad + height, pad : pad + width]


def check(actual: np.ndarray, expected: np.ndarray) -> None:
    off = np.abs(actual - expected).max() / np.abs(expected).max()
    assert off <= TOLERANCE


def add_norm(inputs: Arrays) -> np.ndarray:
    """The norm that a convolution applies; what it gives."""
    inputs["scale"] = half(IN)
    inputs["bias"] = half(IN)
    scaled = inputs["x"].astype(np.float64) * inputs["scale"]
    return np.maximum(scaled + inputs["bias"], 0)


@pytest.mark.parametrize("normalises", [False, True])
@pytest.mark.parametrize("shapes", KERNELS, ids=str)
def test_a_convolution_gives_the_sums_of_its_output(
    shapes: Convolving, normalises: bool, cuda: Cuda, engines: Backend
) -> None:
    inputs = arrays_of(shapes)
    empty = {"y": inputs.pop("y")}
    empty["sum"] = single(OUT)
    empty["squares"] = single(OUT)
    source = inputs["x"]
    if normalises:
        source = add_norm(inputs)
    operations = backend.forward(shapes, normalises=normalises)
    results = results_of(cuda, engines, operations, inputs, empty)
    y = convolved(source, inputs["w"], shapes)
    check(results["y"], y)
    check(results["sum"], y.sum((0, 1, 2)))
    check(results["squares"], (y**2).sum((0, 1, 2)))


@pytest.mark.parametrize("shapes", KERNELS, ids=str)
def test_a_filters_gradient_applies_the_norm_before_it(
    shapes: Convolving, cuda: Cuda, engines: Backend
) -> None:
    inputs = arrays_of(shapes)
    empty = {"w": inputs.pop("w")}
    source = add_norm(inputs)
    operations = backend.filter_back(shapes)
    results = results_of(cuda, engines, operations, inputs, empty)
    expected = np.einsum("nhwcrs,nhwk->krsc", patches_of(source, shapes), inputs["y"])
    check(results["w"], expected)


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("shapes", KERNELS, ids=str)
def test_a_data_gradient_gives_the_sums_and_factors_of_the_norm(
    shapes: Convolving, adds: bool, joins: bool, cuda: Cuda, engines: Backend
) -> None:
    inputs = arrays_of(shapes)
    inputs["norm_x"] = inputs.pop("x")
    inputs["mean"] = single(IN) - 1
    inputs["inverse"] = single(IN)
    inputs["scale"] = single(IN)
    inputs["bias"] = single(IN) - 1
    dy = data_gradient(inputs["y"], inputs["w"], shapes)
    x = inputs["norm_x"].astype(np.float64)
    unit = (x - inputs["mean"]) * inputs["inverse"]
    value = unit * inputs["scale"] + inputs["bias"]
    if joins:
        inputs["joined"] = half(*shapes.x)
        dy += inputs["joined"]
    if adds:
        inputs["z"] = half(*shapes.x)
        value += inputs["z"]
    masked = np.where(value > 0, dy, 0)
    empty = {"masked": half(*shapes.x)}
    for name in ("d_scale", "d_bias", "by_dy", "by_x", "plus"):
        empty[name] = single(IN)
    operations = backend.data_back(shapes, joins=joins, adds=adds)
    results = results_of(cuda, engines, operations, inputs, empty)
    check(results["masked"], masked)
    d_scale = (masked * unit).sum((0, 1, 2))
    d_bias = masked.sum((0, 1, 2))
    check(results["d_scale"], d_scale)
    check(results["d_bias"], d_bias)
    rows = IMAGES * PX * PX
    away = masked - (d_bias + unit * d_scale) / rows
    dx = results["by_dy"] * results["masked"] + results["by_x"] * x + results["plus"]
    check(dx, inputs["scale"] * inputs["inverse"] * away)


@pytest.mark.parametrize("capability", ["7.0", "7.5", "8.0", "8.6", "8.9", "9.0"])
def test_engines_are_those_of_ampere_and_hopper(
    capability: str, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs of 8.0, 8.6 and 9.0 alone take them; each has plain convolutions."""
    monkeypatch.setenv("FAKECUDA_CAPABILITY", capability)
    engines = Backend(cuda.library, cuda.cudnn.value or 0)
    shapes = shapes_of(3, 1)
    graphs = [
        backend.forward(shapes),
        backend.forward(shapes, normalises=True),
        backend.data_back(shapes),
        backend.filter_back(shapes),
    ]
    is_taken = {engines.plan(graph) is not None for graph in graphs}
    assert is_taken == {capability in ("8.0", "8.6", "9.0")}
    for _, graph in plain(shapes):
        assert engines.plan(graph) is not None


@pytest.mark.parametrize(
    "shapes",
    [shapes_of(7, 2, 4), shapes_of(1, 1, 12), shapes_of(1, 1, IN, 12)],
    ids=str,
)
def test_shapes_that_no_engine_takes_are_refused(
    shapes: Convolving, cuda: Cuda, engines: Backend
) -> None:
    """Channels by eight, filters below 32 places; nothing is wrong with asking."""
    errors_before = cuda.report().errors
    assert engines.plan(backend.forward(shapes)) is None
    assert engines.plan(backend.data_back(shapes)) is None
    assert cuda.report().errors == errors_before


def test_every_engine_that_is_planned_is_deterministic(
    cuda: Cuda, engines: Backend
) -> None:
    _, (_, graph), _ = plain(shapes_of(3, 1))
    by_heuristics = list(engines.plans(graph))
    by_number = list(every_plan(engines, graph))
    assert len(by_heuristics) == len(by_number) == 1
    operands = on_device(cuda, arrays_of(shapes_of(3, 1)))
    for plan in (*by_heuristics, *by_number):
        execute(cuda, engines, plan, operands)
    assert UNSOUND not in cuda.report().counts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": 8}, "is not aligned to 16 bytes"),
        ({"y": 1 << 20}, "its allocation"),
        ({"sum": None}, "the pack has no pointer"),
    ],
)
def test_a_pack_with_a_wrong_pointer_is_refused(
    change: dict[str, int | None], message: str, cuda: Cuda, engines: Backend
) -> None:
    shapes = shapes_of(3, 1)
    plan = engines.plan(backend.forward(shapes))
    assert plan is not None
    arrays = arrays_of(shapes)
    arrays["sum"] = single(OUT)
    arrays["squares"] = single(OUT)
    operands = on_device(cuda, arrays)
    for name, offset in change.items():
        address = operands.pop(name)
        if offset is not None:
            operands[name] = c_void_p((address.value or 0) + offset)
    count_before = len(cuda.report().errors)
    with pytest.raises(AssertionError):
        execute(cuda, engines, plan, operands)
    assert any(message in error for error in cuda.report().errors[count_before:])


def made(cuda: Cuda, kind: int) -> c_void_p:
    descriptor = c_void_p()
    cuda.call("cudnnBackendCreateDescriptor", kind, byref(descriptor))
    return descriptor


def set_number(cuda: Cuda, descriptor: c_void_p, name: int, kind: int) -> int:
    number: Any = byref(c_int64(1))
    return cuda.status(
        "cudnnBackendSetAttribute", descriptor, name, kind, c_int64(1), number
    )


def test_attributes_are_held_against_their_kinds(cuda: Cuda) -> None:
    tensor = made(cuda, TENSOR)
    assert set_number(cuda, tensor, 906, 3) == 0
    assert set_number(cuda, tensor, 906, 5) == BAD_PARAM
    assert set_number(cuda, tensor, 700, 3) == BAD_PARAM
    assert cuda.status("cudnnBackendFinalize", tensor) == BAD_PARAM
    pointwise = made(cuda, 0)
    assert set_number(cuda, pointwise, 0, 14) == 0
    assert set_number(cuda, pointwise, 1, 1) == 0
    assert cuda.status("cudnnBackendFinalize", pointwise) == 0
    assert set_number(cuda, pointwise, 0, 14) == NOT_INITIALIZED
