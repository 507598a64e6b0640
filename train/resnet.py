"""ResNet v1.5 as a stage table (stride on the 3x3, no convolution bias; He et al. 1512.03385).

Names follow NVIDIA's MLPerf submissions (`stage1_unit1_conv1_weight`, ...). Every shape is given,
so weights are drawn when the net is initialised and never at the first forward.
"""

from __future__ import annotations

import zlib
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import SymbolBlock, nn

from ..config.schema import Model

UNITS: dict[int | str, tuple[int, ...]] = {
    "tiny": (1, 1, 1, 1),
    50: (3, 4, 6, 3),
}
EXPANSION = 4


class Seeded(mx.init.Initializer):
    """He-normal convolutions, N(0, 0.01) classifier; one random stream for each parameter's name.

    A stream for each name makes the weights independent of creation order, rank and thread
    (Philox keyed by (seed, CRC-32 of the name); 0.45 s of CPU for ResNet-50).
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self._seed = seed

    def _init_weight(self, name: str, arr: mx.nd.NDArray) -> None:
        key = np.array([self._seed, zlib.crc32(str(name).encode())], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key))
        scale = 0.01 if len(arr.shape) == 2 else np.sqrt(2 / np.prod(arr.shape[1:]))
        arr[:] = rng.standard_normal(arr.shape, dtype=np.float32) * np.float32(scale)


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
        with self.name_scope():
            self.conv = nn.Conv2D(
                channels,
                kernel,
                stride,
                kernel // 2,
                use_bias=False,
                in_channels=in_channels,
                prefix=f"{name}_",
            )
            self.norm = None
            if model.norm == "batch":
                self.norm = nn.BatchNorm(
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
        return F.relu(x) if self._relu else x


class Bottleneck(nn.HybridBlock):
    """1x1, 3x3 (carries the stride), 1x1, and the shortcut; `project` where shapes differ."""

    def __init__(
        self, model: Model, in_channels: int, width: int, stride: int, project: bool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        out = width * EXPANSION
        with self.name_scope():
            self.conv1 = Unit(model, "conv1", in_channels, width, prefix="")
            self.conv2 = Unit(model, "conv2", width, width, kernel=3, stride=stride, prefix="")
            self.conv3 = Unit(
                model, "conv3", width, out, relu=False, zero_gamma=model.zero_gamma, prefix=""
            )
            self.shortcut = None
            if project:
                self.shortcut = Unit(
                    model, "convsc", in_channels, out, stride=stride, relu=False, prefix=""
                )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.conv3(self.conv2(self.conv1(x)))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.HybridBlock):
    """The network: images (batch, 3, H, W) float32 to logits (batch, classes)."""

    def __init__(self, model: Model, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = model.width
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            if model.stem == "imagenet":
                self.body.add(Unit(model, "conv0", 3, width, kernel=7, stride=2, prefix=""))
                self.body.add(nn.MaxPool2D(3, 2, 1))
            else:  # crops of 32 px keep their resolution
                self.body.add(Unit(model, "conv0", 3, width, kernel=3, prefix=""))
            channels = width
            for stage, units in enumerate(UNITS[model.depth], start=1):
                stage_width = width << (stage - 1)
                for unit in range(1, units + 1):
                    stride = 2 if unit == 1 and stage > 1 else 1
                    self.body.add(
                        Bottleneck(
                            model,
                            channels,
                            stage_width,
                            stride,
                            project=unit == 1,
                            prefix=f"stage{stage}_unit{unit}_",
                        )
                    )
                    channels = stage_width * EXPANSION
            self.body.add(nn.GlobalAvgPool2D())
            self.body.add(nn.Flatten())
            self.body.add(nn.Dense(classes, in_units=channels, prefix="fc_"))

    def hybrid_forward(self, _: Any, x: Any) -> Any:
        return self.body(x)


class Loss(nn.HybridBlock):
    """Cross-entropy with label smoothing, one value an image.

    Targets with smoothing a over K classes: "others" gives 1 - a to the true class and a / (K - 1)
    to each other (MXNet's SoftmaxOutput smooth_alpha: Fujitsu, NVIDIA); "uniform" gives
    1 - a + a / K and a / K (DeepLearningExamples).
    """

    def __init__(self, model: Model, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        a = model.label_smoothing
        self._other = a / (classes - 1) if model.smoothing_form == "others" else a / classes
        self._true_minus_other = 1 - self._other * classes

    def hybrid_forward(self, F: Any, logits: Any, labels: Any) -> Any:
        log_p = F.log_softmax(logits)
        true = F.pick(log_p, labels, axis=1)
        return -(self._true_minus_other * true + self._other * F.sum(log_p, axis=1))


def build_networks(
    model: Model, classes: int, *, seed: int, ctx: mx.Context
) -> tuple[ResNet, SymbolBlock, Loss]:
    """(training net, evaluation net, loss) with weights from the `weights` stream's seed.

    The two nets share their parameters but compile apart: MXNet rebuilds the static graph of one
    net each time it changes between training and inference.
    """
    train_net = ResNet(model, classes, prefix="")
    train_net.initialize(Seeded(seed), ctx=ctx)
    images = mx.sym.var("images", dtype="float32")
    eval_net = SymbolBlock(train_net(images), images, params=train_net.collect_params())
    loss = Loss(model, classes)
    for block in (train_net, eval_net, loss):
        block.hybridize(static_alloc=True, static_shape=True)
    return train_net, eval_net, loss


def trainable(net: nn.HybridBlock) -> list[Any]:
    """Parameters with gradients, in registration order (first layer first)."""
    return [p for p in net.collect_params().values() if p.grad_req != "null"]


def bn_statistics(net: nn.HybridBlock) -> list[Any]:
    """Running means and variances, in registration order."""
    return [p for p in net.collect_params().values() if p.grad_req == "null"]
