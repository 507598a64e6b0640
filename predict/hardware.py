"""A described machine as a model: its topology, and the constants of its computation. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.machine import Compute, Performance, Point, System
from .topology import Link, Node, Topology

GAMMA_S_PER_BYTE = 1e-12
"""Adding two fp16 vectors in an accelerator's memory: three passes at some 3 TB/s."""
_NETWORK_EFFICIENCY = 0.8
"""Share of a network card's rate that messages get."""


@dataclass(frozen=True)
class Machine:
    """`system` with its model; a step computes for fixed_s + per_image_s x batch ^ exponent."""

    name: str
    system: System
    performance: Performance
    precision: str
    fixed_s: float
    per_image_s: float
    exponent: float = 1.0
    covariance: tuple[float, float, float] | None = None
    """That of ln per_image_s and ln fixed_s, where a data sheet and points are weighed: the
    variances, then the covariance."""

    @property
    def points(self) -> tuple[Point, ...]:
        """What its speed is known from, its data sheet aside."""
        return self.measured + self.performance.other_points

    @property
    def measured(self) -> tuple[Point, ...]:
        """Its own points of this precision."""
        compute: Compute | None = getattr(self.performance, self.precision)
        return compute.points if compute else ()

    @property
    def has_sheet(self) -> bool:
        """Whether its data sheet describes computing in its precision."""
        return uses_sheet(self.performance, self.precision)

    def growing_s(self, batch: float) -> float:
        """The part of a step's computation that grows with the batch of a rank."""
        return float(self.per_image_s * batch**self.exponent)

    def compute_s(self, batch: float) -> float:
        """Forward, backward and update of one rank alone, without waiting for anybody."""
        return self.fixed_s + self.growing_s(batch)


def topology_of(machine: Machine, gpus: int, *, tree: bool = False) -> Topology:
    """The nodes that `gpus` ranks fill; `tree`: with NCCL's tree latency, which is its own."""
    performance = machine.performance
    per_node = min(gpus, machine.system.ranks_per_node)
    alpha = performance.tree_latency_s if tree else performance.inter_latency_s
    beta = 1 / (performance.nic_bytes_per_s * _NETWORK_EFFICIENCY)
    nic = Link(alpha, beta, GAMMA_S_PER_BYTE)
    inside = Link(
        performance.intra_latency_s, 1 / performance.intra_bytes_per_s, GAMMA_S_PER_BYTE
    )
    node = Node(per_node, inside, performance.nics, nic)
    nodes = -(-gpus // per_node)  # rounded up
    return Topology(node, nodes, performance.rack_nodes, performance.oversubscription)


def uses_sheet(performance: Performance, precision: str) -> bool:
    """Whether the data sheet describes computing in `precision`."""
    return precision == "fp16" and performance.tensor_flops_per_s is not None


def known_precisions(performance: Performance) -> list[str]:
    """Those that points or a data sheet are given for."""
    return [
        precision
        for precision in ("fp16", "fp32", "tf32")
        if getattr(performance, precision) is not None
        or uses_sheet(performance, precision)
    ]
