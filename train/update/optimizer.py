"""SGD with momentum, LARS in its published variants, and RMSprop warm-up; never waits.

`config/variants.py` holds the formula and what differs. On a CPU one operator of our own updates
all tensors (train/kernels), with a dynamic loss scale MXNet's multi-tensor operators do. On a GPU
they do without a plan; the plan has kernels of its own (train/gpu/update.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.ndarray import NDArray
from numpy.typing import NDArray as Array

from ...config.schema import Optimizer
from .. import host_reads, kernels
from ..operators import Operators
from ..schedule import Settings, akiba_sgd_share
from .loss_scale import LossScaler

MAX_TENSORS_PER_CALL = 60
"""MXNet's multi-tensor operators corrupt memory above this, unchecked."""

# RMSprop warm-up: mu2, epsilon, RMSprop rate. That the rate is absolute, not times the LR, is from
# public re-implementations (the paper is silent): times an LR of 6.4 one step would move a weight
# by its own size.
AKIBA_MU2 = 0.99
AKIBA_EPSILON = 1e-8
AKIBA_RMS = 3e-4
TRUST = "trust_ratio"


class Tensor(NamedTuple):
    """A trained tensor, and its update's constants. All arrays have the weight's shape."""

    name: str
    weight: NDArray
    gradient: NDArray
    momentum: NDArray
    """The velocity, in float32."""
    master: NDArray | None
    """The float32 copy of a float16 weight: it is updated, and the weight follows it."""
    decay: float
    scaled: bool
    """Does LARS scale its learning rate?"""

    @property
    def arrays(self) -> list[NDArray]:
        """The arrays in the order in which operators take them."""
        arrays = [self.weight, self.gradient, self.momentum]
        if self.master is not None:
            arrays.append(self.master)
        return arrays

    @property
    def weight32(self) -> NDArray:
        """The weight, in float32 where there is such a copy."""
        return self.weight if self.master is None else self.master


class Measured(NamedTuple):
    """What a step's norms are computed from: sums of squares of weights and gradients, on the
    device, and the factor of the gradients."""

    squares: NDArray
    rescale: float


class Updater:
    """Applies one optimizer step to all tensors.

    Args:
        parameters: gluon parameters, first layer first. The ending of a name decides on decay and
            LARS.
        settings: the optimizer section of the config.
        operators: of the device where the parameters live.
        scaler: of the losses; its factor is taken out of the gradients here.
        epoch_at: epochs done after a step (for Akiba's warm-up).
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        settings: Optimizer,
        *,
        operators: Operators,
        scaler: LossScaler | None = None,
        epoch_at: Callable[[int], float] = float,
    ) -> None:
        self.operators = operators
        self.scaler = scaler or LossScaler(1.0)
        self._rule = rule = settings.rule
        self._trust_decay_factor = settings.base_lr if rule.decay_times_base_lr else 1.0
        self._epoch_at = epoch_at
        shapes = [p.shape for p in parameters]
        masters = self._masters(parameters)
        momenta = self._zeros(shapes)
        self._tensors = []
        for p, momentum in zip(parameters, momenta, strict=True):
            ending = p.name.rpartition("_")[2]
            tensor = Tensor(
                name=p.name,
                weight=p.data(),
                gradient=p.grad(),
                momentum=momentum,
                master=masters.get(p.name),
                decay=settings.weight_decay if ending in rule.decayed else 0.0,
                scaled=ending in rule.scaled,
            )
            self._tensors.append(tensor)
        self._squares = self._zeros(shapes) if settings.variant == "akiba" else []
        self.previous_lr = 0.0
        """The learning rate of the last step. With `arrays` all that a step leaves for the next."""
        self.fused = operators.ctx.device_type == "cpu" and not self.scaler.is_dynamic
        """Our own operator updates, else MXNet's do: ours takes its rates from the host, which
        learns of an overflow too late."""
        self._prepare()

    def _zeros(self, shapes: Sequence[tuple[int, ...]]) -> list[NDArray]:
        return [self.operators.zeros(shape) for shape in shapes]

    def _masters(self, parameters: Sequence[Any]) -> dict[str, NDArray]:
        """Float32 copies of the float16 weights, by name."""
        half = [p for p in parameters if p.data().dtype == np.float16]
        if not half:
            return {}
        masters = {}
        arrays = self._zeros([p.shape for p in half])
        for p, master in zip(half, arrays, strict=True):
            # over the host: MXNet's casts are kernels, of which some GPUs have none
            values = p.data().asnumpy()
            master[:] = nd.array(values.astype(np.float32))
            masters[p.name] = master
        return masters

    def _prepare(self) -> None:
        """What an update needs besides the tensors."""
        # Operations that run as one; 0: each alone. On a GPU each ends with a synchronization of
        # the stream (LARS on ResNet-50: 54 a step, with 64 as one 27, which is SGD's number;
        # docs/notebook/gpu.md). The price: all of the update waits for the last group's sum.
        ctx = self.operators.ctx
        self._bulk = 64 if ctx.device_type == "gpu" else 0
        tensors = self._tensors
        rule = self._rule
        self._arrays = [array for t in tensors for array in t.arrays]
        etas = [rule.eta if t.scaled else 0 for t in tensors]
        decays = [t.decay for t in tensors]
        self._constants = {
            "tensors": str(len(tensors)),
            "epsilon": repr(rule.epsilon),
            "etas": ",".join(map(repr, etas)),
            "decays": ",".join(map(repr, decays)),
            "trust_decay_factor": repr(self._trust_decay_factor),
            "epsilon_only_below": str(int(rule.epsilon_only_below)),
        }
        groups = defaultdict[tuple[bool, bool], list[Tensor]](list)
        for t in tensors:
            groups[t.scaled, t.master is not None].append(t)
        self._groups = []
        """Tensors that one multi-tensor operator takes, with their weight decays."""
        for _, group in sorted(groups.items()):
            group_decays = nd.array([t.decay for t in group], ctx)
            self._groups.append((group, group_decays))
        last_group, _ = self._groups[-1]
        self.written_last = [last_group[-1].weight, tensors[-1].weight]
        """The weights that a step writes last."""

    def step(self, step: int, settings: Settings) -> None:
        """Enqueue the update of every tensor; returns at once.

        Gradients arrive summed over all images and ranks and are divided by the batch. Those of
        a step that overflowed count for nothing: momentum alone moves the weights.
        """
        # A rank without a share of the batch, which scales no losses, learns of a new scale here.
        self.scaler.value_at(step)
        momentum = settings.momentum
        if self._rule.momentum_correction and self.previous_lr:
            momentum *= settings.lr / self.previous_lr
        self.previous_lr = settings.lr
        self._apply(step, settings._replace(momentum=momentum))

    def measured_step(self, step: int, settings: Settings) -> Measured:
        """Do `step`, and enqueue the sums of squares of what it finds: all weights, then all
        gradients."""
        weights = [t.weight32 for t in self._tensors]
        gradients = [t.gradient for t in self._tensors]
        sums = map(_square_sum, weights + gradients)
        measured = Measured(nd.concat(*sums, dim=0), self._rescale(settings))
        self.step(step, settings)
        return measured

    def norms(self, measured: Measured) -> dict[str, dict[str, float]]:
        """Norms of weights and mean gradients, their ratio, and of the tensors that LARS scales the
        trust ratio: by quantity, then by tensor. Waits for the measured step."""
        w, g = np.sqrt(self._by_tensor(host_reads.squares(measured.squares)))
        g *= measured.rescale
        decays = np.array([t.decay for t in self._tensors])
        columns = {"weight_norm": w, "gradient_norm": g}
        with np.errstate(all="ignore"):  # a norm may be 0 or not finite
            columns["norm_ratio"] = w / g
            trust, is_scaled = self._trust_ratios(w, g, decays)
        columns[TRUST] = np.where(is_scaled, trust, 1.0)
        norms = {}
        for quantity, column in columns.items():
            values = zip(self._tensors, column.tolist(), strict=True)
            norms[quantity] = {
                t.name: value for t, value in values if t.scaled or quantity != TRUST
            }
        return norms

    def _by_tensor(self, squares: Array[np.float64]) -> Array[np.float64]:
        """(2, tensors): the sums of weights and of gradients."""
        return squares.reshape(2, -1)

    def _apply(self, step: int, settings: Settings) -> None:
        """Enqueue the update; `settings.momentum` is corrected already."""
        self.scaler.zero_nonfinite(step)
        with mx.engine.bulk(self._bulk):
            if self._squares:
                self._apply_rmsprop_warmup(step, settings)
            elif self.fused:
                self._apply_fused(settings)
            else:
                self._apply_multi_tensor(settings)

    def reset(self) -> None:
        """Forget all momentum: the state of a new run."""
        self.previous_lr = 0.0
        self.scaler.reset()
        momenta = [t.momentum for t in self._tensors]
        for array in [*momenta, *self._squares]:
            self.operators.fill(array, 0)

    def arrays(self) -> dict[str, NDArray]:
        """Velocities, float32 masters and Akiba's squares by name."""
        arrays = {}
        # Akiba's alone has squares
        for t, square in zip_longest(self._tensors, self._squares):
            arrays[f"velocity/{t.name}"] = t.momentum
            if t.master is not None:
                arrays[f"master/{t.name}"] = t.master
            if square is not None:
                arrays[f"square/{t.name}"] = square
        return arrays

    def _rescale(self, settings: Settings) -> float:
        return 1 / (settings.global_batch_size * self.scaler.scale.value)

    def _apply_fused(self, settings: Settings) -> None:
        """CPU, constant loss scale: our own operator, one call for all tensors (train/kernels)."""
        attributes = {
            "lr": repr(settings.lr),
            "momentum": repr(settings.momentum),
            "rescale": repr(self._rescale(settings)),
        }
        kernels.update(self._arrays, attributes | self._constants)

    def _apply_multi_tensor(self, settings: Settings) -> None:
        """Else: MXNet's multi-tensor operators, at most 60 tensors a call."""
        for tensors, decays in self._groups:
            update = nd.preloaded_multi_mp_sgd_mom_update
            if tensors[0].master is None:
                update = nd.preloaded_multi_sgd_mom_update
            trusts = self._trusts(tensors, decays, settings)
            lrs = settings.lr * trusts * self.scaler.finite
            for start in range(0, len(tensors), MAX_TENSORS_PER_CALL):
                part = tensors[start : start + MAX_TENSORS_PER_CALL]
                end = start + len(part)
                update(
                    *(array for t in part for array in t.arrays),
                    lrs[start:end],
                    decays[start:end],
                    # velocities and masters are changed in place as well
                    out=[t.weight for t in part],
                    num_weights=len(part),
                    momentum=settings.momentum,
                    rescale_grad=self._rescale(settings),
                )

    def _trusts(
        self, tensors: Sequence[Tensor], decays: NDArray, settings: Settings
    ) -> NDArray:
        """Trust ratios of a group of tensors, on the device; ones where LARS does not apply."""
        if not tensors[0].scaled:
            return nd.ones_like(decays)
        w = _norms([t.weight32 for t in tensors])
        g = _norms([self._squarable(t.gradient) for t in tensors]) * self._rescale(
            settings
        )
        trust, is_scaled = self._trust_ratios(w, g, decays)
        return nd.where(is_scaled, trust, nd.ones_like(trust))

    def _trust_ratios(self, w: Any, g: Any, decays: Any) -> tuple[Any, Any]:
        """The trust ratios of tensors by their norms, and whether each has one or counts as 1; of
        arrays of the device or of the host."""
        epsilon = self._rule.epsilon
        denominator = g + self._trust_decay_factor * decays * w
        if self._rule.epsilon_only_below:
            is_below = denominator < epsilon
            # no condition: of arrays on the device nothing is known yet
            denominator = denominator + epsilon * is_below
            scaled = (w > 0) * (w >= epsilon) * (denominator > 0)
        else:
            denominator = denominator + epsilon
            scaled = (w > 0) * (g > 0)
        return self._rule.eta * w / denominator, scaled

    @staticmethod
    def _squarable(gradient: NDArray) -> NDArray:
        """A CPU squares and sums in the array's type (300 in float16: inf, seen), a GPU in float32
        (src/operator/contrib/multi_sum_sq.cu), where 54 casts a step would be for nothing."""
        if gradient.context.device_type == "gpu":
            return gradient
        return gradient.astype("float32", copy=False)

    def _akiba_shares(self, step: int, settings: Settings) -> tuple[float, float]:
        """(a_sgd, a_rms) of a step; a_rms = (1 - a_sgd) 3e-4 / lr: the RMSprop rate is absolute."""
        sgd = akiba_sgd_share(self._epoch_at(step))
        rms = AKIBA_RMS / settings.lr * (1 - sgd) if settings.lr else 0.0
        return sgd, rms

    def _apply_rmsprop_warmup(self, step: int, settings: Settings) -> None:
        """Akiba et al. (1711.04325): RMSprop at first, handing over to momentum SGD.

        m <- mu2 m + (1 - mu2) g^2;  d <- mu1 d - (a_sgd + a_rms / (sqrt(m) + eps)) g
        w <- w + lr d
        """
        sgd, rms = self._akiba_shares(step, settings)
        for tensor, square in zip(self._tensors, self._squares, strict=True):
            w = tensor.weight
            d = tensor.momentum
            gradient = tensor.gradient * self._rescale(settings)
            g = (gradient + tensor.decay * w) * self.scaler.finite
            square[:] = AKIBA_MU2 * square + (1 - AKIBA_MU2) * g * g
            scale = sgd + rms / (nd.sqrt(square) + AKIBA_EPSILON)
            d[:] = settings.momentum * d - scale * g
            w[:] = w + settings.lr * d


def _square_sum(array: NDArray) -> NDArray:
    """A sum of squares, in float32 and parts: one running sum loses 4 % of the norm of AlexNet's
    fc6."""
    flat = array.reshape(-1).astype("float32", copy=False)
    return nd.dot(flat, flat).reshape(1)


def _norms(arrays: Sequence[NDArray]) -> NDArray:
    return nd.sqrt(nd.multi_sum_sq(*arrays, num_arrays=len(arrays)))
