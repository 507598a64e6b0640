"""How much memory training takes on one rank: an estimate, from the shapes of ResNet alone."""

from __future__ import annotations

import re

from .machine import System
from .resnet_stages import UNITS
from .schema import Model, Run

_KEPT_PER_OUTPUT = 2
"""A convolution's output and its normalised copy; ReLU works in place."""


def sizes_of(model: Model, crop_px: int) -> tuple[int, int]:
    """Convolution outputs of one image, and parameters without those of the classifier: 11.1 M and
    23.5 M for ResNet-50 at 224 pixels. The basic blocks of depths 18 and 34 count as bottlenecks
    of a quarter of their width."""
    inputs = model.width
    imagenet = model.stem == "imagenet"
    side = -(-crop_px // 2) if imagenet else crop_px
    outputs, parameters = side * side * inputs, (49 if imagenet else 9) * 3 * inputs
    side = -(-side // 2) if imagenet else side
    for stage, units in enumerate(UNITS[model.depth]):
        channels = model.width << stage
        for unit in range(units):
            outputs += side * side * channels  # 1x1, before the stride of the 3x3
            side = -(-side // 2) if stage and not unit else side
            outputs += side * side * channels * (1 + 4 + 4 * (not unit))
            parameters += channels * (inputs + 9 * channels + 4 * channels)
            parameters += inputs * 4 * channels * (not unit)
            inputs = 4 * channels
    return outputs, parameters


def training_bytes(model: Model, crop_px: int, per_rank: int) -> int:
    """Activations of a batch and their gradients' peak, weights, gradients, momentum and, below
    float32, master weights. Workspaces of the engine are not in it."""
    size = 4 if model.dtype == "float32" else 2
    outputs, parameters = sizes_of(model, crop_px)
    a_parameter = 2 * size + 4 + (4 if size < 4 else 0)
    return per_rank * outputs * _KEPT_PER_OUTPUT * size + parameters * a_parameter


def rank_bytes(run: Run) -> int | None:
    """Memory of a GPU's rank at its largest batch, from below; None: no estimate."""
    if run.model.network != "resnet" or run.system.device == "cpu":
        return None
    return training_bytes(run.model, run.data.crop_px, largest_batch(run))


def largest_batch(run: Run) -> int:
    """Images of a rank and step, at most."""
    return max([run.batch.per_rank, *(change.per_rank for change in run.batch.changes)])


def device_bytes(system: System) -> int | None:
    """Memory of an accelerator, where its name gives it (`NVIDIA A100 SXM4 80 GB`); else None."""
    named = re.search(r"\b(\d+) GB\b", system.accelerator)
    return int(named[1]) << 30 if named else None
