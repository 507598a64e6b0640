"""A described machine as a model: topology, and compute constants solved from its points. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..config.errors import UserError
from ..config.machine import Compute, Performance, Point, System
from .gpu import SIGMA_FIXED, SIGMA_PER_IMAGE, SIGMA_POINT, Sheet, from_sheet
from .topology import Link, Node, Topology

GAMMA_S_PER_BYTE = 1e-12
"""Adding two fp16 vectors in an accelerator's memory: three passes at some 3 TB/s."""
_NETWORK_EFFICIENCY = 0.8
"""Share of a network card's rate that messages get."""

_ROUNDS = 40
_CLOSE_S = 1e-10
_CLOSE = 1e-9


@dataclass(frozen=True)
class Machine:
    """`system` with its model; a step computes for fixed_s + per_image_s x batch ^ exponent."""

    name: str
    system: System
    performance: Performance
    precision: str
    fixed_s: float
    per_image_s: float
    exponent: float
    covariance: tuple[float, float, float] | None = None
    """Of ln per_image_s and ln fixed_s, where a data sheet and points are weighed: the variances,
    then the covariance."""

    @property
    def points(self) -> tuple[Point, ...]:
        """What its speed is known from, its data sheet aside."""
        compute: Compute | None = getattr(self.performance, self.precision)
        return (*(compute.points if compute else ()), *self.performance.other_points)

    @property
    def has_sheet(self) -> bool:
        return uses_sheet(self.performance, self.precision)

    def growing_s(self, batch: float) -> float:
        """The part of a step's computation that grows with the batch of a rank."""
        return float(self.per_image_s * batch**self.exponent)

    def compute_s(self, batch: float) -> float:
        """Forward, backward and update of one rank alone, without waiting for anybody."""
        return self.fixed_s + self.growing_s(batch)


def as_measured(machine: Machine) -> Machine:
    """`machine` with the network on which its points were measured, which explains them."""
    compute: Compute | None = getattr(machine.performance, machine.precision)
    if compute is None or compute.measured_on is None:
        return machine
    network = dict(compute.measured_on)
    placed = {"ranks_per_node": network.pop("ranks_per_node")}
    system = machine.system.model_copy(update=placed)
    return replace(
        machine,
        system=system,
        performance=machine.performance.model_copy(update=network),
    )


def topology_of(machine: Machine, gpus: int, *, tree: bool = False) -> Topology:
    """The nodes that `gpus` ranks fill; `tree`: with NCCL's tree latency, which is its own."""
    about = machine.performance
    per_node = min(gpus, machine.system.ranks_per_node)
    alpha = about.tree_latency_s if tree else about.inter_latency_s
    beta = 1 / (about.nic_bytes_per_s * _NETWORK_EFFICIENCY)
    inside = Link(about.intra_latency_s, 1 / about.intra_bytes_per_s, GAMMA_S_PER_BYTE)
    node = Node(
        per_node,
        inside,
        about.nics,
        Link(alpha, beta, GAMMA_S_PER_BYTE),
    )
    nodes = -(-gpus // per_node)
    return Topology(
        node,
        nodes,
        about.rack_nodes,
        about.oversubscription,
    )


def takes_any_grid(system: System) -> bool:
    """Whether its ranks sum on any grid: ours on CPUs, and accelerators with software of their own
    for it. On GPUs Horovod's rows are the nodes."""
    about = system.performance
    return system.device == "cpu" or (about is not None and about.square_torus)


def uses_sheet(about: Performance, precision: str) -> bool:
    """Whether the data sheet describes computing in `precision`."""
    return precision == "fp16" and about.tensor_flops_per_s is not None


def known_precisions(about: Performance) -> list[str]:
    """Those that points or a data sheet are given for."""
    return [
        key
        for key in ("fp16", "fp32", "tf32")
        if getattr(about, key) is not None or uses_sheet(about, key)
    ]


def build_machine(
    name: str,
    system: System,
    precision: str,
    step_s: Callable[[Machine, int, int], float],
    sheet: Sheet,
) -> Machine:
    """The constants of computation: from the data sheet, refined by points; without a data sheet
    those with which `step_s(machine, gpus, batch)` passes through the points. Raises UserError: no
    performance section, or none for the precision."""
    about = system.performance
    if about is None:
        raise UserError(
            f"{name}: a performance section in its YAML expected, found none: fit one to ImageNet "
            "runs on it (`rn50 predict calibrate RUN... --out mine.yaml`, then `--system "
            "mine.yaml`), or name a described machine (`--system dgxa100`)"
        )
    compute = getattr(about, precision, None)
    if uses_sheet(about, precision):
        fixed_s, per_image_s = from_sheet(about, sheet)
        blank = Machine(
            name,
            system,
            about,
            precision,
            fixed_s,
            per_image_s,
            1.0,
        )
        return _refined(blank, compute.points if compute else (), step_s)
    if compute is None:
        known = known_precisions(about)
        raise UserError(
            f"{name}: precision one of {', '.join(known)} expected, found {precision}"
        )
    alone = [point.step_s for point in compute.points]
    machine = _through(
        Machine(name, system, about, precision, 0.0, 1.0, 1.0), compute, alone
    )
    # what waits beside computation hardly depends on it: a contraction
    for _ in range(_ROUNDS):
        before = alone
        alone = [
            max(
                1e-9,
                p.step_s
                - (step_s(machine, p.gpus, p.batch) - machine.compute_s(p.batch)),
            )
            for p in compute.points
        ]
        machine = _through(machine, compute, alone)
        if max(abs(a - b) for a, b in zip(alone, before, strict=True)) < _CLOSE_S:
            break
    return machine


def _refined(
    sheet: Machine,
    points: tuple[Point, ...],
    step_s: Callable[[Machine, int, int], float],
) -> Machine:
    """The most probable constants, given those of the data sheet and the points: Gauss-Newton on
    the logarithms, each deviation in units of its sigma."""
    prior = np.diag([SIGMA_PER_IMAGE**-2, SIGMA_FIXED**-2])
    offset = np.zeros(2)
    machine = sheet
    spread = np.linalg.inv(prior)
    for _ in range(_ROUNDS):
        misses = []
        slopes = []
        for point in points:
            total_s = step_s(machine, point.gpus, point.batch)
            misses.append(math.log(point.step_s / total_s))
            slopes.append(
                (machine.growing_s(point.batch) / total_s, machine.fixed_s / total_s)
            )
        jacobian = np.array(slopes).reshape(-1, 2)
        spread = np.linalg.inv(prior + jacobian.T @ jacobian / SIGMA_POINT**2)
        pull = jacobian.T @ np.array(misses) / SIGMA_POINT**2 - prior @ offset
        step = spread @ pull
        offset = offset + step
        machine = replace(
            sheet,
            per_image_s=sheet.per_image_s * math.exp(offset[0]),
            fixed_s=sheet.fixed_s * math.exp(offset[1]),
        )
        if np.abs(step).max() < _CLOSE:
            break
    return replace(
        machine,
        covariance=(float(spread[0, 0]), float(spread[1, 1]), float(spread[0, 1])),
    )


def _through(machine: Machine, compute: Compute, alone: list[float]) -> Machine:
    """The line through the points of computation alone, by least squares where they are many."""
    exponent = 1.0
    grown: list[float] = [point.batch for point in compute.points]
    if compute.fixed_s is not None:
        fixed = compute.fixed_s
        batches = [point.batch for point in compute.points]
        if len(alone) == 2 and batches[0] != batches[1]:
            ratio = (alone[0] - fixed) / (alone[1] - fixed)
            exponent = math.log(ratio) / math.log(batches[0] / batches[1])
            grown = [batch**exponent for batch in batches]
        slope = float(
            np.mean([(a - fixed) / g for a, g in zip(alone, grown, strict=True)])
        )
    else:
        slope, fixed = map(float, np.polyfit(grown, alone, 1))
        if fixed < 0:  # no step starts before zero: the line through it instead
            slope = float(np.mean(np.divide(alone, grown)))
            fixed = 0.0
    if slope <= 0:
        raise UserError(
            f"{machine.name}: points on a rising line expected, found "
            f"{fixed * 1e3:.1f} ms + {slope * 1e3:.3f} ms per image"
        )
    return replace(
        machine,
        fixed_s=fixed,
        per_image_s=slope,
        exponent=exponent,
    )
