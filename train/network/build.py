"""The networks of a run: built, filled from the seed, compiled; the loss they train on; digests of
their weights, the proof that replicas agree and that runs repeat."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.contrib import amp
from mxnet.gluon import HybridBlock
from mxnet.ndarray import NDArray

from ...config.schema import Model
from ..capabilities import check_network
from ..gpu.plan_operators import PlanOperators
from ..operators import Operators
from .alexnet import AlexNet
from .googlenet import GoogLeNet
from .layers import TO_NCHW, TO_NHWC, Network
from .resnet import ResNet

NETWORKS: dict[str, Callable[[Model, int, int], Network]] = {
    "resnet": lambda model, classes, _: ResNet(model, classes),
    "alexnet": AlexNet,
    "googlenet": lambda model, classes, _: GoogLeNet(model, classes),
}
"""The networks by `model.network`, from (model, classes, height and width of a crop)."""


class Seeded(mx.init.Initializer):
    """N(0, 0.01) for the classifier, the last weight of a network; He-normal N(0, sqrt(2 / fan-in))
    for every other.

    The others are convolutions and AlexNet's hidden dense layers; biases are 0. One random stream
    for each name makes the weights independent of creation order, rank and thread (Philox keyed by
    (seed, CRC-32 of the name); 0.45 s of CPU for ResNet-50). A convolution is drawn in the order
    of NCHW, (out, in, height, width), so that the layouts have the same weights.
    """

    def __init__(self, seed: int, net: Network) -> None:
        super().__init__(seed=seed)
        self._seed = seed
        self._layout = net.layout
        names = [p.name for p in trainable(net)]
        self._classifier = [name for name in names if name.endswith("weight")][-1]

    def _init_weight(self, name: str, arr: NDArray) -> None:
        digest = zlib.crc32(str(name).encode())
        key = np.array([self._seed, digest], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key))
        shape = arr.shape
        scale = np.sqrt(2 / np.prod(shape[1:]))
        if str(name) == self._classifier:
            scale = 0.01
        channels_last = self._layout == "NHWC" and len(shape) == 4
        if channels_last:
            shape = tuple(shape[axis] for axis in TO_NCHW)
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        arr[:] = values.transpose(TO_NHWC) if channels_last else values


class Loss(HybridBlock):
    """Cross-entropy with label smoothing, one value an image.

    Smoothing a over K classes leaves 1 - a to the true class and gives a / (K - 1) to each other
    (MXNet's SoftmaxOutput smooth_alpha: Fujitsu, NVIDIA).
    """

    def __init__(self, model: Model, classes: int) -> None:
        super().__init__()
        a = model.label_smoothing
        self.off_target = a / (classes - 1)
        self._true_minus_off = 1 - self.off_target * classes

    def hybrid_forward(self, F: Any, logits: Any, labels: Any) -> Any:
        """The loss of each image, in float32."""
        log_p = F.log_softmax(F.cast(logits, dtype="float32"))
        true = F.pick(log_p, labels, axis=1)
        total = F.sum(log_p, axis=1)
        return -(self._true_minus_off * true + self.off_target * total)


def build_network(model: Model, classes: int, *, crop_px: int) -> Network:
    """The network without weights; every shape and type is known. Raises UserError: a setting that
    the network does not have, or crops too small for it."""
    check_network(model, crop_px)
    net = NETWORKS[model.network](model, classes, crop_px)
    if model.dtype == "float16":
        net.cast("float16")  # batch norm keeps float32 parameters
    return net


def image_shape(net: Any, batch: int, crop_px: int) -> tuple[int, int, int, int]:
    """The shape of a batch of images as `net` takes them."""
    if net.layout == "NHWC":
        return batch, crop_px, crop_px, 3
    return batch, 3, crop_px, crop_px


def build_networks(
    model: Model, classes: int, *, crop_px: int, seed: int, operators: Operators
) -> tuple[Network, Any, Loss]:
    """(training net, evaluation net, loss) with weights from the `weights` stream's seed.

    The evaluation net has parameters of its own, filled by `copy_parameters`. On a CPU, MXNet's
    inference rewrites the weights it reads into oneDNN's blocked layout; were they those of the
    training net, our optimizer's operator would get copies of them, and its updates would be lost.
    Besides, MXNet rebuilds a net's static graph when it changes between training and inference.

    It is NCHW whatever `model.layout` is: with channels last MXNet 1.9.1 calls cuDNN's batch norm
    on batch x height x width rows, of which cuDNN's inference takes 65,535.

    A plan reads the weights that are trained, which are NHWC.

    Args:
        model: the section of the config.
        classes: of the images.
        crop_px: height and width of an image.
        seed: of the stream `weights`.
        operators: of the device.
    """
    if isinstance(operators, PlanOperators):
        model = model.model_copy(update={"layout": "NHWC"})
    if model.dtype == "bfloat16":
        # Puts casts around the matrix operators of every net built from here on; weights stay
        # float32, and bfloat16's range needs no loss scaling.
        amp.init(target_dtype="bfloat16")
    loss = Loss(model, classes)
    train_net = build_network(model, classes, crop_px=crop_px)
    if isinstance(operators, PlanOperators):
        operators.initialize(train_net, Seeded(seed, train_net))
        return train_net, operators.scorer(train_net), loss
    eval_model = model.model_copy(update={"layout": "NCHW"})
    eval_net = build_network(eval_model, classes, crop_px=crop_px)
    eval_net.collect_params().setattr("grad_req", "null")
    operators.initialize(train_net, Seeded(seed, train_net))
    operators.initialize(eval_net, mx.init.Zero())
    for block in (eval_net, loss):
        block.hybridize(static_alloc=True, static_shape=True)
    # `mx.random.seed` seeds dropout, in the thread that trains: MXNet has a generator for each
    # thread and device. With static shapes a net would keep the generator of the thread that ran
    # it first (a start-up stage's), and a seed set later would change nothing.
    train_net.hybridize(static_alloc=True, static_shape=not train_net.has_dropout)
    return train_net, eval_net, loss


def copy_parameters(source: Network, target: Network, operators: Operators) -> None:
    """Enqueue a copy of all weights and statistics to a net of the same kind, of NCHW or alike. A
    plan's evaluation needs none."""
    if operators.planned:
        return
    sources = source.collect_params().values()
    targets = target.collect_params().values()
    for parameter, copied in zip(sources, targets, strict=True):
        array = parameter.list_data()[0]
        if source.layout != target.layout and array.ndim == 4:
            array = array.transpose(TO_NCHW)
        array.copyto(copied.list_data()[0])


def weight_arrays(net: HybridBlock) -> dict[str, NDArray]:
    """What is trained, by name, on the device: the same on all ranks. Complete once everything
    enqueued is done (`nd.waitall`), as are those of `statistics_arrays`."""
    return {f"weight/{p.name}": p.list_data()[0] for p in trainable(net)}


def statistics_arrays(net: HybridBlock) -> dict[str, NDArray]:
    """Running means and variances, by name: each rank's own between evaluations."""
    return {f"statistics/{p.name}": p.list_data()[0] for p in bn_statistics(net)}


def on_host(arrays: Mapping[str, NDArray]) -> dict[str, Any]:
    """Copies of arrays for NumPy."""
    return {name: array.asnumpy() for name, array in arrays.items()}


def reset_statistics(net: HybridBlock, operators: Operators) -> None:
    """Make them those of a network that has seen no image."""
    for name, array in statistics_arrays(net).items():
        operators.fill(array, 0 if name.endswith("mean") else 1)


def trainable(net: HybridBlock) -> list[Any]:
    """Parameters with gradients, in registration order (first layer first)."""
    return [p for p in net.collect_params().values() if p.grad_req != "null"]


def bn_statistics(net: HybridBlock) -> list[Any]:
    """Running means and variances, in registration order."""
    return [p for p in net.collect_params().values() if p.grad_req == "null"]


def weights_digest(net: Any) -> bytes:
    """BLAKE2b-128 of every parameter's name and bits (0.1 s for ResNet-50)."""
    mx.nd.waitall()  # batch-norm statistics change after the engine calls them readable
    digest = hashlib.blake2b(digest_size=16)
    for parameter in net.collect_params().values():
        digest.update(parameter.name.encode())
        digest.update(parameter.list_data()[0].asnumpy())
    return digest.digest()


def replica_digest(net: Any) -> bytes:
    """16 bytes of what is trained, for comparing replicas: batch-norm statistics are each rank's
    own between evaluations."""
    return quick_digest(on_host(weight_arrays(net)).values())


def quick_digest(weights: Iterable[Any]) -> bytes:
    """16 bytes that change with any one bit of any of these NumPy arrays.

    XOR and sum of each tensor's words: 6 ms for ResNet-50's 102 MB where BLAKE2b takes 109 ms.
    Not proof against two changes that cancel out in both.
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in weights:
        bits = np.frombuffer(array, np.uint8)
        whole_bytes = len(bits) // 8 * 8
        integers = bits[:whole_bytes].view(np.uint64)
        digest.update(np.bitwise_xor.reduce(integers))
        digest.update(integers.sum(dtype=np.uint64))
        digest.update(bits[whole_bytes:].tobytes())
    return digest.digest()
