"""What a data sheet says of a GPU's step: two rates and the launches of its software. Pure.

step alone = launches + update bytes / memory rate + batch x (FLOP / tensor rate + bytes / memory
rate). In a CUDA graph the launches are cycles of the device. Four constants, fitted to all MLPerf
rows of data-sheet machines at once (`validate.py` fits them again with rows left out, and a test
compares).
"""

from __future__ import annotations

from typing import NamedTuple

from ..config.machine import Performance, System
from .layer_table import resnet50

OPTIMIZER_BYTES_PER_PARAMETER = 26
"""LARS: two norm passes (fp32 master, fp16 gradient), then read gradient, read and write master
and momentum, write the fp16 weight: 4 + 2 + 2 + 8 + 8 + 2."""

SIGMA_PER_IMAGE = 0.06
SIGMA_FIXED = 0.2
SIGMA_POINT = 0.03
"""Relative: how far the data sheet is off a machine's own constants, and how far entries with the
same parts are from each other. Cross-validation is flat from 0.05 to 0.12, 0.15 to 0.5 and 0.015 to
0.06."""

WORKSPACE_BYTES = 4.0e9
"""CUDA context, modules, handles, workspaces: what an H200 used beside the plan's memory."""
COPIES_OF_ACTIVATIONS = 2.09
"""The plan on an H200 took 14.0 GB at 208 images, 22.9 at 400. By this the largest published
batches (1,000 on 80 GB, 408 on 40, 236 on 24, 208 on 16) need 0.54 to 0.82 of the memory."""
BYTES_PER_PARAMETER = 12
"""fp16 weight and gradient, fp32 master and momentum."""

ENTRY_BYTES_PER_IMAGE = 2.69e8
"""Tensor reads and writes of an entry's step by the count that `bytes_per_image` is: convolutions
129 MB, batch norm with sum and ReLU in one call 134, pooling 6."""


class Sheet(NamedTuple):
    """The constants that all GPUs share."""

    flops_per_image: float
    """What counts at the tensor rate: 24.5 GFLOP of forward and backward at 0.53 of it."""
    bytes_per_image: float
    """What counts at the memory rate: the passes over activations that fusion leaves."""
    launch_cycles: float
    """The fixed part of a step that is a CUDA graph: the host takes no part in it. It is the starts
    and ends of kernels, which no batch lengthens, so it shortens with the clock: 3.6 ms on an
    A100."""
    launch_without_graphs_s: float


SHEET = Sheet(4.55e10, 2.89e8, 5.5e6, 8.51e-3)


def from_sheet(performance: Performance, sheet: Sheet) -> tuple[float, float]:
    """(fixed_s, per_image_s) of a machine with `tensor_flops_per_s`, from its data sheet alone."""
    assert performance.tensor_flops_per_s is not None
    launch_s = sheet.launch_without_graphs_s
    # the device starts the kernels of a graph by itself, at its own clock
    if performance.graphs:
        launch_s = sheet.launch_cycles / performance.clock_hz
    # what software fuses less moves more bytes than the entries, by whose steps the constant is set
    share = (
        performance.bytes_per_image or ENTRY_BYTES_PER_IMAGE
    ) / ENTRY_BYTES_PER_IMAGE
    per_image_s = (
        sheet.flops_per_image / performance.tensor_flops_per_s
        + share * sheet.bytes_per_image / performance.memory_bytes_per_s
    )
    return launch_s + update_s(performance), per_image_s


def update_s(performance: Performance) -> float:
    """LARS moves its bytes at the memory's rate."""
    return (
        OPTIMIZER_BYTES_PER_PARAMETER * _parameters() / performance.memory_bytes_per_s
    )


def memory_bytes(batch: float, precision: str) -> float:
    """Device memory that training `batch` images takes, at least: activations and state."""
    return _STATE_BYTES + batch * _image_bytes(precision)


def largest_batch(available_bytes: float, precision: str) -> int:
    """Images that a device's memory holds."""
    return max(0, int((available_bytes - _STATE_BYTES) / _image_bytes(precision)))


def beyond_memory(key: str, batch: int, system: System, precision: str) -> str | None:
    """Why the devices of a described machine do not hold a batch; None: they do.

    Args:
        key: what the message begins with.
        batch: images of a device.
        system: the machine.
        precision: fp16, fp32 or tf32.
    """
    performance = system.performance
    if performance is None or performance.memory_bytes is None:
        return None
    most_images = largest_batch(performance.memory_bytes, precision)
    if batch <= most_images:
        return None
    needed_bytes = memory_bytes(batch, precision)
    return (
        f"{key}: at most about {most_images} images in the "
        f"{performance.memory_bytes / 2**30:.0f} GiB of {system.accelerator} expected, found "
        f"{batch}, which need about {needed_bytes / 2**30:.1f} GiB"
    )


def _image_bytes(precision: str) -> float:
    layers, _ = resnet50()
    # bytes: TF32 rounds within the multiplier, and is stored as float32
    element = 4 if precision in ("fp32", "tf32") else 2
    return (
        COPIES_OF_ACTIVATIONS
        * element
        * sum(layer.activation_elements for layer in layers)
    )


def _parameters() -> int:
    return sum(tensor.size for tensor in resnet50()[1])


_STATE_BYTES = WORKSPACE_BYTES + BYTES_PER_PARAMETER * _parameters()
