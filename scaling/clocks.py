"""One clock per rank, moved by an allreduce's messages round by round. Pure.

An event is one message: it leaves when its sender has finished the round before, and its receiver
is done when it has arrived, and not before the receiver's own link and adder are free:

    t'[dst] = max(t[dst] + m (beta + gamma), t[src] + alpha + m (beta + gamma))

Messages of a round share links: a node's flows its NICs, a rack's its uplinks, a rank's its own
link, each at the busier of the two ends. A round is a few NumPy operations over all ranks. Adding
is not overlapped with the wire: segments, whose purpose that is, come out as slow as it makes them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .collectives import Ranks, Round, schedule
from .cost import SEGMENT_BYTES, TREE_CHUNK_BYTES, topology_grid
from .topology import Link, Topology

Times = NDArray[np.float64]


class SlowLink(NamedTuple):
    """All that enters or leaves `node` takes `factor` times as long."""

    node: int
    factor: float


class Stage(NamedTuple):
    """`repeat` equal rounds: who sends to whom, latency and occupancy of each message."""

    src: Ranks
    dst: Ranks
    latency_s: Times
    wire_s: Times
    everyone: bool  # receives one message; then they are in the receivers' order
    once: bool  # nobody sends or receives two
    repeat: int
    rings: tuple[int, int, int] | None = None  # see `_rings`


class Program(NamedTuple):
    """The stages of one allreduce, then `tail_s` of streaming on all ranks (double tree)."""

    stages: tuple[Stage, ...]
    tail_s: float = 0.0


def compile_allreduce(
    algorithm: str, topology: Topology, n_bytes: float, slow_link: SlowLink | None = None
) -> Program:
    """The allreduce of `n_bytes` on this machine, ready to run on clocks.

    The double tree sends one chunk a tree through its levels, and the other chunks follow at the
    busiest rank's pace, as in `cost.double_tree`.
    """
    if algorithm == "double_tree":
        chunks = max(1, math.ceil(n_bytes / 2 / TREE_CHUNK_BYTES))
        chunk = n_bytes / 2 / chunks
        stages = _stages(algorithm, topology, 2 * chunk, slow_link)
        link = topology.one_flow() if topology.nodes > 1 else topology.node.inside
        beta = max(link.beta_s_per_byte, topology.node.inside.beta_s_per_byte)
        beta *= slow_link.factor if slow_link else 1.0
        period_s = 4 * chunk * beta + 2 * chunk * link.gamma_s_per_byte
        return Program(stages, (chunks - 1) * period_s)
    if algorithm == "segmented_ring" and n_bytes / topology.ranks <= SEGMENT_BYTES:
        algorithm = "ring"
    eager_bytes = min(topology.node.inside.eager_bytes, topology.node.nic.eager_bytes)
    if algorithm == "segmented_ring" or eager_bytes < math.inf:
        return Program(_stages(algorithm, topology, n_bytes, slow_link))
    unit = _stages(algorithm, topology, 1.0, slow_link)  # all messages grow with the buffer
    return Program(tuple(stage._replace(wire_s=stage.wire_s * n_bytes) for stage in unit))


def run(clocks: Times, program: Program) -> Times:
    """The ranks' clocks after the allreduce."""
    clocks = clocks.copy()
    heard = np.empty_like(clocks)
    for stage in program.stages:
        arrival_s = stage.latency_s + stage.wire_s
        for _ in range(stage.repeat):
            if stage.everyone:
                if stage.rings is None:
                    np.take(clocks, stage.src, out=heard, mode="clip")  # the mode without a copy
                    heard += arrival_s
                else:
                    _hear_neighbours(clocks, arrival_s, heard, stage.rings)
                clocks += stage.wire_s
                np.maximum(clocks, heard, out=clocks)
            else:
                sent_s, heard_s = clocks[stage.src], clocks[stage.dst]
                done_s = np.maximum(heard_s + stage.wire_s, sent_s + arrival_s)
                if stage.once:
                    clocks[stage.src] = sent_s + stage.wire_s
                    clocks[stage.dst] = np.maximum(clocks[stage.dst], done_s)
                else:
                    np.maximum.at(clocks, stage.src, sent_s + stage.wire_s)
                    np.maximum.at(clocks, stage.dst, done_s)
    return clocks + program.tail_s


def _hear_neighbours(
    clocks: Times, arrival_s: Times, heard: Times, rings: tuple[int, int, int]
) -> None:
    """`heard[dst] = clocks[src] + arrival_s` by slices, three times as fast as by numbers."""
    sent, after, into = clocks.reshape(rings), arrival_s.reshape(rings), heard.reshape(rings)
    np.add(sent[:, :-1], after[:, 1:], out=into[:, 1:])
    np.add(sent[:, -1], after[:, 0], out=into[:, 0])


def _rings(src: Ranks) -> tuple[int, int, int] | None:
    """(blocks, places, stride) where each rank hears the one `stride` before it, cyclically.

    One ring is (1, p, 1); the rows of a torus (Y, X, 1), its columns (1, Y, X). Short rows are
    left to numbers: slices of a few are slow.
    """
    stride = len(src) - 1 - int(src[-1])
    if stride < 1:
        return None
    places = int(src[0]) // stride + 1
    if places * stride < 64 or len(src) % (places * stride):
        return None
    shape = (len(src) // (places * stride), places, stride)
    expected = np.roll(np.arange(len(src)).reshape(shape), 1, axis=1).ravel()
    return shape if (src == expected).all() else None


@lru_cache(maxsize=64)
def _stages(
    algorithm: str, topology: Topology, n_bytes: float, slow_link: SlowLink | None
) -> tuple[Stage, ...]:
    """Rounds become stages; equal neighbours (a ring's) become one with a repeat."""
    stages: list[Stage] = []
    wires = None
    close = 1e-9 * n_bytes / topology.ranks
    kind: tuple[bool, float] | None = None  # of the last stage: reduces, size if all are equal
    for messages in schedule(algorithm, topology.ranks, float(n_bytes), topology_grid(topology)):
        if wires is None or wires.src is not messages.src or wires.dst is not messages.dst:
            wires = _wires(topology, messages, slow_link)
            kind = None
        sizes = (messages.stop - messages.start).astype(np.float64)
        size = float(sizes.max())
        equal = size - float(sizes.min()) <= close
        if equal and kind and kind[0] == messages.reduce and abs(kind[1] - size) <= close:
            stages[-1] = stages[-1]._replace(repeat=stages[-1].repeat + 1)
            continue
        stages.append(wires.stage(sizes, topology, reduce=messages.reduce))
        kind = (messages.reduce, size) if equal else None
    return tuple(stages)


class _Wires(NamedTuple):
    """Latency and seconds per byte of each message of a round, given the others of it."""

    src: Ranks
    dst: Ranks
    leaves: NDArray[np.bool_]
    beta_s_per_byte: Times

    def stage(self, sizes: Times, topology: Topology, *, reduce: bool) -> Stage:
        heard = np.bincount(self.dst)[self.dst]  # one adder a rank
        gamma = topology.node.inside.gamma_s_per_byte * heard if reduce else 0.0
        wire_s = sizes * (self.beta_s_per_byte + gamma)
        once = heard.max() == 1 and np.bincount(self.src).max() == 1
        everyone = once and len(self.dst) == topology.ranks
        pick = np.argsort(self.dst) if everyone else np.arange(len(self.dst))
        latency_s = np.where(
            self.leaves,
            _latency_s(topology.node.nic, sizes),
            _latency_s(topology.node.inside, sizes),
        )
        ends = self.src[pick], self.dst[pick]
        rings = _rings(ends[0]) if everyone else None
        return Stage(*ends, latency_s[pick], wire_s[pick], everyone, once, 1, rings)


def _latency_s(link: Link, sizes: Times) -> Times:
    """`Link.latency_s` of many messages."""
    return link.alpha_s * np.where(sizes > link.eager_bytes, 3.0, 1.0)


def _wires(topology: Topology, messages: Round, slow_link: SlowLink | None) -> _Wires:
    """Who shares what: a rank its link, a node its NICs, a rack its uplinks."""
    node = topology.node
    src, dst = messages.src, messages.dst
    src_node, dst_node = src // node.ranks, dst // node.ranks
    leaves = src_node != dst_node
    own = _busier(src, dst, ~leaves)
    beta = node.inside.beta_s_per_byte * own
    nics = node.nic.beta_s_per_byte / node.nics
    across = nics * _busier(src_node, dst_node, leaves)
    if 0 < topology.rack_nodes < topology.nodes:
        src_rack, dst_rack = src_node // topology.rack_nodes, dst_node // topology.rack_nodes
        uplink = nics / topology.rack_nodes * topology.oversubscription
        goes_up = src_rack != dst_rack
        across = np.maximum(across, uplink * _busier(src_rack, dst_rack, goes_up) * goes_up)
    if slow_link is not None:
        touched = (src_node == slow_link.node) | (dst_node == slow_link.node)
        across = np.where(touched, across * slow_link.factor, across)
    return _Wires(src, dst, leaves, np.where(leaves, across, beta))


def _busier(src: Ranks, dst: Ranks, counted: NDArray[np.bool_]) -> Times:
    """Of each message: how many `counted` ones leave its source, or enter its destination."""
    places = int(max(src.max(), dst.max())) + 1
    out = np.bincount(src[counted], minlength=places)[src]
    into = np.bincount(dst[counted], minlength=places)[dst]
    return np.maximum(out, into).astype(np.float64)
