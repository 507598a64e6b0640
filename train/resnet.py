"""ResNet v1.5 as a stage table (stride on the first 3x3, no convolution bias; He, 1512.03385).

Names follow NVIDIA's MLPerf submissions (`stage1_unit1_conv1_weight`, ...). Every shape is given,
so weights are drawn when the net is initialised and never at the first forward.
"""

from __future__ import annotations

from typing import Any

from mxnet.gluon import nn

from ..config.resnet_stages import BASIC_DEPTHS, UNITS
from ..config.schema import Model
from .layers import Network

# Convolutions of a block: kernel, and channels in multiples of the stage's width.
Block = tuple[tuple[int, int], ...]
BASIC: Block = ((3, 1), (3, 1))
BOTTLENECK: Block = ((1, 1), (3, 1), (1, 4))


def rectify(F: Any, x: Any, *, alone: bool) -> Any:
    """ReLU. `alone`: by oneDNN or cuDNN; MXNet's own operator is fused with others beside it on a
    GPU. On a CPU it would take oneDNN's blocked maps back to rows: 1.1 to 1.3 times the step in
    float32, and 2.9 to 5.8 times in bfloat16 (docs/performance.md)."""
    return F.Activation(x, act_type="relu") if alone else F.relu(x)


class Unit(nn.HybridBlock):
    """Convolution, normalisation and, where wanted, ReLU."""

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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._relu = relu
        self._alone = model.kernels != "mxnet"
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
        x = self.conv(x)
        if self.norm is not None:
            x = self.norm(x)
        return rectify(F, x, alone=self._alone) if self._relu else x


class FusedSum(nn.HybridBlock):
    """The identity, as two operators: MXNet fuses them with the sum of the gradients that come back
    from a shortcut and a branch, which alone is a kernel of its own."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: ARG002
        return x * 1 * 1


class MaxPoolOfMaps(nn.HybridBlock):
    """3 x 3 maxima with stride 2 of (batch, channels, H, W), each map as an image of one channel:
    in backward MXNet's pooling of NCHW fills an array of int32 by a kernel of its own."""

    def __init__(self, channels: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._channels = channels

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        options = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "layout": "NHWC"}
        maxima = F.Pooling(x.reshape((-3, 0, 0, 1)), pool_type="max", **options)
        return maxima.reshape((-4, -1, self._channels, 0, -3))


class Residual(nn.HybridBlock):
    """Convolutions, the first 3x3 with the stride, and a shortcut: 1x1 where shapes differ."""

    def __init__(
        self,
        model: Model,
        block: Block,
        in_channels: int,
        width: int,
        stride: int,
        *,
        is_last: bool,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # On a GPU with the sum before it, but for the last, which stands before pooling.
        self._alone = model.kernels == "auto" or (is_last and model.kernels == "own")
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
                    prefix="",
                )
                self.branch.add(unit)
                channels = width * multiple
            self.shortcut = None
            if stride != 1 or in_channels != channels:
                self.shortcut = Unit(
                    model, "convsc", in_channels, channels, stride=stride, relu=False, prefix=""
                )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.branch(x)
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return rectify(F, y, alone=self._alone)


class ResNet(Network):
    """The network: images to logits (batch, classes)."""

    has_dropout = False

    def __init__(self, model: Model, classes: int, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        width = model.width
        own = model.kernels == "own"
        with self.name_scope():
            if model.stem == "imagenet":
                self.body.add(Unit(model, "conv0", 3, width, kernel=7, stride=2, prefix=""))
                of_maps = own and model.layout == "NCHW"
                self.body.add(
                    MaxPoolOfMaps(width, prefix="")
                    if of_maps
                    else nn.MaxPool2D(3, 2, 1, layout=model.layout)
                )
            else:  # crops of 32 px keep their resolution
                self.body.add(Unit(model, "conv0", 3, width, kernel=3, prefix=""))
            if own:
                self.body.add(FusedSum(prefix=""))
            channels = width
            block = BASIC if model.depth in BASIC_DEPTHS else BOTTLENECK
            depths = UNITS[model.depth]
            for stage, units in enumerate(depths, start=1):
                stage_width = width << (stage - 1)
                for unit in range(1, units + 1):
                    stride = 2 if unit == 1 and stage > 1 else 1
                    prefix = f"stage{stage}_unit{unit}_"
                    is_last = stage == len(depths) and unit == units
                    self.body.add(
                        Residual(
                            model,
                            block,
                            channels,
                            stage_width,
                            stride,
                            is_last=is_last,
                            prefix=prefix,
                        )
                    )
                    channels = stage_width * block[-1][1]
            self.body.add(nn.GlobalAvgPool2D(layout=model.layout))
            if own:  # cuDNN adds a convolution's bias
                head = nn.Conv2D(
                    classes, 1, in_channels=channels, layout=model.layout, prefix="fc_"
                )
                self.body.add(head)
            else:
                self.body.add(nn.Flatten())
                self.body.add(nn.Dense(classes, in_units=channels, prefix="fc_"))
