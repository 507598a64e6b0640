"""A residual network as a list of layers, read off its gluon blocks: what a plan is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from mxnet import nd
from mxnet.gluon import nn

from ..gluon_private import operator_settings
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
        """Values of one image."""
        return self.height * self.width * self.channels

    def windows(self, side: int, stride: int, padding: int, channels: int) -> Maps:
        """The maps of a layer that reads square windows of these.

        Args:
            side: of a window, in pixels.
            stride: from one window to the next.
            padding: around the maps.
            channels: of the result.
        """
        # padding on both sides of the maps, as if windows were that much smaller
        first = side - 2 * padding
        return Maps(
            (self.height - first) // stride + 1,
            (self.width - first) // stride + 1,
            channels,
        )


class Convolution(NamedTuple):
    """A convolution without bias. `source` and `target` are the numbers of its input and output
    among the values, as in the other layers."""

    source: int
    target: int
    weight: Any
    shape: tuple[int, int, int, int]
    """Channels out, height, width, channels in. Those of images are IMAGE_CHANNELS."""
    stride: int
    padding: int


class Norm(NamedTuple):
    """A batch norm; then, where the network has them, the sum with the values `residual`, and
    ReLU."""

    source: int
    target: int
    residual: int | None
    relu: bool
    parameters: nn.BatchNorm
    epsilon: float
    new_share: float
    """The share of a batch's statistics in the running ones: 1 - momentum."""

    @property
    def trained(self) -> tuple[nd.NDArray, nd.NDArray]:
        """The scale and the shift of each channel."""
        return self.parameters.gamma.data(), self.parameters.beta.data()

    @property
    def gradients(self) -> tuple[nd.NDArray, nd.NDArray]:
        """The gradients of `trained`."""
        return self.parameters.gamma.grad(), self.parameters.beta.grad()

    @property
    def running(self) -> tuple[nd.NDArray, nd.NDArray]:
        """The running mean and variance of each channel."""
        parameters = self.parameters
        return parameters.running_mean.data(), parameters.running_var.data()


class MaxPooling(NamedTuple):
    """The maxima of windows of 3 x 3 at every second pixel, padded by one."""

    source: int
    target: int


class Average(NamedTuple):
    """The means of whole maps."""

    source: int
    target: int


class Dense(NamedTuple):
    """A fully connected layer, whose values are one pixel."""

    source: int
    target: int
    weight: Any
    bias: Any

    @property
    def as_convolution(self) -> Convolution:
        """The same layer as a convolution of one pixel, which cuDNN has in all types."""
        out, channels = self.weight.shape
        shape = (out, 1, 1, channels)
        return Convolution(self.source, self.target, self.weight, shape, 1, 0)


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
        maps_read = self.values[value]
        # ResNet's only pooling of this kind (resnet.py), for which device.cu has a kernel
        if isinstance(block, nn.MaxPool2D):
            maps = maps_read.windows(3, 2, 1, maps_read.channels)
            return self._append(MaxPooling(value, len(self.values)), maps)
        if isinstance(block, nn.GlobalAvgPool2D):
            maps = Maps(1, 1, maps_read.channels)
            return self._append(Average(value, len(self.values)), maps)
        if isinstance(block, nn.Dense):
            maps = Maps(1, 1, block.weight.shape[0])
            dense = Dense(value, len(self.values), block.weight, block.bias)
            return self._append(dense, maps)
        # the average of a map is one pixel, which is flat
        assert isinstance(block, nn.Flatten), block
        return value

    def _append(self, layer: Layer, maps: Maps) -> int:
        """The number of the layer's result, which has these maps."""
        self.layers.append(layer)
        self.values.append(maps)
        return layer.target

    def _residual(self, block: Residual, value: int) -> int:
        branch = value
        # The last unit has no ReLU of its own: its norm adds the shortcut before.
        *units, last = block.branch
        for unit in units:
            branch = self._unit(unit, branch)
        branch = self._convolution(last, branch)
        shortcut = value
        if block.shortcut is not None:
            shortcut = self._unit(block.shortcut, value)
        return self._norm(last, branch, shortcut, relu=True)

    def _unit(self, unit: Unit, value: int) -> int:
        convolved = self._convolution(unit, value)
        return self._norm(unit, convolved, None, relu=unit.relu)

    def _convolution(self, unit: Unit, value: int) -> int:
        maps_read = self.values[value]
        # NHWC: (out, height, width, in). The weight of the images has three channels, not four.
        out, kernel, _, _ = unit.conv.weight.shape
        settings = operator_settings(unit.conv)
        stride = settings["stride"][0]
        padding = settings["pad"][0]
        layer = Convolution(
            value,
            len(self.values),
            unit.conv.weight,
            (out, kernel, kernel, maps_read.channels),
            stride,
            padding,
        )
        return self._append(layer, maps_read.windows(kernel, stride, padding, out))

    def _norm(self, unit: Unit, value: int, residual: int | None, *, relu: bool) -> int:
        settings = operator_settings(unit.norm)
        layer = Norm(
            value,
            len(self.values),
            residual,
            relu,
            unit.norm,
            epsilon=settings["eps"],
            new_share=1 - settings["momentum"],
        )
        return self._append(layer, self.values[value])
