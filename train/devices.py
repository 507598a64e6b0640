"""Who computes on a device: the one place where it is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mxnet as mx
from mxnet import nd

from ..config.schema import Model, Optimizer
from .cuda.code import require_gpu
from .gpu.calls import Device
from .gpu.module import CudaModule
from .gpu.plan_operators import PlanOperators
from .gpu.update import PlanUpdater
from .operators import Operators
from .update.optimizer import Updater


def operators_for(model: Model, ctx: mx.Context) -> Operators:
    """The operators of a device for a network. Raises UserError: the GPU cannot run them."""
    if ctx.device_type == "cpu":
        return Operators(ctx)
    gpu = require_gpu(model, ctx.device_id)
    if not model.is_planned:
        return Operators(ctx)
    return PlanOperators(ctx, _module(ctx, gpu.capability))


@cache
def _module(ctx: mx.Context, capability: tuple[int, int]) -> CudaModule:
    """Compiled once a process, which has one stream for all its steps (step.c)."""
    return CudaModule(Device(ctx), capability)


def updater_for(
    operators: Operators,
    parameters: Sequence[Any],
    settings: Optimizer,
    buckets: Sequence[nd.NDArray],
    **more: Any,
) -> Updater:
    """What applies an optimizer step to `parameters`, whose gradients lie in `buckets`.

    Args:
        operators: of the device.
        parameters: gluon parameters, first layer first.
        settings: the optimizer section of the config.
        buckets: the arrays of the gradients.
        more: what else an Updater takes.
    """
    if isinstance(operators, PlanOperators):
        return PlanUpdater(
            parameters, settings, operators=operators, buckets=buckets, **more
        )
    return Updater(parameters, settings, operators=operators, **more)
