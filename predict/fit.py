"""The constants of a machine's computation: from its data sheet, its points, or both. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ..config.machine import Compute, Point, System
from ..host.errors import UserError
from .gpu import SHEET, SIGMA_FIXED, SIGMA_PER_IMAGE, SIGMA_POINT, Sheet, from_sheet
from .hardware import Machine, known_precisions, uses_sheet
from .step import step_time

_ROUNDS = 40
_CLOSE_S = 1e-10
_CLOSE = 1e-9
_LEAST_S = 1e-9
_MOST_EXPONENT = 2.0
"""No measured step grows so fast with the batch (TPU v3: 0.85)."""


@lru_cache(maxsize=256)
def build(
    name: str, system: System, precision: str = "fp16", sheet: Sheet = SHEET
) -> Machine:
    """The model of a system: from the data sheet, refined by points; without a data sheet the
    constants with which a step passes through the points. Raises UserError: no performance section,
    or none for the precision."""
    performance = system.performance
    if performance is None:
        raise UserError(
            f"{name}: a performance section in its YAML expected, found none: fit one to ImageNet "
            "runs on it (`rn50 predict calibrate RUN... --out mine.yaml`, then `--system "
            "mine.yaml`), or name a described machine (`--system dgxa100`)"
        )
    compute: Compute | None = getattr(performance, precision, None)
    if uses_sheet(performance, precision):
        fixed_s, per_image_s = from_sheet(performance, sheet)
        machine = Machine(name, system, performance, precision, fixed_s, per_image_s)
        return _refined(machine, compute.points if compute else ())
    if compute is None:
        precisions = ", ".join(known_precisions(performance))
        raise UserError(
            f"{name}: precision one of {precisions} expected, found {precision}"
        )
    machine = Machine(
        name, system, performance, precision, fixed_s=0.0, per_image_s=1.0
    )
    return _through_points(machine, compute)


def _refined(sheet: Machine, points: tuple[Point, ...]) -> Machine:
    """The most probable constants, given those of the data sheet and the points: Gauss-Newton on
    the logarithms, each deviation in units of its sigma."""
    # information is the inverse of variance: that of the data sheet on ln per_image_s and ln
    # fixed_s, which the points' is added to
    prior = np.diag([SIGMA_PER_IMAGE**-2, SIGMA_FIXED**-2])
    offset = np.zeros(2)
    machine = sheet
    for _ in range(_ROUNDS):
        misses = []
        # of ln step by ln per_image_s and ln fixed_s: the share of the step that each is
        slopes = []
        for point in points:
            total_s = _step_s(machine, point)
            growing = machine.growing_s(point.batch) / total_s
            misses.append(math.log(point.step_s / total_s))
            slopes.append((growing, machine.fixed_s / total_s))
        jacobian = np.array(slopes).reshape(-1, 2)
        information = jacobian.T @ jacobian / SIGMA_POINT**2
        spread = np.linalg.inv(prior + information)
        pull = jacobian.T @ np.array(misses) / SIGMA_POINT**2
        step = spread @ (pull - prior @ offset)
        offset = offset + step
        machine = replace(
            sheet,
            per_image_s=sheet.per_image_s * math.exp(offset[0]),
            fixed_s=sheet.fixed_s * math.exp(offset[1]),
            # both variances, then the covariance beside the diagonal
            covariance=tuple(spread[[0, 1, 0], [0, 1, 1]].tolist()),
        )
        if np.abs(step).max() < _CLOSE:
            break
    return machine


def _through_points(machine: Machine, compute: Compute) -> Machine:
    """The constants with which the steps of `machine` are those of the points."""
    alone = [point.step_s for point in compute.points]
    machine = _through(machine, compute, alone)
    # what waits beside computation hardly depends on it: a contraction
    for _ in range(_ROUNDS):
        previous = alone
        alone = []
        for point in compute.points:
            beside_s = _step_s(machine, point) - machine.compute_s(point.batch)
            alone.append(max(_LEAST_S, point.step_s - beside_s))
        machine = _through(machine, compute, alone)
        if np.abs(np.subtract(alone, previous)).max() < _CLOSE_S:
            break
    if not 0 < machine.exponent < _MOST_EXPONENT:
        raise UserError(
            f"{machine.name}: points whose step grows with the batch, by less than its square, "
            f"expected, found {[point.step_s for point in compute.points]} s at batches "
            f"{[point.batch for point in compute.points]}"
        )
    return machine


def _step_s(machine: Machine, point: Point) -> float:
    """A point's step by `machine`."""
    return step_time(machine, point.gpus, point.batch).total_s


def _through(machine: Machine, compute: Compute, alone: list[float]) -> Machine:
    """The line through the points of computation alone, by least squares where they are many."""
    batches = [point.batch for point in compute.points]
    # linear but where `fixed_s` leaves two points free to say more
    exponent = 1.0
    if compute.fixed_s is None:
        slope, fixed = np.polyfit(batches, alone, 1).tolist()
        if fixed < 0:  # no step starts before zero: the line through it instead
            slope = float(np.mean(np.divide(alone, batches)))
            fixed = 0.0
    else:
        fixed = compute.fixed_s
        growing = np.subtract(alone, fixed)
        if len(alone) == 2 and batches[0] != batches[1]:
            # the iteration may pass through points that no step can have
            first, second = np.log(np.maximum(growing, _LEAST_S)).tolist()
            exponent = (first - second) / math.log(batches[0] / batches[1])
            exponent = min(max(0.0, exponent), _MOST_EXPONENT)
        grown = [batch**exponent for batch in batches]
        slope = float(np.mean(growing / grown))
    if slope <= 0:
        raise UserError(
            f"{machine.name}: points on a rising line expected, found "
            f"{fixed * 1e3:.1f} ms + {slope * 1e3:.3f} ms per image"
        )
    return replace(machine, fixed_s=fixed, per_image_s=slope, exponent=exponent)
