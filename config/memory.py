"""How much memory training takes on one rank: an estimate, from the shapes of ResNet alone."""

from __future__ import annotations

from .schema import Model

# Bottlenecks of each depth by stage (He et al., 1512.03385); 18 and 34 have basic blocks, which the
# estimate treats as bottlenecks of a quarter of their width.
_UNITS = {
    "tiny": (1, 1, 1, 1),
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_KEPT_PER_OUTPUT = 2
"""A convolution's output and its normalised copy; ReLU works in place."""


def activations_per_image(model: Model, crop_px: int) -> int:
    """Convolution outputs of one image in the forward pass: 11.1 M for ResNet-50 at 224 pixels."""
    width = model.width
    imagenet = model.stem == "imagenet"
    side = -(-crop_px // 2) if imagenet else crop_px
    total = side * side * width
    side = -(-side // 2) if imagenet else side
    for stage, units in enumerate(_UNITS[model.depth]):
        channels = width << stage
        for unit in range(units):
            before = side
            side = -(-side // 2) if stage and not unit else side
            total += before * before * channels  # 1x1, before the stride of the 3x3
            total += side * side * channels * (1 + 4 + 4 * (not unit))
    return total


def parameters(model: Model) -> int:
    """Parameters of a bottleneck ResNet without its classifier: 23.5 M for ResNet-50."""
    width = model.width
    total, inputs = (49 if model.stem == "imagenet" else 9) * 3 * width, width
    for stage, units in enumerate(_UNITS[model.depth]):
        channels = width << stage
        for unit in range(units):
            total += channels * (inputs + 9 * channels + 4 * channels)
            total += inputs * 4 * channels * (not unit)
            inputs = 4 * channels
    return total


def training_bytes(model: Model, crop_px: int, per_rank: int) -> int:
    """Activations of a batch and their gradients' peak, weights, gradients, momentum and, below
    float32, master weights. Workspaces of the engine are not in it."""
    size = _BYTES[model.dtype]
    activations = per_rank * activations_per_image(model, crop_px) * _KEPT_PER_OUTPUT * size
    a_parameter = 2 * size + 4 + (4 if size < 4 else 0)
    return activations + parameters(model) * a_parameter
