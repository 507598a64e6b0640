"""A network's layers as calls of cuDNN and kernels, in NHWC, written on a tape.

Batch norm, the sum of a residual unit and ReLU are one call of cuDNN where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mxnet import nd

from ..network.resnet import ResNet
from ..operators import NormLayers
from .backend import Convolving, Plan, Shape
from .cudnn import (
    FUSED_CHANNELS,
    ORDER,
    SPATIAL_PERSISTENT,
    BatchNormOperation,
    Cudnn,
    Operands,
)
from .fusion import Fusion
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
from .norms import Division, Launch, Norms, choose, gpu_of
from .tape import Tape, Word

Operand: TypeAlias = "tuple[int, Word]"
"""A descriptor and what it describes."""


class Saved(NamedTuple):
    """What a batch norm leaves for its backward pass."""

    mean: Buffer
    inverse_deviation: Buffer
    reserve: Buffer


class Terms(NamedTuple):
    """A norm of our own as scale x + shift."""

    mean: Buffer
    inverse_deviation: Buffer
    scale: Buffer
    shift: Buffer


class Slopes(NamedTuple):
    """The gradients of a norm's parameters, and of its input: scale dy + of_x x + constant."""

    d_gamma: nd.NDArray
    d_beta: nd.NDArray
    of_x: Buffer
    constant: Buffer


class Normalising(NamedTuple):
    """How cuDNN does a batch norm: its mode and operation, and descriptors. 0: it does not do that
    part."""

    mode: tuple[int, int]
    x: int
    z: int
    statistics: int
    relu: int


class Writer:
    """Writes a network's layers on a tape.

    Args:
        tape: gets the calls.
        cudnn: whose descriptors they take.
        net: a ResNet in NHWC.
        image_shape: of a batch, in either layout.
        settings: on the device, of this step (device.cu).
        capability: of the GPU.
    """

    def __init__(
        self,
        tape: Tape,
        cudnn: Cudnn,
        net: ResNet,
        image_shape: Sequence[int],
        settings: nd.NDArray,
        capability: tuple[int, int],
    ) -> None:
        self._channels_first = image_shape[1] == 3
        height, width = image_shape[2:] if self._channels_first else image_shape[1:3]
        self.tape = tape
        self.network = LayerList(net, height, width)
        self._logits = len(self.network.values) - 1
        self.settings = settings
        self._cudnn = cudnn
        self.images = image_shape[0]
        self._type = type_name(net.dtype)
        self._item_bytes = np.dtype(net.dtype).itemsize
        self._values: dict[int, Buffer | nd.NDArray] = {}
        self._gradients: dict[int, Buffer | nd.NDArray] = {}
        self._saved: dict[int, Saved] = {}
        self._gpu = gpu_of(capability)
        self.norms = choose(capability, self.images)
        self._terms: dict[int, Terms] = {}
        self._halves: dict[int, list[Buffer]] = {}
        """Scale and shift of a norm in float16, where a convolution applies it."""
        self._signs: dict[int, Buffer] = {}
        """A bit for each element of a norm's value: ReLU of its sum is not 0."""
        self.sums: dict[int, tuple[Buffer, Buffer]] = {}
        """The sum and the sum of squares of each of a value's channels, where the convolution that
        made the value wrote them."""
        self.slopes: dict[int, Slopes] = {}
        """The slopes of a norm, by its value, where the convolution that made the value's gradient
        wrote them."""
        channels = max(maps.channels for maps in self.network.values)
        self._arrived = tape.buffer(4 * channels)
        """Counters of blocks, by column."""
        self._maxima: dict[int, Buffer] = {}
        """The places of a pooling's maxima in their windows, a byte for each."""
        self.written: list[tuple[int, Any]] = []
        """Calls by number, and the parameter whose gradient each completes."""

    # --- forward ---------------------------------------------------------------------------------

    def forward(self, *, training: bool) -> None:
        """Images to logits."""
        fuses = training and self._type == "half"
        self.fusion = Fusion(
            self.network,
            self._cudnn.backend,
            self.convolving,
            sums=fuses and self.norms in (Norms.EPILOGUE, Norms.MAIN_LOOP),
            applies=self.norms is Norms.MAIN_LOOP,
        )
        write: dict[type, Callable[[Any], None]] = {
            Convolution: self._convolve,
            Norm: self._train_norm if training else self._norm,
            MaxPooling: self._max_pool,
            Average: self._average,
            Dense: self._multiply,
        }
        self._pad_images()
        # Each kernel leaves them at 0; before the first the memory holds what others left.
        if training and self.norms is not Norms.CUDNN:
            self._clear_counters()
        for layer in self.network.layers:
            write[type(layer)](layer)

    def put(self, logits: nd.NDArray) -> None:
        """Have the logits in an array of MXNet's."""
        self._values[self._logits] = logits

    def loss(self, off_target: float, loss_sum: nd.NDArray) -> None:
        """Losses, their sum, and the gradient of the logits. `off_target`: the smoothed target of
        each class that is not the label's."""
        self.tape.kernel(
            "loss",
            f"loss_{self._type}",
            self.images,
            self._value(self._logits),
            self.settings,
            self._new_gradient(self._logits),
            self.network.values[self._logits].channels,
            off_target,
        )
        self.tape.kernel("loss", "add_losses", 1, self.settings, loss_sum, self.images)

    def _pad_images(self) -> None:
        maps = self.network.values[0]
        area = maps.height * maps.width
        pixels = self.images * area
        self._kernel(
            "images",
            "images",
            pixels,
            self.settings,
            self._value(0),
            pixels,
            area,
            # from one pixel to the next, and from one channel
            *((1, area) if self._channels_first else (3, 1)),
        )

    def _convolve(self, layer: Convolution) -> None:
        weight = self._weight(layer)
        plan = self.fusion.forward.get(layer.target)
        if plan is None:
            operands = Operands(
                self._value(layer.source), weight, self._value(layer.target)
            )
            self._convolution("Forward", layer, operands)
            return
        total, squares = self._of_channels(layer.target, 2)
        self.sums[layer.target] = (total, squares)
        self.tape.graph(
            layer.weight.name,
            plan,
            **self._input(layer),
            w=weight,
            y=self._value(layer.target),
            sum=total,
            squares=squares,
        )

    def _convolution(
        self,
        direction: str,
        layer: Convolution,
        operands: Operands,
        *,
        joins: bool = False,
    ) -> None:
        """A call of cuDNN without the backend. `joins`: the result is added to what lies there."""
        descriptors = Operands(
            self._tensor(layer.source),
            self._cudnn.filter(layer.shape),
            self._tensor(layer.target),
        )
        algorithm = self._cudnn.algorithm(
            direction, descriptors, layer.stride, layer.padding
        )
        pairs = Operands(*zip(descriptors, operands, strict=True))
        first, second, result = ORDER[direction](pairs)
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

    def _weight(self, layer: Convolution) -> Word:
        """A convolution's filter; that of the images gets a channel of zeros."""
        weight = layer.weight.data()
        if layer.source:  # value 0 are the images
            return weight
        # anew in each step, since the weight is trained
        size = math.prod(layer.shape)
        padded = self.tape.buffer(size * self._item_bytes)
        self._kernel(
            layer.weight.name,
            "channels",
            size,
            weight,
            padded,
            size,
            weight.shape[-1],
            IMAGE_CHANNELS,
        )
        return padded

    def _clear_counters(self) -> None:
        counters = self._arrived.size_bytes // 4
        self.tape.kernel(
            "norms", "fill_float", blocks_for(counters), self._arrived, counters, 0.0
        )

    def _norm(self, layer: Norm) -> None:
        """A norm by the running statistics, as evaluation has it."""
        channels = self.network.values[layer.target].channels
        terms = Terms(*self._of_channels(layer.target, 4))
        self.tape.kernel(
            layer.parameters.name,
            "running_terms",
            blocks_for(channels),
            *layer.trained,
            *layer.running,
            *terms,
            channels,
            layer.epsilon,
        )
        self._apply(layer, terms, None)

    def _apply(self, layer: Norm, terms: Terms, signs: Buffer | None) -> None:
        launch = self._division(layer).apply()
        self._norm_kernel(
            layer,
            "normalise",
            launch,
            self._value(layer.source),
            self._residual(layer),
            terms.scale,
            terms.shift,
            self._value(layer.target),
            signs,
            *launch.maps,
            int(layer.relu),
        )

    def _train_norm(self, layer: Norm) -> None:
        if self.norms is Norms.CUDNN:
            self._cudnn_norm(layer)
            return
        division = self._division(layer)
        terms = Terms(*self._of_channels(layer.target, 4))
        self._terms[layer.target] = terms
        signs = None
        # A gradient that a convolution wrote has been through ReLU, so nothing asks for signs.
        comes_masked = layer.target in self.fusion.summed_back
        if layer.relu and layer.residual is not None and not comes_masked:
            # a byte for each column of a thread, 8 channels in float16 and 4 in float32
            signs = self.tape.buffer(
                self._size(layer.target) // division.column_channels
            )
            self._signs[layer.target] = signs
        statistics = (*layer.trained, *layer.running, *terms)
        numbers = (layer.new_share, layer.epsilon)
        if layer.source in self.sums:
            self.tape.kernel(
                layer.parameters.name,
                "summed_terms",
                blocks_for(terms.mean.size_bytes // 4),
                *self.sums[layer.source],
                *statistics,
                *self._halves_for(layer),
                *division.sums().maps[:2],
                *numbers,
            )
            if layer.target in self.fusion.filter:
                return  # the next convolution applies it
        # x and the result, and what is added to it
        elif division.is_one_launch(2 if layer.residual is None else 3):
            launch = division.whole()
            self._norm_kernel(
                layer,
                "norm",
                launch,
                self._value(layer.source),
                self._residual(layer),
                *statistics,
                self._value(layer.target),
                signs,
                *launch.maps,
                *numbers,
                int(layer.relu),
            )
            return
        else:
            launch = division.sums()
            self._norm_kernel(
                layer,
                "norm_terms",
                launch,
                self._value(layer.source),
                *statistics,
                *self._partials(launch),
                *launch.maps,
                *numbers,
            )
        self._apply(layer, terms, signs)

    def _halves_for(self, layer: Norm) -> Sequence[Buffer | None]:
        """Buffers of a norm's scale and shift in float16, where a convolution applies the norm."""
        if layer.target not in self.fusion.filter:
            return None, None
        halves = self._of_channels(layer.target, 2, item_bytes=2)
        self._halves[layer.target] = halves
        return halves

    def _cudnn_norm(self, layer: Norm) -> None:
        parameters = layer.parameters
        how = self._normalising(layer)
        # x, z and y have one shape, and so one descriptor
        space_bytes = self._cudnn.size(
            "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
            *how.mode,
            how.x,
            how.z,
            how.x,
            how.statistics,
            how.relu,
        )
        # where cuDNN keeps the signs of ReLU for backward
        reserve_bytes = self._cudnn.size(
            "cudnnGetBatchNormalizationTrainingExReserveSpaceSize",
            *how.mode,
            how.relu,
            how.x,
        )
        mean, inverse_deviation = self._of_channels(layer.target, 2)
        saved = Saved(mean, inverse_deviation, self.tape.buffer(reserve_bytes))
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
            *layer.trained,
            *layer.running,
            saved.mean,
            saved.inverse_deviation,
            how.relu,
            *self.tape.space(space_bytes),
            saved.reserve,
            saved.reserve.size_bytes,
            reals=(layer.new_share, layer.epsilon),
        )
        if layer.relu and not how.relu:
            size = self._size(layer.target)
            self._kernel(
                parameters.name,
                "rectify",
                size,
                self._value(layer.target),
                self._residual(layer),
                size,
            )

    def _max_pool(self, layer: MaxPooling) -> None:
        maxima = self.tape.buffer(self._size(layer.target))
        self._maxima[layer.target] = maxima
        self._pool(
            "max_pool",
            layer,
            self._value(layer.source),
            self._value(layer.target),
            maxima,
        )

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
        self._convolve(layer.as_convolution)
        self.tape.call(
            layer.bias.name,
            "cudnnAddTensor",
            self._cudnn.one,
            self._bias(layer),
            layer.bias.data(),
            self._cudnn.one,
            *self._maps(layer.target),
        )

    # --- backward --------------------------------------------------------------------------------

    def backward(self) -> None:
        """From the gradient of the logits to those of all parameters, written into their places."""
        write: dict[type, Callable[[Any], None]] = {
            Convolution: self._convolve_back,
            Norm: self._norm_back,
            MaxPooling: self._max_pool_back,
            Average: self._average_back,
            Dense: self._multiply_back,
        }
        for layer in reversed(self.network.layers):
            write[type(layer)](layer)

    def _convolve_back(self, layer: Convolution) -> None:
        gradient = layer.weight.grad()
        # nobody reads a gradient of the images
        if layer.source:
            self._filter_back(layer, gradient)
            self._data_back(layer)
        else:
            padded = self.tape.buffer(math.prod(layer.shape) * self._item_bytes)
            self._filter_back(layer, padded)
            self._kernel(
                layer.weight.name,
                "channels",
                gradient.size,
                padded,
                gradient,
                gradient.size,
                IMAGE_CHANNELS,
                gradient.shape[-1],
            )
        self._complete(layer.weight)

    def _multiply_back(self, layer: Dense) -> None:
        self.tape.call(
            layer.bias.name,
            "cudnnConvolutionBackwardBias",
            self._cudnn.one,
            *self._slope(layer.target),
            self._cudnn.zero,
            self._bias(layer),
            layer.bias.grad(),
        )
        self._complete(layer.bias)
        self._filter_back(layer.as_convolution, layer.weight.grad())
        self._complete(layer.weight)
        self._data_back(layer.as_convolution)

    def _filter_back(self, layer: Convolution, gradient: Word) -> None:
        plan = self.fusion.filter.get(layer.source)
        dy = self._gradients[layer.target]
        if plan is None:
            operands = Operands(self._value(layer.source), gradient, dy)
            self._convolution("BackwardFilter", layer, operands)
        else:
            self.tape.graph(
                layer.weight.name, plan, **self._input(layer), w=gradient, y=dy
            )

    def _data_back(self, layer: Convolution) -> None:
        """The gradient of the source; it joins that of another reader."""
        plan = self.fusion.data.get(layer.target)
        if plan is not None:
            self._data_back_to_norm(layer, plan)
            return
        # The first in the backward pass writes the gradient, the others add to it.
        joins = layer.source in self._gradients
        if not joins:
            self._new_gradient(layer.source)
        operands = Operands(
            self._gradients[layer.source],
            layer.weight.data(),
            self._gradients[layer.target],
        )
        self._convolution("BackwardData", layer, operands, joins=joins)

    def _data_back_to_norm(self, layer: Convolution, plan: Plan) -> None:
        """The data gradient through ReLU of the norm that made the source, with the norm's own
        sums."""
        norm = self.fusion.norm_before(layer)
        assert norm is not None
        gamma, beta = norm.trained
        terms = self._terms[norm.target]
        slopes = self._new_slopes(norm)
        (by_dy,) = self._of_channels(norm.target, 1)
        self.slopes[norm.target] = slopes
        more: dict[str, Word] = {}
        if layer.source in self._gradients:
            more["joined"] = self._gradients[layer.source]
        if norm.residual is not None:
            more["z"] = self._value(norm.residual)
        self.tape.graph(
            layer.weight.name,
            plan,
            **more,
            y=self._gradients[layer.target],
            w=layer.weight.data(),
            norm_x=self._value(norm.source),
            mean=terms.mean,
            inverse=terms.inverse_deviation,
            scale=gamma,
            bias=beta,
            masked=self._new_gradient(layer.source),
            d_scale=slopes.d_gamma,
            d_bias=slopes.d_beta,
            by_dy=by_dy,
            by_x=slopes.of_x,
            plus=slopes.constant,
        )

    def _norm_back(self, layer: Norm) -> None:
        if self.norms is Norms.CUDNN:
            self._cudnn_norm_back(layer)
        else:
            self._own_norm_back(layer)
        self._complete(layer.parameters.gamma)
        self._complete(layer.parameters.beta)

    def _own_norm_back(self, layer: Norm) -> None:
        """The gradient of the input takes its place: nothing else reads it, and a thread reads the
        rows that it writes before it writes them. That of the sum's other addend takes the place of
        the value's; what ReLU cuts is 0 already there, as where a convolution has masked it."""
        division = self._division(layer)
        terms = self._terms[layer.target]
        signs = self._signs.get(layer.target)
        x = self._values[layer.source]
        dy = self._gradients[layer.target]
        dz = None
        relu = int(layer.relu)
        if layer.residual is not None:
            dz = dy
            self._gradients[layer.residual] = dy
        self._gradients[layer.source] = x
        comes_summed = layer.target in self.slopes
        slopes = self.slopes.get(layer.target) or self._new_slopes(layer)
        arguments = (x, dy, dz, signs, *terms, *slopes)
        if not comes_summed and division.is_one_launch(2):
            launch = division.whole()
            self._norm_kernel(
                layer, "norm_back", launch, *arguments, x, *launch.maps, relu
            )
            return
        if not comes_summed:
            launch = division.sums()
            self._norm_kernel(
                layer,
                "norm_slopes",
                launch,
                *arguments,
                *self._partials(launch),
                *launch.maps,
                relu,
            )
        launch = division.apply()
        self._norm_kernel(
            layer,
            "normalise_back",
            launch,
            x,
            dy,
            terms.scale,
            terms.shift,
            slopes.of_x,
            slopes.constant,
            x,
            *launch.maps,
            0 if dz or comes_summed else relu,
        )

    def _cudnn_norm_back(self, layer: Norm) -> None:
        parameters = layer.parameters
        saved = self._saved[layer.target]
        how = self._normalising(layer)
        dy = self._gradients[layer.target]
        dz: Word = 0
        if layer.relu and not how.relu:
            size = self._size(layer.target)
            self._kernel(
                parameters.name, "mask", size, self._value(layer.target), dy, size
            )
        if layer.residual is not None:
            if how.z:
                dz = self._new_gradient(layer.residual)
            else:  # behind `mask` both addends of the sum have the same
                self._gradients[layer.residual] = dy
        y = how.x if how.relu else 0  # backward reads it only to see where ReLU cut
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
            *(self._cudnn.one, self._cudnn.zero) * 2,  # of the data, of the parameters
            *self._maps(layer.source),
            y,
            self._value(layer.target) if y else 0,
            how.x,
            dy,
            how.z,
            dz,
            *self._slope(layer.source),
            how.statistics,
            *layer.trained,
            *layer.gradients,
            saved.mean,
            saved.inverse_deviation,
            how.relu,
            *self.tape.space(space_bytes),
            saved.reserve,
            saved.reserve.size_bytes,
            reals=(layer.epsilon,),
        )

    def _max_pool_back(self, layer: MaxPooling) -> None:
        self._pool(
            "max_pool_back",
            layer,
            self._gradients[layer.target],
            self._maxima[layer.target],
            self._new_gradient(layer.source),
        )

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

    def norm_layers(self) -> NormLayers:
        """How many norms run which way."""
        layers = [layer for layer in self.network.layers if isinstance(layer, Norm)]
        return NormLayers(
            self.norms.name.lower(),
            len(layers),
            len(self.sums),
            len(self.slopes),
            len(self._halves),
        )

    # --- both passes -----------------------------------------------------------------------------

    def _input(self, layer: Convolution) -> dict[str, Word]:
        """What a graph reads: the source, or what the norm reads that it applies."""
        norm = self.fusion.norm_before(layer)
        if norm is None or norm.target not in self._halves:
            return {"x": self._value(layer.source)}
        scale, shift = self._halves[norm.target]
        return {"x": self._value(norm.source), "scale": scale, "bias": shift}

    def convolving(self, layer: Convolution) -> Convolving:
        """The shapes of a convolution, as a graph of cuDNN's backend has them."""
        return Convolving(
            self._shape(layer.source),
            layer.shape,
            self._shape(layer.target),
            layer.stride,
            layer.padding,
        )

    def _complete(self, parameter: Any) -> None:
        # by the call that was written last
        self.written.append((len(self.tape.entries) - 1, parameter))

    def _value(self, number: int) -> Buffer | nd.NDArray:
        if number not in self._values:
            self._values[number] = self._maps_buffer(number)
        return self._values[number]

    def _new_gradient(self, number: int) -> Buffer:
        gradient = self._maps_buffer(number)
        self._gradients[number] = gradient
        return gradient

    def _maps_buffer(self, number: int) -> Buffer:
        return self.tape.buffer(self._size(number) * self._item_bytes)

    def _size(self, number: int) -> int:
        """Elements of a value."""
        return self.images * self.network.values[number].size

    def _maps(self, number: int) -> Operand:
        return self._tensor(number), self._value(number)

    def _slope(self, number: int) -> Operand:
        return self._tensor(number), self._gradients[number]

    def _tensor(self, number: int) -> int:
        return self._cudnn.tensor(self._shape(number))

    def _shape(self, number: int) -> Shape:
        return (self.images, *self.network.values[number])

    def _residual(self, layer: Norm) -> Word:
        return None if layer.residual is None else self._value(layer.residual)

    def _normalising(self, layer: Norm) -> Normalising:
        channels = self.network.values[layer.target].channels
        # cudnnBatchNormalizationForwardTrainingEx refuses other shapes with ReLU.
        fits = self._type == "half" and channels % FUSED_CHANNELS == 0
        fused = layer.relu and fits
        operation = BatchNormOperation.NORM
        if fused and layer.residual is None:
            operation = BatchNormOperation.NORM_RELU
        elif fused:
            operation = BatchNormOperation.NORM_ADD_RELU
        x = self._tensor(layer.source)
        return Normalising(
            mode=(SPATIAL_PERSISTENT, operation),
            x=x,
            z=x if operation is BatchNormOperation.NORM_ADD_RELU else 0,
            statistics=self._cudnn.statistics(channels),
            relu=self._cudnn.relu() if fused else 0,
        )

    def _division(self, layer: Norm) -> Division:
        channels = self.network.values[layer.target].channels
        rows = self._size(layer.target) // channels
        return Division(self._gpu, rows, channels, self._item_bytes)

    def _of_channels(
        self, number: int, count: int, item_bytes: int = 4
    ) -> list[Buffer]:
        """Buffers of a float32 (or float16) for each of a value's channels."""
        size_bytes = item_bytes * self.network.values[number].channels
        return [self.tape.buffer(size_bytes) for _ in range(count)]

    def _new_slopes(self, layer: Norm) -> Slopes:
        return Slopes(*layer.gradients, *self._of_channels(layer.target, 2))

    def _partials(self, launch: Launch) -> tuple[Buffer, Buffer]:
        """The memory where a norm's slices leave their sums, and where they count themselves."""
        partials, _ = self.tape.space(launch.partials_bytes)
        return partials, self._arrived

    def _norm_kernel(
        self, layer: Norm, name: str, launch: Launch, *arguments: Any
    ) -> None:
        self.tape.kernel(
            layer.parameters.name, f"{name}_{self._type}", launch.blocks, *arguments
        )

    def _kernel(self, layer: str, name: str, size: int, *arguments: Any) -> None:
        """A kernel of ours that walks over `size` elements."""
        self.tape.kernel(layer, f"{name}_{self._type}", blocks_for(size), *arguments)

    def _pool(self, name: str, layer: MaxPooling, *arrays: Word) -> None:
        """A kernel of ours over all windows."""
        size = self._size(layer.target)
        maps = self.network.values[layer.source]
        self._kernel("pooling", name, size, *arrays, size, *maps)

    def _pooling(self, layer: Average) -> int:
        maps = self.network.values[layer.source]
        return self._cudnn.average(maps.height, maps.width)

    def _bias(self, layer: Dense) -> int:
        return self._cudnn.tensor((1, 1, 1, layer.weight.shape[0]))
