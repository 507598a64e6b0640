"""SGD with momentum and LARS over MXNet's fused update operators. Never waits for the device.

    v <- mu v + lr trust (g / batch + wd w);  w <- w - v

Trust is 1 for SGD, and eta |w| / (|g| / batch + wd |w| + epsilon) for LARS, 1 where a norm is 0.
Batch-norm scales and shifts and the classifier's bias take no trust and no weight decay (MLPerf
reference; You et al., 1708.03888). On a CPU the operators run per tensor, on a GPU in batches:
multi-tensor kernels are slower than single ones on a CPU, and take at most 60 tensors, unchecked
(reference: stack.md section 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
from mxnet import nd

from ..config.schema import Optimizer

MAX_TENSORS_PER_CALL = 60


class Updater:
    """Applies one optimizer step to all tensors.

    Args:
        parameters: gluon parameters, weights named `*_weight`.
        settings: the optimizer section of the config.
        global_batch_size: gradients arrive summed over all images and ranks and are divided by it.
        ctx: where the parameters live.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        settings: Optimizer,
        *,
        global_batch_size: int,
        ctx: mx.Context,
    ) -> None:
        self._settings = settings
        self._rescale = 1.0 / global_batch_size
        self._per_call = 1 if ctx.device_type == "cpu" else MAX_TENSORS_PER_CALL
        self._previous_lr = 0.0
        slots = [
            (p.data(ctx), p.grad(ctx), nd.zeros(p.shape, ctx), p.name.endswith("weight"))
            for p in parameters
        ]
        self._decayed = [slot[:3] for slot in slots if slot[3]]
        self._plain = [slot[:3] for slot in slots if not slot[3]]
        # Flat views share memory with their tensors: made once, not at each step.
        self._flat = [(w.reshape(-1), g.reshape(-1)) for w, g, _ in self._decayed]
        self._decays = nd.full(len(self._decayed), settings.weight_decay, ctx)

    def step(self, lr: float) -> None:
        """Enqueue the update of every tensor at learning rate `lr`; returns at once."""
        s = self._settings
        momentum = s.momentum
        if s.momentum_correction and self._previous_lr:
            momentum *= lr / self._previous_lr  # the LR sits inside v (Goyal et al. section 2.2)
        self._previous_lr = lr
        if s.name == "lars":
            self._update_scaled(self._trust() * lr, momentum)
        else:
            self._update(self._decayed, lr, momentum, s.weight_decay)
        self._update(self._plain, lr, momentum, 0.0)

    def reset(self) -> None:
        """Forget all momentum: the state of a new run."""
        self._previous_lr = 0.0
        for _, _, v in self._decayed + self._plain:
            v[:] = 0

    def _trust(self) -> nd.NDArray:
        """Trust ratios of the decayed tensors, on the device."""
        s = self._settings
        w = nd.sqrt(nd.concat(*(nd.dot(w, w).reshape(1) for w, _ in self._flat), dim=0))
        g = nd.sqrt(nd.concat(*(nd.dot(g, g).reshape(1) for _, g in self._flat), dim=0))
        g = g * self._rescale
        trust = s.eta * w / (g + s.weight_decay * w + s.epsilon)
        return nd.where((w > 0) * (g > 0), trust, nd.ones_like(trust))

    def _update(self, slots: Sequence[Any], lr: float, momentum: float, decay: float) -> None:
        options = {"momentum": momentum, "rescale_grad": self._rescale}
        if self._per_call == 1:
            for w, g, v in slots:
                nd.sgd_mom_update(w, g, v, out=w, lr=lr, wd=decay, **options)
            return
        for start in range(0, len(slots), self._per_call):
            part = slots[start : start + self._per_call]
            nd.multi_sgd_mom_update(
                *(array for slot in part for array in slot),
                out=[slot[0] for slot in part],
                num_weights=len(part),
                lrs=[lr] * len(part),
                wds=[decay] * len(part),
                **options,
            )

    def _update_scaled(self, lrs: nd.NDArray, momentum: float) -> None:
        for start in range(0, len(self._decayed), self._per_call):
            part = self._decayed[start : start + self._per_call]
            stop = start + len(part)
            nd.preloaded_multi_sgd_mom_update(
                *(array for slot in part for array in slot),
                lrs[start:stop],
                self._decays[start:stop],
                out=[slot[0] for slot in part],
                num_weights=len(part),
                momentum=momentum,
                rescale_grad=self._rescale,
            )
