"""ResNet v1.5 by layer: gradient bytes, FLOPs, activation bytes, share of a step. Pure.

The shapes are those of the stage table in `train/network/resnet.py` (stride on the 3x3, He et al.,
1512.03385) in its parameter order: convolution, gamma, beta of each unit; branch before shortcut.
A test holds both together. FLOPs count a multiply and an add; forward of a 224 px image is 8.2 G.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..config.benchmark import CROP_PX, IMAGENET_CLASSES
from ..config.groups import gradient_groups
from ..config.resnet_stages import BASIC, BASIC_DEPTHS, BOTTLENECK, UNITS
from ..config.schema import Model

FLOPS_PER_BYTE = 70.0
"""The intensity at which a layer turns from memory- to compute-bound; achieved fp16 rates of V100:
56 TFLOP/s on convolutions, 0.8 TB/s. It moves shares between layers only, never the length of a
step."""

BATCH_NORM_PASSES_FORWARD = 3
BATCH_NORM_PASSES_BACKWARD = 5
"""Times an activation is read or written around a convolution by batch norm, ReLU and the sum."""

BATCH_NORM_EXCHANGES = 2 * 53
"""Synchronised batch norm: one exchange per layer in forward and one in backward."""


@dataclass(frozen=True)
class Tensor:
    """A trainable array; `layer` numbers its layer."""

    name: str
    size: int
    layer: int

    @property
    def is_batch_norm(self) -> bool:
        """Whether the layer is a batch norm."""
        return self.name.endswith(("gamma", "beta"))

    def gradient_bytes(self, precision: str) -> int:
        """Bytes on the wire: batch norm stays fp32 in a half-precision model."""
        if precision == "fp16" and not self.is_batch_norm:
            return self.size * 2
        return self.size * 4


@dataclass(frozen=True)
class Layer:
    """A convolution with its batch norm, or the dense layer; per image."""

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

    n_bytes: int
    ready: float
    ready_fixed: float


@lru_cache
def resnet(
    model: Model, crop_px: int, classes: int
) -> tuple[tuple[Layer, ...], tuple[Tensor, ...]]:
    """All layers and tensors of a residual network, first layer first."""
    layers: list[Layer] = []
    tensors = []

    def convolution(
        name: str, kernel: int, c_in: int, c_out: int, px: int, stride: int = 1
    ) -> int:
        """Add the layer; return the height of its output."""
        weights = kernel**2 * c_in * c_out
        out_px = math.ceil(px / stride)
        number = len(layers)
        layer = Layer(
            # each weight takes part in a multiply and an add at every pixel of the output
            forward_flops=2 * weights * out_px**2,
            activation_elements=out_px**2 * c_out,
            input_elements=c_in * px**2,
        )
        layers.append(layer)
        tensors.append(Tensor(f"{name}_weight", weights, number))
        if model.norm == "batch":
            norm = name.replace("conv", "bn")
            tensors.append(Tensor(f"{norm}_gamma", c_out, number))
            tensors.append(Tensor(f"{norm}_beta", c_out, number))
        return out_px

    channels = model.width
    if model.stem == "imagenet":
        px = convolution("conv0", 7, 3, channels, crop_px, stride=2)
        px = math.ceil(px / 2)  # pooling
    else:
        px = convolution("conv0", 3, 3, channels, crop_px)
    block = BASIC if model.depth in BASIC_DEPTHS else BOTTLENECK
    # v1.5: the 3x3 has the stride, where v1 had it in the first 1x1
    strided = [kernel for kernel, _ in block].index(3)
    for prefix, width, stride in _units(model):
        c_in = channels
        out_px = px
        for number, (kernel, multiple) in enumerate(block):
            out_px = convolution(
                f"{prefix}_conv{number + 1}",
                kernel,
                c_in,
                width * multiple,
                out_px,
                stride if number == strided else 1,
            )
            c_in = width * multiple
        # a shortcut is a convolution only where the shapes differ
        if stride != 1 or channels != c_in:
            convolution(f"{prefix}_convsc", 1, channels, c_in, px, stride)
        px = out_px
        channels = c_in
    weights = channels * classes
    dense = len(layers)
    layers.append(Layer(2 * weights, classes, channels))
    tensors.append(Tensor("fc_weight", weights, dense))
    tensors.append(Tensor("fc_bias", classes, dense))
    return tuple(layers), tuple(tensors)


def _units(model: Model) -> Iterator[tuple[str, int, int]]:
    """(name, width, stride) of each residual unit."""
    for stage, units in enumerate(UNITS[model.depth], start=1):
        for unit in range(1, units + 1):
            stride = 2 if unit == 1 and stage > 1 else 1
            yield f"stage{stage}_unit{unit}", model.width << (stage - 1), stride


def resnet50() -> tuple[tuple[Layer, ...], tuple[Tensor, ...]]:
    """All 54 layers and 161 tensors of ResNet-50 v1.5 at 224 px."""
    return resnet(Model(), CROP_PX, IMAGENET_CLASSES)


def _convolution_cost(layer: Layer) -> float:
    """Relative time of the convolution alone, by its roofline."""
    moved = 2 * (layer.activation_elements + layer.input_elements)  # bytes in float16
    return max(layer.forward_flops / FLOPS_PER_BYTE, moved)


def forward_cost(layer: Layer) -> float:
    """Relative time of forward: the convolution, then the passes of batch norm."""
    norm = 2 * BATCH_NORM_PASSES_FORWARD * layer.activation_elements
    return _convolution_cost(layer) + norm


@lru_cache
def backward_costs() -> tuple[float, ...]:
    """Relative time of each layer's backward, first layer first: gradients of inputs and weights
    (the first layer: weights), and the passes of batch norm."""
    layers, _ = resnet50()
    costs = []
    for number, layer in enumerate(layers):
        # nobody needs the gradient of the images
        gradients = 1 if number == 0 else 2
        norm = 2 * BATCH_NORM_PASSES_BACKWARD * layer.activation_elements
        costs.append(gradients * _convolution_cost(layer) + norm)
    return tuple(costs)


@lru_cache
def backward_fraction() -> float:
    """Share of backward in forward and backward."""
    layers, _ = resnet50()
    forward = math.fsum(map(forward_cost, layers))
    backward = math.fsum(backward_costs())
    return backward / (forward + backward)


@lru_cache
def ready_shares() -> tuple[float, ...]:
    """Share of backward done when the gradients of each layer are there, first layer first."""
    costs = backward_costs()
    total = math.fsum(costs)
    done = 0.0
    shares = []
    for cost in reversed(costs):
        done += cost / total
        shares.append(min(done, 1.0))  # the sum of shares may end a bit above 1
    return tuple(reversed(shares))


@lru_cache
def wire_groups(rule: str, precision: str) -> tuple[Group, ...]:
    """The groups of `rule` over all tensors, in launch order; fp32 batch norm of a half-precision
    model is set aside and goes last, as one group (Fujitsu's rule and the trainer's)."""
    tensors = resnet50()[1]
    sizes = [tensor.gradient_bytes(precision) for tensor in tensors]
    batch_norms: set[Tensor] = set()
    if precision == "fp16":
        batch_norms = {tensor for tensor in tensors if tensor.is_batch_norm}
    groups = []
    for numbers in gradient_groups(rule, sizes):
        together = {tensors[number] for number in numbers} - batch_norms
        if together:
            groups.append(_group(together, precision))
    if batch_norms:
        groups.append(_group(batch_norms, precision))
    return tuple(groups)


def _group(tensors: Collection[Tensor], precision: str) -> Group:
    # backward comes to the first layer last: with it the whole group is there
    first = min(tensor.layer for tensor in tensors)
    layers = len(ready_shares())
    return Group(
        n_bytes=sum(tensor.gradient_bytes(precision) for tensor in tensors),
        ready=ready_shares()[first],
        ready_fixed=(layers - first) / layers,
    )
