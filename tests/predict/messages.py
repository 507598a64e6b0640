"""The oracle of `predict/cost.py`: allreduce algorithms as messages, with a clock for each rank.

A message leaves when its sender has finished the round before; its receiver is done when it has
arrived, and not before the receiver's own link and adder are free:

    t'[dst] = max(t[dst] + m (beta + gamma), t[src] + alpha + m (beta + gamma))

Messages of a round share links: a node's its NICs, a rack's its uplinks, a rank's its own link,
each at the busier of the two ends.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rn50.config.algorithms import GRIDS, parse_algorithm
from rn50.predict.cost import SEGMENT_BYTES, TREE_CHUNK_BYTES, topology_grid
from rn50.predict.topology import Link, Node, Topology

Ranks: TypeAlias = NDArray[np.int64]
Times: TypeAlias = NDArray[np.float64]
Rounds: TypeAlias = Iterator["Round"]


class Round(NamedTuple):
    """Messages that travel at once, and that `repeat` times: `n_bytes` from each rank of `src` to
    the one at the same place of `dst`, which adds them to its own where the round reduces."""

    src: Ranks
    dst: Ranks
    n_bytes: float
    reduce: bool
    repeat: int = 1


def flat(ranks: int, link: Link) -> Topology:
    """`ranks` nodes of one rank on a full-bisection switch."""
    return Topology(Node(1, link, 1, link), ranks)


def schedule(algorithm: str, topology: Topology, n_bytes: float) -> Rounds:
    """Rounds of `algorithm`, as `comm.algorithm` names it. The double tree's are those of one chunk
    a tree, where others would follow."""
    name, sides = parse_algorithm(algorithm, topology.ranks)
    ranks = np.arange(topology.ranks)
    if name in GRIDS:
        ranks = ranks.reshape(sides or topology_grid(topology))
    return SCHEDULES[name](ranks, n_bytes)


def _half_ring(
    members: Ranks, n_bytes: float, *, reduce: bool, segments: int = 1
) -> Rounds:
    """Reduce-scatter or allgather of `n_bytes` in each row of `members`: chunks to the next."""
    size = members.shape[1]
    if size > 1:
        yield Round(
            src=members.ravel(),
            dst=np.roll(members, -1, axis=1).ravel(),
            n_bytes=n_bytes / size / segments,
            reduce=reduce,
            repeat=(size - 1) * segments,
        )


def _rings(members: Ranks, n_bytes: float, segments: int = 1) -> Rounds:
    for reduce in (True, False):
        yield from _half_ring(members, n_bytes, reduce=reduce, segments=segments)


def _ring(ranks: Ranks, n_bytes: float) -> Rounds:
    return _rings(ranks[None, :], n_bytes)


def _segmented_ring(ranks: Ranks, n_bytes: float) -> Rounds:
    chunk = n_bytes / ranks.size
    segments = max(1, math.ceil(chunk / SEGMENT_BYTES))
    return _rings(ranks[None, :], n_bytes, segments)


def _torus_2d(members: Ranks, n_bytes: float) -> Rounds:
    """Rows of neighbours reduce-scatter, columns reduce the chunks, rows gather."""
    yield from _half_ring(members, n_bytes, reduce=True)
    yield from _rings(members.T, n_bytes / members.shape[1])
    yield from _half_ring(members, n_bytes, reduce=False)


def _recursive_doubling(ranks: Ranks, n_bytes: float) -> Rounds:
    fold, active, unfold = _folded(ranks, n_bytes)
    yield from fold
    for partner in _partners(active):
        yield Round(active, partner, n_bytes, reduce=True)
    yield from unfold


def _halving_doubling(ranks: Ranks, n_bytes: float) -> Rounds:
    """Halves go to the neighbour, quarters two away, ...; then the sums come back that way."""
    fold, active, unfold = _folded(ranks, n_bytes)
    yield from fold
    parts = []
    part = n_bytes
    for partner in _partners(active):
        part /= 2
        parts.append((partner, part))
        yield Round(active, partner, part, reduce=True)
    for partner, part in reversed(parts):
        yield Round(active, partner, part, reduce=False)
    yield from unfold


def _partners(active: Ranks) -> Iterator[Ranks]:
    """Neighbours, those two away, four away, ..."""
    positions = np.arange(active.size)
    distance = 1
    while distance < active.size:
        yield active[positions ^ distance]
        distance *= 2


def _folded(ranks: Ranks, n_bytes: float) -> tuple[list[Round], Ranks, list[Round]]:
    """No power of two: of the first 2r ranks the even ones give theirs away and get the sum."""
    doublings = ranks.size.bit_length() - 1
    extra = ranks.size - (1 << doublings)
    if not extra:
        return [], ranks, []
    givers = ranks[: 2 * extra : 2]
    takers = ranks[1 : 2 * extra : 2]
    active = np.concatenate([takers, ranks[2 * extra :]])
    fold = Round(givers, takers, n_bytes, reduce=True)
    unfold = Round(takers, givers, n_bytes, reduce=False)
    return [fold], active, [unfold]


def _double_tree(ranks: Ranks, n_bytes: float) -> Rounds:
    """Up to both roots and down again, a level a round; half the buffer in each tree."""
    # NCCL's binary tree: odd ranks are leaves; 0 is its own parent here
    bit = ranks & -ranks
    up = (ranks ^ bit) | (bit << 1)
    parents = np.where(up < ranks.size, up, ranks ^ bit)
    depths = np.zeros_like(ranks)
    ancestors = ranks
    while ancestors.any():
        depths += ancestors > 0
        ancestors = parents[ancestors]
    # The second tree mirrors the first, or shifts it by one, so that its inner ranks are leaves.
    second_tree = np.roll(ranks, -1)
    if ranks.size % 2 == 0:
        second_tree = ranks[::-1]
    levels = []
    for depth in range(1, depths.max() + 1):
        child = np.flatnonzero(depths == depth)
        parent = parents[child]
        children = np.r_[child, second_tree[child]]
        above = np.r_[parent, second_tree[parent]]
        levels.append((children, above))
    for children, above in reversed(levels):
        yield Round(children, above, n_bytes / 2, reduce=True)
    for children, above in levels:
        yield Round(above, children, n_bytes / 2, reduce=False)


SCHEDULES: dict[str, Callable[[Ranks, float], Rounds]] = {
    "ring": _ring,
    "segmented_ring": _segmented_ring,
    "recursive_doubling": _recursive_doubling,
    "recursive_halving_doubling": _halving_doubling,
    "torus_2d": _torus_2d,
    "hierarchical": _torus_2d,
    "double_tree": _double_tree,
}


# --- clocks -------------------------------------------------------------------------------------


def allreduce_s(algorithm: str, topology: Topology, n_bytes: float) -> float:
    """When the last rank has the sum, if all begin at 0. The double tree sends one chunk a tree
    through its levels; the others follow at the busiest rank's pace, as in `cost.double_tree`."""
    tail_s = 0.0
    if algorithm == "double_tree":
        chunks = max(1, math.ceil(n_bytes / 2 / TREE_CHUNK_BYTES))
        chunk = n_bytes / 2 / chunks
        inside = topology.node.inside
        link = topology.one_flow() if topology.nodes > 1 else inside
        beta = max(link.beta_s_per_byte, inside.beta_s_per_byte)
        chunk_s = 4 * chunk * beta + 2 * chunk * link.gamma_s_per_byte
        tail_s = (chunks - 1) * chunk_s
        n_bytes = 2 * chunk
    clocks = np.zeros(topology.ranks)
    for messages in schedule(algorithm, topology, n_bytes):
        clocks = _run(clocks, messages, topology)
    return float(clocks.max()) + tail_s


def _times(topology: Topology, messages: Round) -> tuple[Times, Times]:
    """Latency and occupancy of each message: a rank shares its link and its adder, a node its NICs,
    a rack its uplinks."""
    node = topology.node
    src = messages.src
    dst = messages.dst
    src_node = src // node.ranks
    dst_node = dst // node.ranks
    leaves = src_node != dst_node
    nic_beta = node.nic.beta_s_per_byte / node.nics
    across = nic_beta * _busier(src_node, dst_node, leaves)
    if 0 < topology.rack_nodes < topology.nodes:
        src_rack = src_node // topology.rack_nodes
        dst_rack = dst_node // topology.rack_nodes
        uplink = nic_beta / topology.rack_nodes * topology.oversubscription
        crosses = src_rack != dst_rack
        upwards = uplink * _busier(src_rack, dst_rack, crosses)
        across = np.maximum(across, upwards)
    inside = node.inside.beta_s_per_byte * _busier(src, dst, ~leaves)
    per_byte_s = np.where(leaves, across, inside)
    if messages.reduce:
        per_byte_s += node.inside.gamma_s_per_byte * np.bincount(dst)[dst]
    n_bytes = messages.n_bytes
    latency_s = np.where(leaves, node.nic.alpha_s, node.inside.alpha_s)
    return latency_s, n_bytes * per_byte_s


def _busier(src: Ranks, dst: Ranks, counted: NDArray[np.bool_]) -> Times:
    """How many `counted` messages leave the source of each one, or enter its destination."""
    count = max(src.max(), dst.max()) + 1
    out = np.bincount(src[counted], minlength=count)
    into = np.bincount(dst[counted], minlength=count)
    return np.maximum(out[src], into[dst]) * counted


def _run(clocks: Times, messages: Round, topology: Topology) -> Times:
    """The ranks' clocks after a round."""
    src = messages.src
    dst = messages.dst
    latency_s, wire_s = _times(topology, messages)
    sent = np.bincount(src)
    received = np.bincount(dst)
    messages_of_a_rank = max(sent.max(), received.max())
    clocks = clocks.copy()
    for _ in range(messages.repeat):
        left_s = clocks[src] + wire_s
        done_s = np.maximum(clocks[dst] + wire_s, left_s + latency_s)
        if messages_of_a_rank == 1:  # ten times as fast
            clocks[src] = left_s
            clocks[dst] = np.maximum(clocks[dst], done_s)
        else:
            np.maximum.at(clocks, src, left_s)
            np.maximum.at(clocks, dst, done_s)
    return clocks
