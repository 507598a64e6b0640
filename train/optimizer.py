"""SGD with momentum, LARS in its published variants, and RMSprop warm-up; never waits.

`config/variants.py` holds the formula and what differs. On a CPU one operator of our own updates
all tensors (train/kernels); on a GPU MXNet's multi-tensor operators do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import nd

from ..config.schema import Optimizer
from ..config.variants import Rule, optimizer_rule
from . import kernels
from .schedule import Settings, akiba_sgd_share

MAX_TENSORS_PER_CALL = 60
"""MXNet's multi-tensor operators corrupt memory above this, unchecked (stack.md section 5)."""

# RMSprop warm-up: mu2, epsilon, RMSprop rate. That the rate is absolute, not times the LR, is from
# public re-implementations (the paper is silent): times an LR of 6.4 one step would move a weight
# by its own size.
AKIBA_MU2, AKIBA_EPSILON, AKIBA_RMS = 0.99, 1e-8, 3e-4


class Tensor:
    """A weight with gradient and velocity (float16: and master), and its update's constants."""

    def __init__(self, parameter: Any, ctx: mx.Context, settings: Optimizer, rule: Rule) -> None:
        self.name = parameter.name
        ending = parameter.name.rpartition("_")[2]
        weight = parameter.data(ctx)
        self.arrays = [weight, parameter.grad(ctx), nd.zeros(parameter.shape, ctx)]
        self.has_master = weight.dtype == np.float16
        if self.has_master:  # the float32 copy that is updated; the weight follows it
            self.arrays.append(weight.astype("float32"))
        self.decay = settings.weight_decay if ending in rule.decayed else 0.0
        self.scaled = ending in rule.scaled


class Updater:
    """Applies one optimizer step to all tensors.

    Args:
        parameters: gluon parameters, first layer first.
        settings: the optimizer section of the config.
        ctx: where the parameters live.
        loss_scale: factor of the losses, taken out of the gradients here.
        epoch_at: epochs done after a step (for Akiba's warm-up).
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        settings: Optimizer,
        *,
        ctx: mx.Context,
        loss_scale: float = 1.0,
        epoch_at: Callable[[int], float] = float,
    ) -> None:
        self._settings, self._rule = settings, optimizer_rule(settings)
        self._tensors = [Tensor(p, ctx, settings, self._rule) for p in parameters]
        self._epoch_at = epoch_at
        self._loss_scale = loss_scale
        self._trust_decay_factor = settings.base_lr if self._rule.decay_times_base_lr else 1.0
        self._arrays = [array for tensor in self._tensors for array in tensor.arrays]
        self._constants = {
            "tensors": str(len(self._tensors)),
            "epsilon": repr(self._rule.epsilon),
            "etas": ",".join(repr(self._rule.eta) if t.scaled else "0" for t in self._tensors),
            "decays": ",".join(repr(t.decay) for t in self._tensors),
            "trust_decay_factor": repr(self._trust_decay_factor),
        }
        self.previous_lr = 0.0
        """Of the last step; with `state` it is all that one step leaves for the next."""
        self.trusts: nd.NDArray | None = None
        """Trust ratios of the last step, one for each tensor (CPU only)."""
        self._kinds: list[tuple[list[Tensor], nd.NDArray | None]] = []
        """Tensors that one multi-tensor operator takes; LARS's with their weight decays."""
        for scaled, mp in sorted({(t.scaled, t.has_master) for t in self._tensors}):
            kind = [t for t in self._tensors if (t.scaled, t.has_master) == (scaled, mp)]
            decays = nd.array([t.decay for t in kind], ctx) if scaled else None
            self._kinds.append((kind, decays))
        if settings.variant == "akiba":
            self._squares = [nd.zeros_like(t.arrays[0]) for t in self._tensors]
            self._apply: Callable[[int, Settings], None] = self._apply_rmsprop_warmup
        else:
            self._apply = (
                self._apply_fused if ctx.device_type == "cpu" else self._apply_multi_tensor
            )

    def step(self, step: int, now: Settings) -> None:
        """Enqueue the update of every tensor; returns at once.

        Gradients arrive summed over all images and ranks and are divided by the batch.
        """
        momentum = now.momentum
        if self._rule.momentum_correction and self.previous_lr:
            momentum *= now.lr / self.previous_lr
        self.previous_lr = now.lr
        self._apply(step, now._replace(momentum=momentum))

    def reset(self) -> None:
        """Forget all momentum: the state of a new run."""
        self.previous_lr = 0.0
        for tensor in self._tensors:
            tensor.arrays[2][:] = 0
        if self._settings.variant == "akiba":
            for square in self._squares:
                square[:] = 0

    def state(self) -> dict[str, nd.NDArray]:
        """Velocities, float32 masters and Akiba's squares by name: what a checkpoint keeps."""
        arrays = {f"velocity/{t.name}": t.arrays[2] for t in self._tensors}
        arrays |= {f"master/{t.name}": t.arrays[3] for t in self._tensors if t.has_master}
        if self._settings.variant == "akiba":
            named = zip(self._tensors, self._squares, strict=True)
            arrays |= {f"square/{t.name}": square for t, square in named}
        return arrays

    def _rescale(self, now: Settings) -> float:
        return 1 / (now.global_batch_size * self._loss_scale)

    def _apply_fused(self, _: int, now: Settings) -> None:
        """CPU: our own operator, one call for all tensors (train/kernels)."""
        self.trusts = kernels.update(
            self._arrays,
            {
                "lr": repr(now.lr),
                "momentum": repr(now.momentum),
                "rescale": repr(self._rescale(now)),
                **self._constants,
            },
        )

    def _apply_multi_tensor(self, _: int, now: Settings) -> None:
        """GPU: MXNet's multi-tensor operators, at most 60 tensors a call."""
        options = {"momentum": now.momentum, "rescale_grad": self._rescale(now)}
        for tensors, decays in self._kinds:
            if decays is None:
                self._update_plain(tensors, now, options)
            else:
                self._update_scaled(tensors, decays, now, options)

    def _update_scaled(
        self,
        tensors: Sequence[Tensor],
        decays: nd.NDArray,
        now: Settings,
        options: dict[str, float],
    ) -> None:
        mp = tensors[0].has_master
        update = nd.preloaded_multi_mp_sgd_mom_update if mp else nd.preloaded_multi_sgd_mom_update
        lrs = self._scaled_lrs(tensors, decays, now)
        for start in range(0, len(tensors), MAX_TENSORS_PER_CALL):
            part = tensors[start : start + MAX_TENSORS_PER_CALL]
            update(
                *(array for t in part for array in t.arrays),
                lrs[start : start + len(part)],
                decays[start : start + len(part)],
                out=[t.arrays[0] for t in part],
                num_weights=len(part),
                **options,
            )

    def _update_plain(
        self, tensors: Sequence[Tensor], now: Settings, options: dict[str, float]
    ) -> None:
        mp = tensors[0].has_master
        update = nd.multi_mp_sgd_mom_update if mp else nd.multi_sgd_mom_update
        for start in range(0, len(tensors), MAX_TENSORS_PER_CALL):
            part = tensors[start : start + MAX_TENSORS_PER_CALL]
            update(
                *(array for t in part for array in t.arrays),
                out=[t.arrays[0] for t in part],
                num_weights=len(part),
                lrs=[now.lr] * len(part),
                wds=[t.decay for t in part],
                **options,
            )

    def _scaled_lrs(
        self, tensors: Sequence[Tensor], decays: nd.NDArray, now: Settings
    ) -> nd.NDArray:
        """Learning rate x trust of LARS's tensors, on the device."""
        options = {"num_arrays": len(tensors)}
        w = nd.sqrt(
            nd.multi_sum_sq(*(t.arrays[-1 if t.has_master else 0] for t in tensors), **options)
        )
        # Cast first: the operator squares in the array's type on a CPU (300 in float16: inf, seen).
        g = nd.sqrt(
            nd.multi_sum_sq(
                *(t.arrays[1].astype("float32", copy=False) for t in tensors), **options
            )
        )
        g = g * self._rescale(now)
        trust = (
            self._rule.eta * w / (g + self._trust_decay_factor * decays * w + self._rule.epsilon)
        )
        return now.lr * nd.where((w > 0) * (g > 0), trust, nd.ones_like(trust))

    def _apply_rmsprop_warmup(self, step: int, now: Settings) -> None:
        """Akiba et al. (1711.04325): RMSprop at first, handing over to momentum SGD.

        m <- mu2 m + (1 - mu2) g^2;  d <- mu1 d - (a_sgd + a_rms / (sqrt(m) + eps)) g
        w <- w + lr d,  a_rms = (1 - a_sgd) 3e-4 / lr: the RMSprop rate is absolute
        """
        sgd = akiba_sgd_share(self._epoch_at(step))
        rms = AKIBA_RMS / now.lr * (1 - sgd) if now.lr else 0.0
        for tensor, square in zip(self._tensors, self._squares, strict=True):
            w, gradient, d = tensor.arrays[:3]
            g = gradient * self._rescale(now) + tensor.decay * w
            square[:] = AKIBA_MU2 * square + (1 - AKIBA_MU2) * g * g
            scale = sgd + rms / (nd.sqrt(square) + AKIBA_EPSILON)
            d[:] = now.momentum * d - scale * g
            w[:] = w + now.lr * d
