"""What a message costs on a machine: links, nodes with shared NICs, racks with fewer uplinks. Pure.

Ranks are numbered node by node, and nodes rack by rack, as launchers number them.
"""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """Hockney's model: a message of m bytes takes alpha + m beta, its reduction m gamma more."""

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0

    def message_s(self, n_bytes: float) -> float:
        """Time of one message, not reduced."""
        return self.alpha_s + n_bytes * self.beta_s_per_byte

    def reduced_s(self, n_bytes: float) -> float:
        """Time of one message with its reduction."""
        return self.message_s(n_bytes) + n_bytes * self.gamma_s_per_byte


class Node(NamedTuple):
    """`ranks` accelerators joined by `inside` (one's own link), sharing `nics` NICs of `nic`.

    `inside.gamma_s_per_byte` is the reduction rate of an accelerator, wherever data came from.
    """

    ranks: int
    inside: Link
    nics: int
    nic: Link


class Topology(NamedTuple):
    """`nodes` equal nodes; racks of `rack_nodes` have 1/`oversubscription` of their NICs' rate up.

    `rack_nodes` 0: full bisection. ABCI: 34 nodes a rack, 68 ports in, 24 up, called 1/3
    (arXiv:1903.12650).
    """

    node: Node
    nodes: int
    rack_nodes: int = 0
    oversubscription: float = 1.0

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.node.ranks * self.nodes

    def one_flow(self) -> Link:
        """A node's link when one of its ranks sends: that flow is striped over all NICs."""
        return self._across(flows=1.0, distance_nodes=1.0)

    def ring(self, stride: int, count: int) -> Link:
        """One step of rings over `count` ranks `stride` apart, all such rings at once.

        Of a node's R ranks min(stride, R) send to another node; they share its NICs. Chunks
        travel on through all hops of a ring, so its latency is the mean over the hops (NCCL:
        2(nodes-1) steps at network latency, the rest inside, tuning.cc); its rate is that of
        the slowest hop.
        """
        # all ranks of a ring are in one node
        if stride * count <= self.node.ranks or self.nodes == 1:
            return self.node.inside
        nodes_away = stride / self.node.ranks
        leaving = min(1.0, nodes_away)
        across = self._across(leaving * self.node.ranks, nodes_away)
        if leaving == 1.0:
            return across
        inside = self.node.inside
        more_alpha_s = across.alpha_s - inside.alpha_s
        return Link(
            inside.alpha_s + leaving * more_alpha_s,
            max(inside.beta_s_per_byte, across.beta_s_per_byte),
            inside.gamma_s_per_byte,
        )

    def exchange(self, distance: int) -> Link:
        """One step in which ranks r and r XOR `distance` swap: inside nodes, or all ranks leave."""
        ranks = self.node.ranks
        # r XOR distance stays within a node whose ranks are whole pairs of such blocks
        if self.nodes == 1 or ranks % (2 * distance) == 0:
            return self.node.inside
        return self._across(ranks, distance / ranks)

    def _across(self, flows: float, distance_nodes: float) -> Link:
        """`flows` a node over its NICs; of a rack's flows distance/rack_nodes go to the spine."""
        rate = self.node.nic.beta_s_per_byte * flows / self.node.nics
        if 0 < self.rack_nodes < self.nodes:
            leaving_rack = min(1.0, max(1.0, distance_nodes) / self.rack_nodes)
            rate *= max(1.0, leaving_rack * self.oversubscription)
        gamma = self.node.inside.gamma_s_per_byte
        nic = self.node.nic
        return nic._replace(beta_s_per_byte=rate, gamma_s_per_byte=gamma)
