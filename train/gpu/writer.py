"""A network's layers as calls of cuDNN and kernels, in NHWC, written on a tape.

Batch norm, the sum of a residual unit and ReLU are one call of cuDNN where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mxnet import nd

from . import cudnn as dnn
from .cudnn import Cudnn, Shape
from .layers import IMAGE_CHANNELS, Convolution, Dense, LayerList, Norm, Pooling
from .memory import Buffer
from .module import blocks_for, type_name
from .tape import Tape, Word


class Saved(NamedTuple):
    """What a batch norm leaves for its backward pass."""

    mean: Buffer
    inverse_deviation: Buffer
    reserve: Buffer
    fused: bool


class Writer:
    """Writes a network's layers on a tape.

    Args:
        images: of a batch.
        settings: on the device, of this step (device.cu).
    """

    def __init__(
        self,
        tape: Tape,
        cudnn: Cudnn,
        network: LayerList,
        *,
        images: int,
        dtype: Any,
        settings: nd.NDArray,
    ) -> None:
        self.tape = tape
        self.network = network
        self._cudnn = cudnn
        self._images = images
        self._type = type_name(dtype)
        self._item_bytes = np.dtype(dtype).itemsize
        self._settings = settings
        self._values: dict[int, Buffer | nd.NDArray] = {}
        self._gradients: dict[int, Buffer] = {}
        self._saved: dict[int, Saved] = {}
        self._stem: Buffer | None = None
        self.written: list[tuple[int, Any]] = []
        """Calls by number, and the parameter whose gradient each completes."""

    # --- forward ---------------------------------------------------------------------------------

    def forward(self, image_shape: Sequence[int], *, training: bool) -> None:
        """Images to logits."""
        self._pad_images(image_shape)
        for layer in self.network.layers:
            if isinstance(layer, Convolution):
                self._convolve(layer)
            elif isinstance(layer, Norm):
                self._norm(layer, training=training)
            elif isinstance(layer, Pooling):
                self._pool(layer)
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
        arguments = (self._value(logits), self._settings, gradient, classes, other)
        self.tape.kernel("loss", name, self._images, *arguments)
        self.tape.kernel("loss", "add_losses", 1, self._settings, loss_sum, self._images)

    def _pad_images(self, image_shape: Sequence[int]) -> None:
        maps = self.network.values[0]
        area = maps.height * maps.width
        channels_first = image_shape[1] == 3
        pixel_stride = 1 if channels_first else 3
        channel_stride = area if channels_first else 1
        pixels = self._images * area
        name = f"images_{self._type}"
        arguments = (self._settings, self._value(0), pixels, area, pixel_stride, channel_stride)
        self.tape.kernel("images", name, blocks_for(pixels), *arguments)

    def _convolve(self, layer: Convolution) -> None:
        dnn_ = self._cudnn
        x = self._tensor(layer.source)
        y = self._tensor(layer.target)
        weight, shape = self._weight(layer)
        w = dnn_.filter(shape)
        algorithm = dnn_.algorithm("Forward", x, w, y, layer.stride, layer.padding)
        self.tape.call(
            layer.weight.name,
            "cudnnConvolutionForward",
            dnn_.one,
            x,
            self._value(layer.source),
            w,
            weight,
            algorithm.convolution,
            algorithm.number,
            *self.tape.space(algorithm.workspace_bytes),
            dnn_.zero,
            y,
            self._value(layer.target),
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
            self.tape.kernel(layer.weight.name, name, blocks_for(size), *arguments)
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
            parameters.gamma.data(),
            parameters.beta.data(),
            parameters.running_mean.data(),
            parameters.running_var.data(),
            self._value(layer.target),
            size,
            maps.channels,
            parameters._kwargs["eps"],
            int(layer.relu),
        )
        name = f"normalise_{self._type}"
        self.tape.kernel(parameters.name, name, blocks_for(size), *arguments)

    def _train_norm(self, layer: Norm) -> None:
        parameters = layer.parameters
        maps = self.network.values[layer.target]
        fused = self._is_fused(layer)
        operation = self._operation(layer, fused=fused)
        x = self._tensor(layer.source)
        z = x if operation == dnn.BN_ADD_RELU else 0
        relu = self._cudnn.relu() if operation != dnn.BN_ONLY else 0
        statistics = self._cudnn.statistics(maps.channels)
        common = (dnn.SPATIAL_PERSISTENT, operation)
        size_of = self._cudnn.size
        space_bytes = size_of(
            "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
            *common,
            x,
            z,
            x,
            statistics,
            relu,
        )
        reserve_bytes = size_of(
            "cudnnGetBatchNormalizationTrainingExReserveSpaceSize", *common, relu, x
        )
        saved = Saved(
            self.tape.buffer(4 * maps.channels),
            self.tape.buffer(4 * maps.channels),
            self.tape.buffer(reserve_bytes),
            fused,
        )
        self._saved[layer.target] = saved
        self.tape.call(
            parameters.name,
            "cudnnBatchNormalizationForwardTrainingEx",
            *common,
            self._cudnn.one,
            self._cudnn.zero,
            x,
            self._value(layer.source),
            z,
            self._residual(layer) if z else 0,
            x,
            self._value(layer.target),
            statistics,
            parameters.gamma.data(),
            parameters.beta.data(),
            parameters.running_mean.data(),
            parameters.running_var.data(),
            saved.mean,
            saved.inverse_deviation,
            relu,
            *self.tape.space(space_bytes),
            saved.reserve,
            reserve_bytes,
            reals=(1 - parameters._kwargs["momentum"], parameters._kwargs["eps"]),
        )
        if layer.relu and not fused:
            size = self._images * maps.size
            arguments = (self._value(layer.target), self._residual(layer), size)
            name = f"rectify_{self._type}"
            self.tape.kernel(parameters.name, name, blocks_for(size), *arguments)

    def _pool(self, layer: Pooling) -> None:
        self.tape.call(
            "pooling",
            "cudnnPoolingForward",
            self._pooling(layer),
            self._cudnn.one,
            self._tensor(layer.source),
            self._value(layer.source),
            self._cudnn.zero,
            self._tensor(layer.target),
            self._value(layer.target),
        )

    def _multiply(self, layer: Dense) -> None:
        """As a convolution of one pixel: cuDNN has all types, and adds the bias."""
        dnn_ = self._cudnn
        x = self._tensor(layer.source)
        y = self._tensor(layer.target)
        w = dnn_.filter(self._dense_shape(layer))
        algorithm = dnn_.algorithm("Forward", x, w, y, 1, 0)
        logits = self._value(layer.target)
        self.tape.call(
            layer.weight.name,
            "cudnnConvolutionForward",
            dnn_.one,
            x,
            self._value(layer.source),
            w,
            layer.weight.data(),
            algorithm.convolution,
            algorithm.number,
            *self.tape.space(algorithm.workspace_bytes),
            dnn_.zero,
            y,
            logits,
        )
        bias = (self._bias(layer), layer.bias.data())
        self.tape.call(layer.bias.name, "cudnnAddTensor", dnn_.one, *bias, dnn_.one, y, logits)

    # --- backward --------------------------------------------------------------------------------

    def backward(self) -> None:
        """From the gradient of the logits to those of all parameters, written into their places."""
        for layer in reversed(self.network.layers):
            if isinstance(layer, Convolution):
                self._convolve_back(layer)
            elif isinstance(layer, Norm):
                self._norm_back(layer)
            elif isinstance(layer, Pooling):
                self._pool_back(layer)
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
        arguments = (padded, gradient, gradient.size, IMAGE_CHANNELS, gradient.shape[-1])
        name = f"channels_{self._type}"
        self.tape.kernel(layer.weight.name, name, blocks_for(gradient.size), *arguments)
        self._complete(layer.weight)

    def _multiply_back(self, layer: Dense) -> None:
        dnn_ = self._cudnn
        dy = self._tensor(layer.target)
        gradient = self._gradients[layer.target]
        bias = (self._bias(layer), layer.bias.grad())
        name = "cudnnConvolutionBackwardBias"
        self.tape.call(layer.bias.name, name, dnn_.one, dy, gradient, dnn_.zero, *bias)
        self._complete(layer.bias)
        as_convolution = Convolution(layer.source, layer.target, layer.weight, 1, 1, 0)
        shape = self._dense_shape(layer)
        self._filter_back(as_convolution, shape, layer.weight.grad())
        self._complete(layer.weight)
        self._data_back(as_convolution, shape)

    def _filter_back(self, layer: Convolution, shape: Shape, gradient: Word) -> None:
        dnn_ = self._cudnn
        x = self._tensor(layer.source)
        dy = self._tensor(layer.target)
        dw = dnn_.filter(shape)
        algorithm = dnn_.algorithm("BackwardFilter", x, dy, dw, layer.stride, layer.padding)
        self.tape.call(
            layer.weight.name,
            "cudnnConvolutionBackwardFilter",
            dnn_.one,
            x,
            self._value(layer.source),
            dy,
            self._gradients[layer.target],
            algorithm.convolution,
            algorithm.number,
            *self.tape.space(algorithm.workspace_bytes),
            dnn_.zero,
            dw,
            gradient,
        )

    def _data_back(self, layer: Convolution, shape: Shape) -> None:
        """The gradient of the source; it joins that of another reader."""
        dnn_ = self._cudnn
        joins = layer.source in self._gradients
        gradient = self._gradients[layer.source] if joins else self._new_gradient(layer.source)
        dy = self._tensor(layer.target)
        dx = self._tensor(layer.source)
        w = dnn_.filter(shape)
        algorithm = dnn_.algorithm("BackwardData", w, dy, dx, layer.stride, layer.padding)
        self.tape.call(
            layer.weight.name,
            "cudnnConvolutionBackwardData",
            dnn_.one,
            w,
            layer.weight.data(),
            dy,
            self._gradients[layer.target],
            algorithm.convolution,
            algorithm.number,
            *self.tape.space(algorithm.workspace_bytes),
            dnn_.one if joins else dnn_.zero,
            dx,
            gradient,
        )

    def _norm_back(self, layer: Norm) -> None:
        parameters = layer.parameters
        maps = self.network.values[layer.target]
        saved = self._saved[layer.target]
        operation = self._operation(layer, fused=saved.fused)
        dy = self._gradients[layer.target]
        value = self._value(layer.target)
        if layer.relu and not saved.fused:
            size = self._images * maps.size
            name = f"mask_{self._type}"
            self.tape.kernel(parameters.name, name, blocks_for(size), value, dy, size)
        if layer.residual is not None and not saved.fused:
            self._gradients[layer.residual] = dy
        x = self._tensor(layer.source)
        z = x if operation == dnn.BN_ADD_RELU else 0
        y = x if operation != dnn.BN_ONLY else 0
        relu = self._cudnn.relu() if y else 0
        dz = self._new_gradient(layer.residual) if z and layer.residual is not None else 0
        statistics = self._cudnn.statistics(maps.channels)
        common = (dnn.SPATIAL_PERSISTENT, operation)
        space_bytes = self._cudnn.size(
            "cudnnGetBatchNormalizationBackwardExWorkspaceSize",
            *common,
            x,
            y,
            x,
            z,
            x,
            statistics,
            relu,
        )
        self.tape.call(
            parameters.name,
            "cudnnBatchNormalizationBackwardEx",
            *common,
            self._cudnn.one,
            self._cudnn.zero,
            self._cudnn.one,
            self._cudnn.zero,
            x,
            self._value(layer.source),
            y,
            value if y else 0,
            x,
            dy,
            z,
            dz,
            x,
            self._new_gradient(layer.source),
            statistics,
            parameters.gamma.data(),
            parameters.beta.data(),
            parameters.gamma.grad(),
            parameters.beta.grad(),
            saved.mean,
            saved.inverse_deviation,
            relu,
            *self.tape.space(space_bytes),
            saved.reserve,
            saved.reserve.size_bytes,
            reals=(parameters._kwargs["eps"],),
        )
        self._complete(parameters.gamma)
        self._complete(parameters.beta)

    def _pool_back(self, layer: Pooling) -> None:
        y = self._tensor(layer.target)
        x = self._tensor(layer.source)
        self.tape.call(
            "pooling",
            "cudnnPoolingBackward",
            self._pooling(layer),
            self._cudnn.one,
            y,
            self._value(layer.target),
            y,
            self._gradients[layer.target],
            x,
            self._value(layer.source),
            self._cudnn.zero,
            x,
            self._new_gradient(layer.source),
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

    def _tensor(self, number: int) -> int:
        return self._cudnn.tensor((self._images, *self.network.values[number]))

    def _residual(self, layer: Norm) -> Word:
        return None if layer.residual is None else self._value(layer.residual)

    def _is_fused(self, layer: Norm) -> bool:
        channels = self.network.values[layer.target].channels
        return layer.relu and self._type == "half" and channels % dnn.FUSED_CHANNELS == 0

    @staticmethod
    def _operation(layer: Norm, *, fused: bool) -> int:
        if not fused:
            return dnn.BN_ONLY
        return dnn.BN_RELU if layer.residual is None else dnn.BN_ADD_RELU

    def _pooling(self, layer: Pooling) -> int:
        mode = dnn.POOLING_AVERAGE if layer.average else dnn.POOLING_MAX
        return self._cudnn.pooling(mode, layer.window, layer.padding, layer.stride)

    @staticmethod
    def _dense_shape(layer: Dense) -> Shape:
        out, channels = layer.weight.shape
        return (out, 1, 1, channels)

    def _bias(self, layer: Dense) -> int:
        return self._cudnn.tensor((1, 1, 1, layer.weight.shape[0]))
