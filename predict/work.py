"""What a run computes and sends: FLOPs, their share of the machine's peak, gradient bytes. Pure."""

from __future__ import annotations

from ..config.machine import System
from ..config.schema import Data, Model
from .hardware import uses_sheet
from .layer_table import resnet


def training_flops(model: Model, data: Data) -> int | None:
    """FLOPs of forward and backward of one image, a multiply and an add being two, recomputation
    not counted. Backward takes twice as many as forward, since it has the gradients of inputs and
    of weights: the usual count of MFU. None: not counted for this network."""
    if model.network != "resnet":
        return None
    layers, _ = resnet(model, data.crop_px, data.classes)
    # forward once, and backward twice as much
    return 3 * sum(layer.forward_flops for layer in layers)


def gradient_bytes(model: Model, data: Data, precision: str) -> int | None:
    """Bytes that a rank's gradients have on the wire in a step. None: not counted for this
    network. `precision`: fp16, fp32 or tf32 (`predict.precision_of`)."""
    if model.network != "resnet":
        return None
    _, tensors = resnet(model, data.crop_px, data.classes)
    return sum(tensor.gradient_bytes(precision) for tensor in tensors)


def utilisation(
    flops_per_s: float, ranks: int, system: System, precision: str
) -> float | None:
    """Model FLOPs utilisation (MFU): the share of the devices' peak. None: no data sheet gives the
    peak in this precision.

    Args:
        flops_per_s: the rate of all ranks.
        ranks: how many there are, a device each.
        system: the machine.
        precision: fp16, fp32 or tf32.
    """
    performance = system.performance
    if performance is None or not uses_sheet(performance, precision):
        return None
    assert performance.tensor_flops_per_s is not None
    return flops_per_s / (ranks * performance.tensor_flops_per_s)
