"""Gradient buckets: the gradients of a group lie side by side in one array that travels as it is.

Backward writes each gradient into its place, so nothing is packed before a collective or unpacked
after it (a grouped allreduce copies every byte into Horovod's fusion buffer and back).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from mxnet import nd

from ...config.groups import gradient_groups
from ...host.errors import UserError
from ..gluon_private import lay_gradient
from ..operators import Operators

ALIGN_BYTES = 128
"""Every gradient starts on such a boundary (as Fujitsu's chunks); the gaps stay zero."""


def lay_out_gradients(
    parameters: Sequence[Any], rule: str, operators: Operators, *, parts: int = 1
) -> list[nd.NDArray]:
    """Replace the gradients of gluon `parameters` by views into one flat array for each group.

    For before the first backward: a network compiled with `static_shape` goes on writing where it
    wrote then, until it is hybridized anew.

    Gradients of another type than most bytes have (fp32 batch norm in an fp16 model: 106 of 161
    tensors, 0.4 % of the bytes) leave their groups and go last, in one of their own.

    Args:
        operators: of the device where the gradients live.
        parameters: initialised, first layer first.
        rule: see `config.groups.gradient_groups`.
        parts: the length of each array is a multiple of it, so that it can be cut into equal parts.

    Returns:
        The flat arrays, in the order in which backward completes them.

    Raises:
        UserError: the rule does not fit the number of tensors.
    """
    types = [np.dtype(p.dtype) for p in parameters]
    sizes = []
    bytes_of = Counter[np.dtype[Any]]()
    for p, dtype in zip(parameters, types, strict=True):
        size = p.data().size * dtype.itemsize
        sizes.append(size)
        bytes_of[dtype] += size
    common = max(bytes_of, key=bytes_of.__getitem__)
    try:
        groups = gradient_groups(rule, sizes)
    except ValueError as error:
        raise UserError(f"comm.groups: {error} expected, found {rule}") from None
    # The rule counts all tensors, as Fujitsu's does: 3, 21, 57, 80 of 161, batch norm among them.
    members = [[i for i in numbers if types[i] == common] for numbers in groups]
    rest = [i for i in range(len(types)) if types[i] != common]
    members.append(rest[::-1])
    flats = []
    for numbers in filter(None, members):
        group = [parameters[i] for i in numbers]
        shapes = [p.shape for p in group]
        flat, views = side_by_side(operators, shapes, group[0].dtype, parts)
        for p, view in zip(group, views, strict=True):
            lay_gradient(p, view)
        flats.append(flat)
    return flats


def side_by_side(
    operators: Operators, shapes: Sequence[tuple[int, ...]], dtype: Any, parts: int = 1
) -> tuple[nd.NDArray, list[nd.NDArray]]:
    """One array of zeros, to be cut into equal `parts`, and views of these shapes into it, each on
    a boundary of ALIGN_BYTES.

    Args:
        operators: of the device.
        shapes: of the views.
        dtype: of the array.
        parts: in which the array is to be cut.
    """
    step = ALIGN_BYTES // np.dtype(dtype).itemsize
    ends = [0]
    for shape in shapes:
        size = _round_up(math.prod(shape), step)
        ends.append(ends[-1] + size)
    size = _round_up(ends[-1], parts * step)
    flat = operators.zeros(size, dtype)
    views = []
    for start, shape in zip(ends, shapes, strict=False):
        gradient = flat[start : start + math.prod(shape)]
        views.append(gradient.reshape(shape))
    return flat, views


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
