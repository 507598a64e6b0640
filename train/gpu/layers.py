"""A residual network as a list of layers, read off its gluon blocks: what a plan is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from mxnet.gluon import nn

from ..network.resnet import Residual, ResNet, Unit

IMAGE_CHANNELS = 4
"""Three, and zeros: cuDNN's kernels for tensor cores take channels by four."""


class Maps(NamedTuple):
    """The values between two layers, for each image."""

    height: int
    width: int
    channels: int

    @property
    def size(self) -> int:
        return self.height * self.width * self.channels


class Convolution(NamedTuple):
    """`source`, `target`: numbers of values, here and in the other layers."""

    source: int
    target: int
    weight: Any
    stride: int
    padding: int


class Norm(NamedTuple):
    """Batch norm; then the sum with the values `residual` and ReLU, where there are."""

    source: int
    target: int
    residual: int | None
    relu: bool
    parameters: nn.BatchNorm


class MaxPooling(NamedTuple):
    """Over windows of 3 x 3 at every second pixel, padded by one."""

    source: int
    target: int


class Average(NamedTuple):
    """Over whole maps."""

    source: int
    target: int


class Dense(NamedTuple):
    """Of values that are one pixel."""

    source: int
    target: int
    weight: Any
    bias: Any

    @property
    def as_convolution(self) -> Convolution:
        """The same of one pixel: cuDNN has that in all types, with its bias."""
        return Convolution(self.source, self.target, self.weight, 1, 0)

    @property
    def filter_shape(self) -> tuple[int, int, int, int]:
        """Of the weight as a convolution's."""
        out, channels = self.weight.shape
        return (out, 1, 1, channels)


Layer = Convolution | Norm | MaxPooling | Average | Dense


class LayerList:
    """The layers in the order of the forward pass; value 0 are the images, the last the logits."""

    def __init__(self, net: ResNet, height: int, width: int) -> None:
        self.layers: list[Layer] = []
        self.values = [Maps(height, width, IMAGE_CHANNELS)]
        value = 0
        for block in net.body:
            value = self._add(block, value)

    def _add(self, block: Any, value: int) -> int:
        """The number of the block's result."""
        if isinstance(block, Residual):
            return self._residual(block, value)
        if isinstance(block, Unit):
            return self._unit(block, value)
        if isinstance(block, nn.MaxPool2D):
            before = self.values[value]
            half = Maps(
                (before.height + 1) // 2, (before.width + 1) // 2, before.channels
            )
            target = self._value(half)
            self.layers.append(MaxPooling(value, target))
            return target
        if isinstance(block, nn.GlobalAvgPool2D):
            target = self._value(Maps(1, 1, self.values[value].channels))
            self.layers.append(Average(value, target))
            return target
        if isinstance(block, nn.Dense):
            target = self._value(Maps(1, 1, block.weight.shape[0]))
            self.layers.append(Dense(value, target, block.weight, block.bias))
            return target
        assert isinstance(block, nn.Flatten), block
        return value

    def _value(self, maps: Maps) -> int:
        self.values.append(maps)
        return len(self.values) - 1

    def _residual(self, block: Residual, value: int) -> int:
        branch = value
        *units, last = block.branch
        for unit in units:
            branch = self._unit(unit, branch)
        branch = self._convolution(last, branch)
        shortcut = value
        if block.shortcut is not None:
            shortcut = self._unit(block.shortcut, value)
        return self._norm(last, branch, shortcut, relu=True)

    def _unit(self, unit: Unit, value: int) -> int:
        return self._norm(
            unit,
            self._convolution(unit, value),
            None,
            relu=unit.relu,
        )

    def _convolution(self, unit: Unit, value: int) -> int:
        before = self.values[value]
        out, kernel, _, _ = unit.conv.weight.shape
        stride = unit.conv._kwargs["stride"][0]
        padding = unit.conv._kwargs["pad"][0]
        target = self._value(
            Maps(
                (before.height + 2 * padding - kernel) // stride + 1,
                (before.width + 2 * padding - kernel) // stride + 1,
                out,
            )
        )
        self.layers.append(
            Convolution(value, target, unit.conv.weight, stride, padding)
        )
        return target

    def _norm(
        self,
        unit: Unit,
        value: int,
        residual: int | None,
        *,
        relu: bool,
    ) -> int:
        target = self._value(self.values[value])
        self.layers.append(Norm(value, target, residual, relu, unit.norm))
        return target
