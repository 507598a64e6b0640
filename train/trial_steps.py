"""Some training steps of a small ResNet-50 on one device, for comparison with another's."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from mxnet import nd
from numpy.typing import NDArray

from ..config.schema import Model, Optimizer
from . import kernels
from .communication.buckets import lay_out_gradients
from .devices import operators_for, updater_for
from .network.build import build_networks, trainable
from .network.layers import TO_NHWC
from .schedule import Settings
from .update.loss_scale import LossScaler

STEPS = 20
BATCH = 16
PX = 64
CLASSES = 10
LR = 0.02
MOMENTUM = 0.9
SCALE = 128.0
"""The loss scale, with which gradients in float16 survive."""


def trial_losses(
    ctx: mx.Context, dtype: Any, layout: Any = "NCHW"
) -> NDArray[np.float64]:
    """Mean losses of `STEPS` steps on one batch: the same weights and images on every device.

    Args:
        layout: of the images; of MXNet's network too.

    Raises:
        UserError: the device cannot run the network.
    """
    # Units that begin as the identity: where each value of the images is off by 5e-4 the losses
    # change by 7e-5 of the first; with units that begin at random 1e-6 changes them by 0.08.
    model = Model(width=16, zero_gamma=True, dtype=dtype, layout=layout)
    if ctx.device_type == "cpu":
        kernels.load()
    operators = operators_for(model, ctx)
    net, _, loss = build_networks(
        model, CLASSES, crop_px=PX, seed=1, operators=operators
    )
    buckets = lay_out_gradients(trainable(net), "single", operators)
    settings = Optimizer(variant="sgd", base_lr=LR)
    scaler = LossScaler(SCALE)
    updater = updater_for(operators, trainable(net), settings, buckets, scaler=scaler)
    criterion = operators.criterion(net, loss, buckets)
    rng = np.random.default_rng(1)
    pixels = rng.normal(size=(BATCH, 3, PX, PX))
    if layout == "NHWC":
        pixels = pixels.transpose(TO_NHWC)
    images = nd.array(pixels.astype(np.float32), ctx)
    labels = nd.array(np.arange(BATCH) % CLASSES, ctx)
    means = []
    for step in range(1, STEPS + 1):
        losses = criterion.forward(images, labels, SCALE)
        criterion.backward(losses, SCALE)
        updater.step(step, Settings(LR, MOMENTUM, BATCH))
        means.append(losses.asnumpy().mean(dtype=np.float64))
    return np.array(means)
