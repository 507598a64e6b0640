"""A network's layers as calls of cuDNN and kernels, in NHWC, written on a tape.

Batch norm, the sum of a residual unit and ReLU are one call of cuDNN where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mxnet import nd

from ..network.resnet import ResNet
from . import cudnn as dnn
from .cudnn import Cudnn, Shape
from .layers import (
    IMAGE_CHANNELS,
    Average,
    Convolution,
    Dense,
    LayerList,
    MaxPooling,
    Norm,
)
from .memory import Buffer
from .module import blocks_for, type_name
from .tape import Tape, Word

Operand: TypeAlias = "tuple[int, Word]"
"""A descriptor and what it describes."""


class Saved(NamedTuple):
    """What a batch norm leaves for its backward pass."""

    mean: Buffer
    inverse_deviation: Buffer
    reserve: Buffer

    @property
    def space(self) -> tuple[Buffer, int]:
        """The reserve space, and its bytes."""
        return self.reserve, self.reserve.size_bytes


class Normalising(NamedTuple):
    """How cuDNN does a batch norm. Descriptors; 0: it does not do that part."""

    mode: tuple[int, int]
    x: int
    z: int
    statistics: int
    relu: int


class Writer:
    """Writes a network's layers on a tape.

    Args:
        net: a ResNet in NHWC.
        image_shape: of a batch, in either layout.
        settings: on the device, of this step (device.cu).
    """

    def __init__(
        self,
        tape: Tape,
        cudnn: Cudnn,
        net: ResNet,
        image_shape: Sequence[int],
        settings: nd.NDArray,
    ) -> None:
        self._channels_first = image_shape[1] == 3
        height, width = image_shape[2:] if self._channels_first else image_shape[1:3]
        self.tape = tape
        self.network = LayerList(net, height, width)
        self.settings = settings
        self._cudnn = cudnn
        self._images = image_shape[0]
        self._type = type_name(net.dtype)
        self._item_bytes = np.dtype(net.dtype).itemsize
        self._values: dict[int, Buffer | nd.NDArray] = {}
        self._gradients: dict[int, Buffer] = {}
        self._saved: dict[int, Saved] = {}
        self._places: dict[int, Buffer] = {}
        """Of the maxima in their windows."""
        self._stem: Buffer | None = None
        self.written: list[tuple[int, Any]] = []
        """Calls by number, and the parameter whose gradient each completes."""

    # --- forward ---------------------------------------------------------------------------------

    def forward(self, *, training: bool) -> None:
        """Images to logits."""
        self._pad_images()
        for layer in self.network.layers:
            if isinstance(layer, Convolution):
                self._convolve(layer)
            elif isinstance(layer, Norm):
                self._norm(layer, training=training)
            elif isinstance(layer, MaxPooling):
                self._max_pool(layer)
            elif isinstance(layer, Average):
                self._average(layer)
            else:
                self._multiply(layer)

    def put(self, value: int, array: nd.NDArray) -> None:
        """Have a value in an array of MXNet's."""
        self._values[value] = array

    def loss(self, other: float, loss_sum: nd.NDArray) -> None:
        """Losses, their sum, and the gradient of the logits. `other`: the smoothed target of each
        class that is not the label's."""
        logits = len(self.network.values) - 1
        classes = self.network.values[logits].channels
        gradient = self._new_gradient(logits)
        name = f"loss_{self._type}"
        arguments = (self._value(logits), self.settings, gradient, classes, other)
        self.tape.kernel("loss", name, self._images, *arguments)
        self.tape.kernel(
            "loss",
            "add_losses",
            1,
            self.settings,
            loss_sum,
            self._images,
        )

    def _pad_images(self) -> None:
        maps = self.network.values[0]
        area = maps.height * maps.width
        strides = (1, area) if self._channels_first else (3, 1)
        pixels = self._images * area
        name = f"images_{self._type}"
        arguments = (self.settings, self._value(0), pixels, area, *strides)
        self.tape.kernel(
            "images",
            name,
            blocks_for(pixels),
            *arguments,
        )

    def _convolve(self, layer: Convolution) -> None:
        weight, shape = self._weight(layer)
        self._apply(layer, weight, shape)

    def _apply(
        self,
        layer: Convolution,
        weight: Word,
        shape: Shape,
    ) -> None:
        filters = (self._cudnn.filter(shape), weight)
        source = self._maps(layer.source)
        self._convolution(
            "Forward",
            layer,
            source,
            filters,
            self._maps(layer.target),
        )

    def _convolution(
        self,
        direction: str,
        layer: Convolution,
        first: Operand,
        second: Operand,
        result: Operand,
        *,
        joins: bool = False,
    ) -> None:
        """cuDNN's three functions take their operands alike. `joins`: the result is added to what
        lies there."""
        operands = (first[0], second[0], result[0])
        algorithm = self._cudnn.algorithm(
            direction, *operands, layer.stride, layer.padding
        )
        self.tape.call(
            layer.weight.name,
            f"cudnnConvolution{direction}",
            self._cudnn.one,
            *first,
            *second,
            algorithm.convolution,
            algorithm.number,
            *self.tape.space(algorithm.workspace_bytes),
            self._cudnn.one if joins else self._cudnn.zero,
            *result,
        )

    def _weight(self, layer: Convolution) -> tuple[Word, Shape]:
        """A convolution's filter, and its shape; that of the images gets a channel of zeros."""
        weight = layer.weight.data()
        out, height, width, channels = weight.shape
        if layer.source:
            return weight, weight.shape
        shape = (out, height, width, IMAGE_CHANNELS)
        if self._stem is None:
            size = out * height * width * IMAGE_CHANNELS
            self._stem = self.tape.buffer(size * self._item_bytes)
            arguments = (weight, self._stem, size, channels, IMAGE_CHANNELS)
            name = f"channels_{self._type}"
            self.tape.kernel(
                layer.weight.name,
                name,
                blocks_for(size),
                *arguments,
            )
        return self._stem, shape

    def _norm(self, layer: Norm, *, training: bool) -> None:
        if training:
            self._train_norm(layer)
            return
        parameters = layer.parameters
        maps = self.network.values[layer.target]
        size = self._images * maps.size
        arguments = (
            self._value(layer.source),
            self._residual(layer),
            *self._trained(layer),
            parameters.running_mean.data(),
            parameters.running_var.data(),
            self._value(layer.target),
            size,
            maps.channels,
            parameters._kwargs["eps"],
            int(layer.relu),
        )
        name = f"normalise_{self._type}"
        self.tape.kernel(
            parameters.name,
            name,
            blocks_for(size),
            *arguments,
        )

    def _train_norm(self, layer: Norm) -> None:
        parameters = layer.parameters
        maps = self.network.values[layer.target]
        how = self._normalising(layer)
        size_of = self._cudnn.size
        space_bytes = size_of(
            "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
            *how.mode,
            how.x,
            how.z,
            how.x,
            how.statistics,
            how.relu,
        )
        reserve_bytes = size_of(
            "cudnnGetBatchNormalizationTrainingExReserveSpaceSize",
            *how.mode,
            how.relu,
            how.x,
        )
        saved = Saved(
            self.tape.buffer(4 * maps.channels),
            self.tape.buffer(4 * maps.channels),
            self.tape.buffer(reserve_bytes),
        )
        self._saved[layer.target] = saved
        self.tape.call(
            parameters.name,
            "cudnnBatchNormalizationForwardTrainingEx",
            *how.mode,
            self._cudnn.one,
            self._cudnn.zero,
            *self._maps(layer.source),
            how.z,
            self._residual(layer) if how.z else 0,
            *self._maps(layer.target),
            how.statistics,
            *self._trained(layer),
            parameters.running_mean.data(),
            parameters.running_var.data(),
            *saved[:2],
            how.relu,
            *self.tape.space(space_bytes),
            *saved.space,
            reals=(1 - parameters._kwargs["momentum"], parameters._kwargs["eps"]),
        )
        if layer.relu and not how.relu:
            arguments = (self._value(layer.target), self._residual(layer))
            self._each("rectify", layer, arguments)

    def _max_pool(self, layer: MaxPooling) -> None:
        places = self.tape.buffer(self._images * self.network.values[layer.target].size)
        self._places[layer.target] = places
        arrays = (self._value(layer.source), self._value(layer.target), places)
        self._pool("max_pool", layer, arrays)

    def _average(self, layer: Average) -> None:
        self.tape.call(
            "average",
            "cudnnPoolingForward",
            self._pooling(layer),
            self._cudnn.one,
            *self._maps(layer.source),
            self._cudnn.zero,
            *self._maps(layer.target),
        )

    def _multiply(self, layer: Dense) -> None:
        self._apply(layer.as_convolution, layer.weight.data(), layer.filter_shape)
        one = self._cudnn.one
        bias = (self._bias(layer), layer.bias.data())
        logits = self._maps(layer.target)
        self.tape.call(
            layer.bias.name,
            "cudnnAddTensor",
            one,
            *bias,
            one,
            *logits,
        )

    # --- backward --------------------------------------------------------------------------------

    def backward(self) -> None:
        """From the gradient of the logits to those of all parameters, written into their places."""
        for layer in reversed(self.network.layers):
            if isinstance(layer, Convolution):
                self._convolve_back(layer)
            elif isinstance(layer, Norm):
                self._norm_back(layer)
            elif isinstance(layer, MaxPooling):
                self._max_pool_back(layer)
            elif isinstance(layer, Average):
                self._average_back(layer)
            else:
                self._multiply_back(layer)

    def _convolve_back(self, layer: Convolution) -> None:
        _, shape = self._weight(layer)
        if layer.source:
            self._filter_back(layer, shape, layer.weight.grad())
            self._data_back(layer, shape)
            self._complete(layer.weight)
            return
        gradient = layer.weight.grad()
        padded = self.tape.buffer(int(np.prod(shape)) * self._item_bytes)
        self._filter_back(layer, shape, padded)
        arguments = (
            padded,
            gradient,
            gradient.size,
            IMAGE_CHANNELS,
            gradient.shape[-1],
        )
        name = f"channels_{self._type}"
        self.tape.kernel(
            layer.weight.name,
            name,
            blocks_for(gradient.size),
            *arguments,
        )
        self._complete(layer.weight)

    def _multiply_back(self, layer: Dense) -> None:
        name = "cudnnConvolutionBackwardBias"
        slope = self._slope(layer.target)
        bias = (self._bias(layer), layer.bias.grad())
        factors = (self._cudnn.one, self._cudnn.zero)
        self.tape.call(
            layer.bias.name,
            name,
            factors[0],
            *slope,
            factors[1],
            *bias,
        )
        self._complete(layer.bias)
        self._filter_back(layer.as_convolution, layer.filter_shape, layer.weight.grad())
        self._complete(layer.weight)
        self._data_back(layer.as_convolution, layer.filter_shape)

    def _filter_back(
        self,
        layer: Convolution,
        shape: Shape,
        gradient: Word,
    ) -> None:
        source = self._maps(layer.source)
        filters = (self._cudnn.filter(shape), gradient)
        self._convolution(
            "BackwardFilter", layer, source, self._slope(layer.target), filters
        )

    def _data_back(self, layer: Convolution, shape: Shape) -> None:
        """The gradient of the source; it joins that of another reader."""
        joins = layer.source in self._gradients
        if not joins:
            self._new_gradient(layer.source)
        filters = (self._cudnn.filter(shape), layer.weight.data())
        slope = self._slope(layer.target)
        result = self._slope(layer.source)
        self._convolution(
            "BackwardData",
            layer,
            filters,
            slope,
            result,
            joins=joins,
        )

    def _norm_back(self, layer: Norm) -> None:
        parameters = layer.parameters
        saved = self._saved[layer.target]
        how = self._normalising(layer)
        dy = self._gradients[layer.target]
        dz: Word = 0
        if layer.relu and not how.relu:
            self._each("mask", layer, (self._value(layer.target), dy))
        if layer.residual is not None:
            if how.z:
                dz = self._new_gradient(layer.residual)
            else:
                self._gradients[layer.residual] = dy
        y = how.x if how.relu else 0
        self._new_gradient(layer.source)
        space_bytes = self._cudnn.size(
            "cudnnGetBatchNormalizationBackwardExWorkspaceSize",
            *how.mode,
            how.x,
            y,
            how.x,
            how.z,
            how.x,
            how.statistics,
            how.relu,
        )
        self.tape.call(
            parameters.name,
            "cudnnBatchNormalizationBackwardEx",
            *how.mode,
            *(self._cudnn.one, self._cudnn.zero) * 2,
            *self._maps(layer.source),
            y,
            self._value(layer.target) if y else 0,
            how.x,
            dy,
            how.z,
            dz,
            *self._slope(layer.source),
            how.statistics,
            *self._trained(layer),
            parameters.gamma.grad(),
            parameters.beta.grad(),
            *saved[:2],
            how.relu,
            *self.tape.space(space_bytes),
            *saved.space,
            reals=(parameters._kwargs["eps"],),
        )
        self._complete(parameters.gamma)
        self._complete(parameters.beta)

    def _max_pool_back(self, layer: MaxPooling) -> None:
        slope = self._gradients[layer.target]
        arrays = (slope, self._places[layer.target], self._new_gradient(layer.source))
        self._pool("max_pool_back", layer, arrays)

    def _average_back(self, layer: Average) -> None:
        self._new_gradient(layer.source)
        self.tape.call(
            "average",
            "cudnnPoolingBackward",
            self._pooling(layer),
            self._cudnn.one,
            *self._maps(layer.target),
            *self._slope(layer.target),
            *self._maps(layer.source),
            self._cudnn.zero,
            *self._slope(layer.source),
        )

    # --- of both ---------------------------------------------------------------------------------

    def _complete(self, parameter: Any) -> None:
        self.written.append((len(self.tape.entries) - 1, parameter))

    def _value(self, number: int) -> Buffer | nd.NDArray:
        if number not in self._values:
            self._values[number] = self._maps_buffer(number)
        return self._values[number]

    def _new_gradient(self, number: int) -> Buffer:
        self._gradients[number] = self._maps_buffer(number)
        return self._gradients[number]

    def _maps_buffer(self, number: int) -> Buffer:
        size = self._images * self.network.values[number].size
        return self.tape.buffer(size * self._item_bytes)

    def _maps(self, number: int) -> Operand:
        return self._tensor(number), self._value(number)

    def _slope(self, number: int) -> Operand:
        return self._tensor(number), self._gradients[number]

    def _tensor(self, number: int) -> int:
        return self._cudnn.tensor((self._images, *self.network.values[number]))

    def _residual(self, layer: Norm) -> Word:
        return None if layer.residual is None else self._value(layer.residual)

    def _normalising(self, layer: Norm) -> Normalising:
        channels = self.network.values[layer.target].channels
        fused = (
            layer.relu and self._type == "half" and channels % dnn.FUSED_CHANNELS == 0
        )
        operation = dnn.BN_ONLY
        if fused:
            operation = dnn.BN_RELU if layer.residual is None else dnn.BN_ADD_RELU
        x = self._tensor(layer.source)
        return Normalising(
            mode=(dnn.SPATIAL_PERSISTENT, operation),
            x=x,
            z=x if operation == dnn.BN_ADD_RELU else 0,
            statistics=self._cudnn.statistics(channels),
            relu=self._cudnn.relu() if fused else 0,
        )

    @staticmethod
    def _trained(layer: Norm) -> tuple[nd.NDArray, nd.NDArray]:
        return layer.parameters.gamma.data(), layer.parameters.beta.data()

    def _each(
        self,
        name: str,
        layer: Norm,
        arguments: tuple[Any, ...],
    ) -> None:
        """A kernel of ours over all elements of a value."""
        size = self._images * self.network.values[layer.target].size
        name = f"{name}_{self._type}"
        self.tape.kernel(
            layer.parameters.name, name, blocks_for(size), *arguments, size
        )

    def _pool(
        self,
        name: str,
        layer: MaxPooling,
        arrays: tuple[Word, ...],
    ) -> None:
        """A kernel of ours over all windows."""
        maps = self.network.values[layer.source]
        size = self._images * self.network.values[layer.target].size
        name = f"{name}_{self._type}"
        self.tape.kernel(
            "pooling",
            name,
            blocks_for(size),
            *arrays,
            size,
            *maps,
        )

    def _pooling(self, layer: Average) -> int:
        maps = self.network.values[layer.source]
        return self._cudnn.average(maps.height, maps.width)

    def _bias(self, layer: Dense) -> int:
        return self._cudnn.tensor((1, 1, 1, layer.weight.shape[0]))
