"""GoogLeNet as the table of its paper (Szegedy et al., arXiv:1409.4842), no auxiliary classifiers.

Convolutions with bias, no batch norm; 6,998,552 parameters for 1000 classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mxnet.gluon import nn


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


def build_convolution(
    name: str, in_channels: int, channels: int, kernel: int, stride: int = 1
) -> nn.Conv2D:
    """A convolution with bias and ReLU that keeps the resolution but for its stride."""
    return nn.Conv2D(
        channels,
        kernel,
        stride,
        kernel // 2,
        activation="relu",
        in_channels=in_channels,
        prefix=f"{name}_",
    )


def build_reduction() -> nn.MaxPool2D:
    """The maximum that halves the resolution, rounded up."""
    return nn.MaxPool2D(3, 2, ceil_mode=True)


class LocalNorm(nn.HybridBlock):
    """Local response normalisation across channels."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.LRN(x, **LRN)


class Inception(nn.HybridBlock):
    """1x1, reduced 3x3, reduced 5x5 and projected pooling, side by side."""

    def __init__(self, in_channels: int, maps: Maps, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.one = build_convolution("1x1", in_channels, maps.one, 1)
            self.reduce3 = build_convolution("3x3_reduce", in_channels, maps.reduce3, 1)
            self.three = build_convolution("3x3", maps.reduce3, maps.three, 3)
            self.reduce5 = build_convolution("5x5_reduce", in_channels, maps.reduce5, 1)
            self.five = build_convolution("5x5", maps.reduce5, maps.five, 5)
            self.pool = nn.MaxPool2D(3, 1, 1)
            self.project = build_convolution("pool_proj", in_channels, maps.pool, 1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.concat(
            self.one(x),
            self.three(self.reduce3(x)),
            self.five(self.reduce5(x)),
            self.project(self.pool(x)),
            dim=1,
        )


class GoogLeNet(nn.HybridBlock):
    """The network: images (batch, 3, H, W) float32 to logits (batch, classes).

    What seeds the masks of its dropout: `networks.build_networks`.
    """

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            self.body.add(build_convolution("conv1", 3, 64, 7, stride=2))
            self.body.add(build_reduction(), LocalNorm())
            self.body.add(build_convolution("conv2_reduce", 64, 64, 1))
            self.body.add(build_convolution("conv2", 64, 192, 3))
            self.body.add(LocalNorm())
            channels = 192
            for modules in STAGES:
                self.body.add(build_reduction())
                for name, maps in modules.items():
                    self.body.add(Inception(channels, maps, prefix=f"inception{name}_"))
                    channels = maps.one + maps.three + maps.five + maps.pool
            self.body.add(nn.GlobalAvgPool2D())
            self.body.add(nn.Flatten())
            self.body.add(nn.Dropout(DROPOUT))
            self.body.add(nn.Dense(classes, in_units=channels, prefix="fc_"))

    def hybrid_forward(self, _: Any, x: Any) -> Any:
        return self.body(x)
