"""The private fields of gluon that a rank reads and writes, as MXNet 1.9.1 has them
(python/mxnet/gluon/parameter.py and nn/). No public function does what is done here."""

from __future__ import annotations

from typing import Any

from mxnet import autograd, nd


def operator_settings(block: Any) -> dict[str, Any]:
    """What a layer tells its operator, such as `stride`, `pad`, `eps` and `momentum`."""
    return block._kwargs


def lay_weight(parameter: Any, view: nd.NDArray) -> None:
    """Move a parameter's values into a view of another array, and let it have a gradient."""
    parameter.data().copyto(view)
    parameter._data = [view]
    # The setter of `grad_req` would take an array of its own for the gradient.
    parameter._grad_req = "write"


def lay_gradient(parameter: Any, view: nd.NDArray) -> None:
    """Have a parameter's gradient lie in a view of another array."""
    weight = parameter.data()
    parameter._grad = [view]  # as Parameter._init_grad does with arrays of its own
    autograd.mark_variables([weight], [view], parameter.grad_req)
