"""GoogLeNet as the table of its paper (Szegedy et al., arXiv:1409.4842), no auxiliary classifiers.

Convolutions with bias, no batch norm; 6,998,552 parameters for 1000 classes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent

from ...config.schema import Model
from .layers import TO_NCHW, TO_NHWC, Network, build_convolution


class Maps(NamedTuple):
    """Channels of one module: table 1 of the paper, in the order of its columns."""

    conv1: int
    reduce3: int
    conv3: int
    reduce5: int
    conv5: int
    pool: int


# Stages of equal resolution; a 3x3 maximum with stride 2 stands between two of them.
STAGES = (
    {"3a": Maps(64, 96, 128, 16, 32, 32), "3b": Maps(128, 128, 192, 32, 96, 64)},
    {
        "4a": Maps(192, 96, 208, 16, 48, 64),
        "4b": Maps(160, 112, 224, 24, 64, 64),
        "4c": Maps(128, 128, 256, 24, 64, 64),
        "4d": Maps(112, 144, 288, 32, 64, 64),
        "4e": Maps(256, 160, 320, 32, 128, 128),
    },
    {"5a": Maps(256, 160, 320, 32, 128, 128), "5b": Maps(384, 192, 384, 48, 128, 128)},
)
DROPOUT = 0.4
# The paper names local response normalisation without its numbers; these are AlexNet's (Krizhevsky
# et al., 2012, section 3.3). MXNet divides alpha by nsize, that paper does not.
LRN = {"nsize": 5, "alpha": 5 * 1e-4, "beta": 0.75, "knorm": 2.0}


class LocalNorm(nn.HybridBlock):
    """Local response normalisation across channels.

    MXNet has it for axis 1 and float32 alone: in float16 it stops at a scratch array of the wrong
    type, which no inference of types shows.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._last = model.layout == "NHWC"
        self._half = model.dtype == "float16"

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Normalise in float32 and NCHW; the result is as `x` in type and layout."""
        if self._last:
            x = F.transpose(x, axes=TO_NCHW)
        if self._half:
            x = F.cast(x, dtype="float32")
        x = F.LRN(x, **LRN)
        if self._half:
            x = F.cast(x, dtype="float16")
        if self._last:
            x = F.transpose(x, axes=TO_NHWC)
        return x


def build_inception(
    layout: str, name: str, channels: int, maps: Maps
) -> HybridConcurrent:
    """1x1, reduced 3x3, reduced 5x5 and projected pooling, side by side, for `channels` maps."""
    convolution = partial(build_convolution, layout)
    module = HybridConcurrent(axis=layout.index("C"), prefix=f"inception{name}_")
    with module.name_scope():
        module.add(convolution("1x1", channels, maps.conv1, 1))
        for first, second in (
            (
                convolution("3x3_reduce", channels, maps.reduce3, 1),
                convolution("3x3", maps.reduce3, maps.conv3, 3),
            ),
            (
                convolution("5x5_reduce", channels, maps.reduce5, 1),
                convolution("5x5", maps.reduce5, maps.conv5, 5),
            ),
            (
                nn.MaxPool2D(3, 1, 1, layout=layout),
                convolution("pool_proj", channels, maps.pool, 1),
            ),
        ):
            branch = nn.HybridSequential(prefix="")
            branch.add(first, second)
            module.add(branch)
    return module


class GoogLeNet(Network):
    """The network: images to logits (batch, classes).

    `build.py` says what seeds the masks of its dropout.
    """

    def __init__(self, model: Model, classes: int) -> None:
        super().__init__(model, classes)
        layout = model.layout
        convolution = partial(build_convolution, layout)
        # halves the resolution, rounded up
        reduction = partial(nn.MaxPool2D, 3, 2, layout=layout, ceil_mode=True)
        with self.name_scope():
            self.body.add(
                convolution("conv1", 3, 64, 7, stride=2),
                reduction(),
                LocalNorm(model),
                convolution("conv2_reduce", 64, 64, 1),
                convolution("conv2", 64, 192, 3),
                LocalNorm(model),
            )
            channels = 192
            for modules in STAGES:
                self.body.add(reduction())
                for name, maps in modules.items():
                    self.body.add(build_inception(layout, name, channels, maps))
                    channels = maps.conv1 + maps.conv3 + maps.conv5 + maps.pool
            self.body.add(
                nn.GlobalAvgPool2D(layout=layout),
                nn.Flatten(),
                nn.Dropout(DROPOUT),
                nn.Dense(classes, in_units=channels, prefix="fc_"),
            )
