"""ResNet v1.5 as a stage table (stride on the first 3x3, no convolution bias; He, 1512.03385).

Names follow NVIDIA's MLPerf submissions (`stage1_unit1_conv1_weight`, ...). Every shape is given,
so weights are drawn when the net is initialised and never at the first forward.
"""

from __future__ import annotations

from typing import Any

from mxnet.gluon import nn

from ...config.resnet_stages import BASIC, BASIC_DEPTHS, BOTTLENECK, UNITS, Block
from ...config.schema import Model
from .layers import Network


def rectify(F: Any, x: Any) -> Any:
    """ReLU by oneDNN or cuDNN. On a CPU MXNet's own operator would take oneDNN's blocked maps back
    to rows: 1.1 to 1.3 times the step in float32, and 2.9 to 5.8 times in bfloat16
    (docs/performance.md)."""
    return F.Activation(x, act_type="relu")


class Unit(nn.HybridBlock):
    """Convolution, normalisation and, where wanted, ReLU.

    Args:
        model: the section of the config.
        name: of the convolution.
        in_channels: of the maps that it reads.
        channels: of its result.
        kernel: side of a window.
        stride: from one window to the next.
        relu: whether it ends in ReLU.
        zero_gamma: whether its norm begins as zero.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        in_channels: int,
        channels: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        relu: bool = True,
        zero_gamma: bool = False,
    ) -> None:
        super().__init__(prefix="")
        self.relu = relu
        with self.name_scope():
            self.conv = nn.Conv2D(
                channels,
                kernel,
                stride,
                kernel // 2,
                use_bias=False,
                layout=model.layout,
                in_channels=in_channels,
                prefix=f"{name}_",
            )
            self.norm = None
            if model.norm == "batch":
                self.norm = nn.BatchNorm(
                    axis=model.layout.index("C"),
                    momentum=model.bn_momentum,
                    epsilon=model.bn_epsilon,
                    gamma_initializer="zeros" if zero_gamma else "ones",
                    in_channels=channels,
                    prefix=f"{name.replace('conv', 'bn')}_",
                )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Convolve, normalise, rectify."""
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return rectify(F, x) if self.relu else x


class Residual(nn.HybridBlock):
    """Convolutions, the first 3x3 with the stride, and a shortcut: 1x1 where shapes differ.

    Args:
        model: the section of the config.
        block: kernel and multiple of the width of each convolution.
        in_channels: of the maps that it reads.
        width: of the stage.
        stride: of its first 3x3 convolution.
        prefix: of its parameters.
    """

    def __init__(
        self,
        model: Model,
        block: Block,
        in_channels: int,
        width: int,
        stride: int,
        prefix: str,
    ) -> None:
        super().__init__(prefix=prefix)
        strided = [kernel for kernel, _ in block].index(3)
        last = len(block) - 1
        with self.name_scope():
            self.branch = nn.HybridSequential(prefix="")
            channels = in_channels
            for i, (kernel, multiple) in enumerate(block):
                unit = Unit(
                    model,
                    f"conv{i + 1}",
                    channels,
                    width * multiple,
                    kernel=kernel,
                    stride=stride if i == strided else 1,
                    relu=i < last,
                    zero_gamma=model.zero_gamma and i == last,
                )
                self.branch.add(unit)
                channels = width * multiple
            self.shortcut = None
            if stride != 1 or in_channels != channels:
                self.shortcut = Unit(
                    model, "convsc", in_channels, channels, stride=stride, relu=False
                )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Add the branch to the shortcut, and rectify."""
        y = self.branch(x)
        if self.shortcut is not None:
            x = self.shortcut(x)
        return rectify(F, y + x)


class ResNet(Network):
    """The network: images to logits (batch, classes)."""

    has_dropout = False

    def __init__(self, model: Model, classes: int) -> None:
        super().__init__(model, classes)
        width = model.width
        with self.name_scope():
            if model.stem == "imagenet":
                self.body.add(
                    Unit(model, "conv0", 3, width, kernel=7, stride=2),
                    nn.MaxPool2D(3, 2, 1, layout=model.layout),
                )
            else:  # crops of 32 px keep their resolution
                self.body.add(Unit(model, "conv0", 3, width, kernel=3))
            channels = width
            block = BASIC if model.depth in BASIC_DEPTHS else BOTTLENECK
            for stage, units in enumerate(UNITS[model.depth], start=1):
                stage_width = width << (stage - 1)
                for unit in range(1, units + 1):
                    stride = 2 if unit == 1 and stage > 1 else 1
                    prefix = f"stage{stage}_unit{unit}_"
                    self.body.add(
                        Residual(model, block, channels, stage_width, stride, prefix)
                    )
                    channels = stage_width * block[-1][1]
            self.body.add(
                nn.GlobalAvgPool2D(layout=model.layout),
                nn.Flatten(),
                nn.Dense(classes, in_units=channels, prefix="fc_"),
            )
