"""The oracle of `scaling/cost.py`: allreduce algorithms as messages, with a clock for each rank.

A message leaves when its sender has finished the round before; its receiver is done when it has
arrived, and not before the receiver's own link and adder are free:

    t'[dst] = max(t[dst] + m (beta + gamma), t[src] + alpha + m (beta + gamma))

Messages of a round share links: a node's its NICs, a rack's its uplinks, a rank's its own link,
each at the busier of the two ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rn50.scaling.cost import (
    SEGMENT_BYTES,
    TREE_CHUNK_BYTES,
    grid,
    parse_algorithm,
    topology_grid,
)
from rn50.scaling.topology import Topology

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


def schedule(
    algorithm: str,
    ranks: int,
    n_bytes: float,
    default_grid: tuple[int, int] | None = None,
) -> Rounds:
    """Rounds of `algorithm`, as `comm.algorithm` names it, with its grid or `default_grid`. The
    double tree's are those of one chunk a tree, where others would follow."""
    name, sides = parse_algorithm(algorithm, ranks)
    if ranks == 1:
        return iter(())
    return SCHEDULES[name](ranks, n_bytes, sides or default_grid or grid(ranks))


def _half_ring(
    members: Ranks, n_bytes: float, *, reduce: bool, segments: int = 1
) -> Rounds:
    """Reduce-scatter or allgather of `n_bytes` in each row of `members`: chunks to the next."""
    places = members.shape[1]
    if places > 1:
        src = members.ravel()
        dst = np.roll(members, -1, axis=1).ravel()
        yield Round(
            src, dst, n_bytes / places / segments, reduce, (places - 1) * segments
        )


def _rings(members: Ranks, n_bytes: float, segments: int = 1) -> Rounds:
    yield from _half_ring(members, n_bytes, reduce=True, segments=segments)
    yield from _half_ring(members, n_bytes, reduce=False, segments=segments)


def _segmented_ring(ranks: int, n_bytes: float, _: tuple[int, int]) -> Rounds:
    segments = max(1, math.ceil(n_bytes / ranks / SEGMENT_BYTES))
    return _rings(np.arange(ranks)[None, :], n_bytes, segments)


def _torus_2d(ranks: int, n_bytes: float, sides: tuple[int, int]) -> Rounds:
    """Rows of `columns` neighbours reduce-scatter, columns reduce the chunks, rows gather."""
    members = np.arange(ranks).reshape(sides)
    yield from _half_ring(members, n_bytes, reduce=True)
    yield from _rings(members.T, n_bytes / sides[1])
    yield from _half_ring(members, n_bytes, reduce=False)


def _hierarchical(ranks: int, n_bytes: float, sides: tuple[int, int]) -> Rounds:
    """Reduce to the first of each row, a ring of those, broadcast: all bytes go across."""
    members = np.arange(ranks).reshape(sides)
    leaders = members[:, 0]
    others = members.T[1:]
    chunk = n_bytes / sides[1]
    yield from _half_ring(members, n_bytes, reduce=True)
    for member in others:
        yield Round(member, leaders, chunk, reduce=False)
    yield from _rings(leaders[None, :], n_bytes)
    for member in others:
        yield Round(leaders, member, chunk, reduce=False)
    yield from _half_ring(members, n_bytes, reduce=False)


def _recursive_doubling(ranks: int, n_bytes: float, _: tuple[int, int]) -> Rounds:
    def core(active: Ranks) -> Rounds:
        for k in range(len(active).bit_length() - 1):
            yield Round(
                active, active[np.arange(len(active)) ^ (1 << k)], n_bytes, reduce=True
            )

    return _folded(ranks, n_bytes, core)


def _halving_doubling(ranks: int, n_bytes: float, _: tuple[int, int]) -> Rounds:
    """Halves go to the neighbour, quarters two away, ...; then the sums come back that way."""

    def core(active: Ranks) -> Rounds:
        partners = [
            active[np.arange(len(active)) ^ (1 << k)]
            for k in range(len(active).bit_length() - 1)
        ]
        for k, partner in enumerate(partners):
            yield Round(active, partner, n_bytes / (2 << k), reduce=True)
        for k, partner in reversed(list(enumerate(partners))):
            yield Round(active, partner, n_bytes / (2 << k), reduce=False)

    return _folded(ranks, n_bytes, core)


def _folded(ranks: int, n_bytes: float, core: Callable[[Ranks], Rounds]) -> Rounds:
    """No power of two: of the first 2r ranks the even ones give theirs away and get the sum."""
    extra = ranks - (1 << (ranks.bit_length() - 1))
    given = np.arange(0, 2 * extra, 2)
    taken = np.arange(1, 2 * extra, 2)
    if extra:
        yield Round(given, taken, n_bytes, reduce=True)
    yield from core(np.concatenate([taken, np.arange(2 * extra, ranks)]))
    if extra:
        yield Round(taken, given, n_bytes, reduce=False)


def _double_tree(ranks: int, n_bytes: float, _: tuple[int, int]) -> Rounds:
    """Up to both roots and down again, a level a round; half the buffer in each tree."""
    rank = np.arange(ranks)
    # NCCL's binary tree: odd ranks are leaves; 0 is its own parent here
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    parents = np.where(up < ranks, up, rank ^ bit)
    depths = np.zeros(ranks, np.int64)
    at = rank
    while at.any():
        depths += at > 0
        at = parents[at]
    # The second tree mirrors the first, or shifts it by one, so that its inner ranks are leaves.
    other = ranks - 1 - rank if ranks % 2 == 0 else (rank + 1) % ranks
    levels = []
    for depth in range(1, int(depths.max()) + 1):
        child = np.flatnonzero(depths == depth)
        parent = parents[child]
        levels.append((np.r_[child, other[child]], np.r_[parent, other[parent]]))
    for children, above in reversed(levels):
        yield Round(children, above, n_bytes / 2, reduce=True)
    for children, above in levels:
        yield Round(above, children, n_bytes / 2, reduce=False)


SCHEDULES: dict[str, Callable[[int, float, tuple[int, int]], Rounds]] = {
    "ring": lambda ranks, n_bytes, _: _rings(np.arange(ranks)[None, :], n_bytes),
    "segmented_ring": _segmented_ring,
    "recursive_doubling": _recursive_doubling,
    "recursive_halving_doubling": _halving_doubling,
    "torus_2d": _torus_2d,
    "hierarchical": _hierarchical,
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
        tail_s = (chunks - 1) * (4 * chunk * beta + 2 * chunk * link.gamma_s_per_byte)
        n_bytes = 2 * chunk
    clocks = np.zeros(topology.ranks)
    for one in schedule(algorithm, topology.ranks, n_bytes, topology_grid(topology)):
        clocks = _run(clocks, one, *_times(topology, one))
    return float(clocks.max()) + tail_s


def _times(topology: Topology, one: Round) -> tuple[Times, Times]:
    """Latency and occupancy of each message: a rank shares its link and its adder, a node its NICs,
    a rack its uplinks."""
    node = topology.node
    src = one.src
    dst = one.dst
    src_node = src // node.ranks
    dst_node = dst // node.ranks
    leaves = src_node != dst_node
    nic_beta = node.nic.beta_s_per_byte / node.nics
    across = nic_beta * _busier(src_node, dst_node, leaves)
    if 0 < topology.rack_nodes < topology.nodes:
        src_rack = src_node // topology.rack_nodes
        dst_rack = dst_node // topology.rack_nodes
        uplink = nic_beta / topology.rack_nodes * topology.oversubscription
        across = np.maximum(
            across, uplink * _busier(src_rack, dst_rack, src_rack != dst_rack)
        )
    inside = node.inside.beta_s_per_byte * _busier(src, dst, ~leaves)
    gamma = node.inside.gamma_s_per_byte * np.bincount(dst)[dst] if one.reduce else 0.0
    latency_s = np.where(
        leaves, node.nic.latency_s(one.n_bytes), node.inside.latency_s(one.n_bytes)
    )
    return latency_s, one.n_bytes * (np.where(leaves, across, inside) + gamma)


def _busier(src: Ranks, dst: Ranks, counted: NDArray[np.bool_]) -> Times:
    """Of each message: how many `counted` ones leave its source, or enter its destination."""
    places = int(max(src.max(), dst.max())) + 1
    out = np.bincount(src[counted], minlength=places)[src]
    into = np.bincount(dst[counted], minlength=places)[dst]
    return np.maximum(out, into) * counted


def _run(
    clocks: Times,
    one: Round,
    latency_s: Times,
    wire_s: Times,
) -> Times:
    """The ranks' clocks after a round."""
    src = one.src
    dst = one.dst
    once = np.bincount(src).max() == 1 == np.bincount(dst).max()  # ten times as fast
    clocks = clocks.copy()
    for _ in range(one.repeat):
        sent_s = clocks[src]
        done_s = np.maximum(clocks[dst] + wire_s, sent_s + latency_s + wire_s)
        if once:
            clocks[src] = sent_s + wire_s
            clocks[dst] = np.maximum(clocks[dst], done_s)
        else:
            np.maximum.at(clocks, src, sent_s + wire_s)
            np.maximum.at(clocks, dst, done_s)
    return clocks
