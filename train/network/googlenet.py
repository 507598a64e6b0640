"""GoogLeNet as the table of its paper (Szegedy et al., arXiv:1409.4842), no auxiliary classifiers.

Convolutions with bias, no batch norm; 6,998,552 parameters for 1000 classes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from mxnet.gluon import nn

from ...config.schema import Model
from .layers import TO_NCHW, TO_NHWC, Network, build_convolution


class Maps(NamedTuple):
    """Channels of one module: table 1 of the paper, in the order of its columns."""

    one: int
    reduce3: int
    three: int
    reduce5: int
    five: int
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


def build_reduction(layout: str) -> nn.MaxPool2D:
    """The maximum that halves the resolution, rounded up."""
    return nn.MaxPool2D(3, 2, layout=layout, ceil_mode=True)


class LocalNorm(nn.HybridBlock):
    """Local response normalisation across channels.

    MXNet has it for axis 1 and float32 alone: in float16 it stops at a scratch array of the wrong
    type, which no inference of types shows.
    """

    def __init__(self, model: Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._last = model.layout == "NHWC"
        self._half = model.dtype == "float16"

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = F.transpose(x, axes=TO_NCHW) if self._last else x
        x = F.LRN(F.cast(x, dtype="float32") if self._half else x, **LRN)
        x = F.cast(x, dtype="float16") if self._half else x
        return F.transpose(x, axes=TO_NHWC) if self._last else x


class Inception(nn.HybridBlock):
    """1x1, reduced 3x3, reduced 5x5 and projected pooling, side by side."""

    def __init__(
        self, layout: str, in_channels: int, maps: Maps, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._channel_axis = layout.index("C")
        convolution = partial(build_convolution, layout)
        with self.name_scope():
            self.one = convolution("1x1", in_channels, maps.one, 1)
            self.reduce3 = convolution(
                "3x3_reduce",
                in_channels,
                maps.reduce3,
                1,
            )
            self.three = convolution(
                "3x3",
                maps.reduce3,
                maps.three,
                3,
            )
            self.reduce5 = convolution(
                "5x5_reduce",
                in_channels,
                maps.reduce5,
                1,
            )
            self.five = convolution("5x5", maps.reduce5, maps.five, 5)
            self.pool = nn.MaxPool2D(3, 1, 1, layout=layout)
            self.project = convolution(
                "pool_proj",
                in_channels,
                maps.pool,
                1,
            )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.concat(
            self.one(x),
            self.three(self.reduce3(x)),
            self.five(self.reduce5(x)),
            self.project(self.pool(x)),
            dim=self._channel_axis,
        )


class GoogLeNet(Network):
    """The network: images to logits (batch, classes).

    `build.py` says what seeds the masks of its dropout.
    """

    def __init__(self, model: Model, classes: int, **kwargs: Any) -> None:
        super().__init__(model, classes, **kwargs)
        layout = model.layout
        convolution = partial(build_convolution, layout)
        with self.name_scope():
            self.body.add(convolution("conv1", 3, 64, 7, stride=2))
            self.body.add(build_reduction(layout), LocalNorm(model))
            self.body.add(convolution("conv2_reduce", 64, 64, 1))
            self.body.add(convolution("conv2", 64, 192, 3))
            self.body.add(LocalNorm(model))
            channels = 192
            for modules in STAGES:
                self.body.add(build_reduction(layout))
                for name, maps in modules.items():
                    self.body.add(
                        Inception(layout, channels, maps, prefix=f"inception{name}_")
                    )
                    channels = maps.one + maps.three + maps.five + maps.pool
            self.body.add(nn.GlobalAvgPool2D(layout=layout))
            self.body.add(nn.Flatten())
            self.body.add(nn.Dropout(DROPOUT))
            self.body.add(nn.Dense(classes, in_units=channels, prefix="fc_"))
