"""ResNet-50 v1.5 by layer: gradient bytes, FLOPs, activation bytes, share of a step. Pure.

The shapes are those of the stage table in `train/network/resnet.py` (stride on the 3x3, He et al.,
1512.03385) in its parameter order: convolution, gamma, beta of each unit; branch before shortcut.
A test holds both together. FLOPs count a multiply and an add; forward of a 224 px image is 8.2 G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..config.benchmark import CROP_PX, IMAGENET_CLASSES
from ..config.resnet_stages import UNITS
from .groups import gradient_groups

DEPTH = 50
WIDTH = 64
FLOPS_PER_BYTE = 70.0
"""Where a layer turns from memory- to compute-bound; achieved fp16 rates of V100: 56 TFLOP/s on
convolutions, 0.8 TB/s. Moves shares between layers only, never the length of a step."""

BATCH_NORM_PASSES_FORWARD = 3
BATCH_NORM_PASSES_BACKWARD = 5
"""Times an activation is read or written around a convolution by batch norm, ReLU and the sum."""

BATCH_NORM_EXCHANGES = 2 * 53
"""Synchronised batch norm: one exchange per layer in forward and one in backward."""


@dataclass(frozen=True)
class Tensor:
    """A trainable array: `kind` is weight, bias, gamma or beta; `layer` numbers its layer."""

    name: str
    size: int
    kind: str
    layer: int

    @property
    def is_batch_norm(self) -> bool:
        return self.kind in ("gamma", "beta")

    def gradient_bytes(self, precision: str) -> int:
        """Bytes on the wire: batch norm stays fp32 in a half-precision model."""
        half = precision in ("fp16", "bf16") and not self.is_batch_norm
        return self.size * (2 if half else 4)


@dataclass(frozen=True)
class Layer:
    """A convolution with its batch norm, or the dense layer; per image."""

    name: str
    forward_flops: int
    activation_elements: int
    """Elements of the output."""
    input_elements: int


@dataclass(frozen=True)
class Group:
    """Gradients that travel as one: bytes, and the share of backward done when the last is there.

    `ready` is a share of the part of backward that grows with the batch, `ready_fixed` of the part
    that does not (launches, small kernels: the same for every layer).
    """

    tensors: int
    n_bytes: int
    ready: float
    ready_fixed: float


@lru_cache
def resnet50() -> tuple[tuple[Layer, ...], tuple[Tensor, ...]]:
    """All 54 layers and 161 tensors of ResNet-50, first layer first."""
    layers: list[Layer] = []
    tensors = []

    def convolution(
        prefix: str, name: str, kernel: int, c_in: int, c_out: int, px: int, stride: int
    ) -> None:
        weights = kernel**2 * c_in * c_out
        out = (px // stride) ** 2
        number = len(layers)
        layers.append(
            Layer(f"{prefix}{name}", 2 * weights * out, out * c_out, c_in * px**2)
        )
        norm = name.replace("conv", "bn")
        tensors.append(Tensor(f"{prefix}{name}_weight", weights, "weight", number))
        tensors.append(Tensor(f"{prefix}{norm}_gamma", c_out, "gamma", number))
        tensors.append(Tensor(f"{prefix}{norm}_beta", c_out, "beta", number))

    channels = WIDTH
    convolution("", "conv0", 7, 3, channels, CROP_PX, 2)
    px = CROP_PX // 4
    for stage, units in enumerate(UNITS[DEPTH], start=1):
        width = WIDTH << (stage - 1)
        for unit in range(1, units + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            prefix = f"stage{stage}_unit{unit}_"
            convolution(prefix, "conv1", 1, channels, width, px, 1)
            convolution(prefix, "conv2", 3, width, width, px, stride)
            convolution(
                prefix,
                "conv3",
                1,
                width,
                4 * width,
                px // stride,
                1,
            )
            if unit == 1:
                convolution(
                    prefix,
                    "convsc",
                    1,
                    channels,
                    4 * width,
                    px,
                    stride,
                )
            px = px // stride
            channels = 4 * width
    weights = channels * IMAGENET_CLASSES
    layers.append(Layer("fc", 2 * weights, IMAGENET_CLASSES, channels))
    tensors.append(Tensor("fc_weight", weights, "weight", len(layers) - 1))
    tensors.append(Tensor("fc_bias", IMAGENET_CLASSES, "bias", len(layers) - 1))
    return tuple(layers), tuple(tensors)


def forward_cost(layer: Layer) -> float:
    """Relative time of forward: roofline of the convolution, then the passes of batch norm."""
    moved = 2 * (layer.activation_elements + layer.input_elements)
    norm = 2 * BATCH_NORM_PASSES_FORWARD * layer.activation_elements
    return max(layer.forward_flops / FLOPS_PER_BYTE, moved) + norm


def backward_cost(layer: Layer, *, first: bool) -> float:
    """Relative time of backward: gradients of inputs and weights (the first layer: weights)."""
    moved = 2 * (layer.activation_elements + layer.input_elements)
    norm = 2 * BATCH_NORM_PASSES_BACKWARD * layer.activation_elements
    return (1 if first else 2) * max(layer.forward_flops / FLOPS_PER_BYTE, moved) + norm


@lru_cache
def backward_shares() -> tuple[float, ...]:
    """Share of each layer, first layer first, in the time of backward; the sum is 1."""
    layers, _ = resnet50()
    costs = [
        backward_cost(layer, first=number == 0) for number, layer in enumerate(layers)
    ]
    return tuple(cost / math.fsum(costs) for cost in costs)


@lru_cache
def backward_fraction() -> float:
    """Share of backward in forward and backward."""
    layers, _ = resnet50()
    forward = math.fsum(map(forward_cost, layers))
    backward = math.fsum(
        backward_cost(layer, first=n == 0) for n, layer in enumerate(layers)
    )
    return backward / (forward + backward)


@lru_cache
def ready_shares() -> tuple[float, ...]:
    """Share of backward done when the gradients of each layer are there, first layer first."""
    done = 0.0
    shares = []
    for share in reversed(backward_shares()):
        done += share
        shares.append(min(done, 1.0))
    return tuple(reversed(shares))


@lru_cache
def wire_groups(rule: str, precision: str) -> tuple[Group, ...]:
    """The groups of `rule` over all tensors, in launch order; fp32 batch norm of a half-precision
    model is set aside and goes last, as one group (Fujitsu's rule and the trainer's)."""
    tensors = resnet50()[1]
    half = precision in ("fp16", "bf16")
    sizes = [tensor.gradient_bytes(precision) for tensor in tensors]
    groups = []
    for numbers in gradient_groups(rule, sizes):
        mine = [tensors[i] for i in numbers if not (half and tensors[i].is_batch_norm)]
        if mine:
            groups.append(_group(mine, precision))
    if half:
        norms = [tensor for tensor in tensors if tensor.is_batch_norm]
        groups.append(_group(norms, precision))
    return tuple(groups)


def _group(tensors: Sequence[Tensor], precision: str) -> Group:
    first = min(tensor.layer for tensor in tensors)
    layers = len(resnet50()[0])
    return Group(
        tensors=len(tensors),
        n_bytes=sum(tensor.gradient_bytes(precision) for tensor in tensors),
        ready=ready_shares()[first],
        ready_fixed=(layers - first) / layers,
    )
