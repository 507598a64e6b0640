"""Seconds that allreduce algorithms take: alpha-beta-gamma formulas. Pure.

`tests/predict/messages.py` sends the messages of every algorithm, and tests compare the clocks of
the ranks with these formulas. p ranks, n bytes, full-duplex links, one message at a time per rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config.algorithms import grid, parse_algorithm
from .topology import Link, Topology

SEGMENT_BYTES = 1 << 20  # Open MPI's choice for its segmented ring
# NVIDIA/nccl, src/graph/tuning.cc: "the latency of a 256kB chunk"
TREE_CHUNK_BYTES = 256 << 10


def ring(ranks: int, n_bytes: float, link: Link) -> float:
    """2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma (Patarasuk and Yuan 2009).

    p-1 rounds reduce-scatter chunks of n/p, p-1 gather them: Fujitsu's 2(m-1) steps of N/m.
    """
    chunk = n_bytes / ranks
    rounds = ranks - 1
    # each round of the scatter reduces what it receives; the gather only copies
    return rounds * (link.reduced_s(chunk) + link.message_s(chunk))


def segmented_ring(ranks: int, n_bytes: float, link: Link) -> float:
    """The ring with its chunks cut into k segments, one reduced while the next travels.

    A two-stage pipeline of (p-1)k segments of s = n/(pk) bytes, k >= 2: (p-1)k max(t, s gamma)
    + min(t, s gamma) with t = alpha + s beta, then (p-1)k t to gather. k = 1 is the ring. Open
    MPI's algorithm 5; there segments also keep the buffer small.
    """
    k = math.ceil(n_bytes / ranks / SEGMENT_BYTES)
    if k <= 1:
        return ring(ranks, n_bytes, link)
    segment = n_bytes / ranks / k
    rounds = (ranks - 1) * k
    message_s = link.message_s(segment)
    reduce_s = segment * link.gamma_s_per_byte
    scatter_s = rounds * max(message_s, reduce_s) + min(message_s, reduce_s)
    return scatter_s + rounds * message_s


def torus_2d(topology: Topology, n_bytes: float, sides: tuple[int, int]) -> float:
    """Reduce-scatter in each row, ring over each column with n/X, gather in the row (Sony 2018).

    Y rows, X columns: 2(X-1) aX + 2(X-1)/X n bX + (X-1)/X n g + 2(Y-1) aY + 2(Y-1)/Y n/X bY +
    (Y-1)/Y n/X g; 2(X-1) + 2(Y-1) rounds, Fujitsu's 2(mx + my - 2) (Sony quotes 2(X-1)).
    """
    rows, columns = sides
    # neighbours in a row are neighbours by rank, those in a column a row apart
    in_rows_s = ring(columns, n_bytes, topology.ring(1, columns))
    in_columns_s = ring(rows, n_bytes / columns, topology.ring(columns, rows))
    return in_rows_s + in_columns_s


HOST_BYTES_PER_S = 1.2e10
"""A GPU's link to its host: PCIe 3.0 x16, assumed."""
HOST_SUM_S_PER_BYTE = 2e-10
"""A core of the host adds two vectors in its memory: assumed."""
STREAM_WAIT_S = 2e-5
"""Until a thread knows that a stream is done: assumed."""


def hierarchical(topology: Topology, n_bytes: float, sides: tuple[int, int]) -> float:
    """The torus with MPI across, as Horovod 0.28.1 does it (NCCLHierarchicalAllreduce).

    NCCL reduce-scatters among the X ranks of a node; each rank waits for its stream, copies its n/X
    to the host, sums them over Y nodes by MPI_Allreduce (a ring here) and copies them back; NCCL
    gathers. Jia (2018) sends all n through a leader of each node instead.
    """
    _, columns = sides
    return torus_2d(topology, n_bytes, sides) + host_s(n_bytes / columns)


def host_s(n_bytes: float) -> float:
    """What the sum of `n_bytes` takes longer on the host than on the device."""
    copies_s = 2 * n_bytes / HOST_BYTES_PER_S
    return STREAM_WAIT_S + copies_s + n_bytes * HOST_SUM_S_PER_BYTE


def double_tree(topology: Topology, n_bytes: float) -> float:
    """Two binary trees, a rank inner in one and leaf in the other, each with n/2 (NCCL 2.4).

    Up and down a chain of X ranks in the node and a tree of D = ceil(log2 Y) levels over nodes:
    2(X-1) + 2D hops. A chunk c fills them, a parent hearing its two children one by one (the
    root has one): 2(X-1)(alpha + c beta) + 2D alpha + 2(2D-1) c beta, gamma on half of it. The
    other k-1 = n/2c - 1 chunks follow at 4c beta + 2c gamma: about 2 n beta + n gamma for large
    n (Sanders, Speck, Traeff 2009).
    """
    inside = topology.node.inside
    chunks = max(1, math.ceil(n_bytes / 2 / TREE_CHUNK_BYTES))
    chunk = n_bytes / 2 / chunks
    chain = topology.node.ranks - 1
    levels = math.ceil(math.log2(topology.nodes))
    fill_s = chain * (inside.message_s(chunk) + inside.reduced_s(chunk))
    beta = inside.beta_s_per_byte if chain else 0.0
    if levels:
        across = topology.one_flow()
        # two children a level, but one of the root; as many on the way down
        pieces = (2 * levels - 1) * chunk
        fill_s += 2 * levels * across.alpha_s + 2 * pieces * across.beta_s_per_byte
        fill_s += pieces * across.gamma_s_per_byte
        beta = max(beta, across.beta_s_per_byte)
    period_s = 4 * chunk * beta + 2 * chunk * inside.gamma_s_per_byte
    return fill_s + (chunks - 1) * period_s


SWITCH_LEVELS = 2
"""Leaf and spine: with 64 ports each, 2,048 of them."""


def in_switches(topology: Topology, n_bytes: float) -> float:
    """Reduce-scatter in the node, sums in a tree of switches, allgather in the node (SHARP, Graham
    et al. 2016): 2 L alpha + n beta across, a byte going up once and down once, whatever p is."""
    node = topology.node
    # each card carries its part
    sent = n_bytes / node.nics
    across_s = 2 * SWITCH_LEVELS * node.nic.alpha_s
    across_s += sent * node.nic.beta_s_per_byte
    return ring(node.ranks, n_bytes, node.inside) + across_s


def _recursive_doubling(topology: Topology, n_bytes: float) -> float:
    """log2(p) (alpha + n beta + n gamma): whole buffers, for small n (Thakur et al. 2005)."""
    doublings = topology.ranks.bit_length() - 1  # the floor of log2
    links = (topology.exchange(1 << k) for k in range(doublings))
    time_s = sum(link.reduced_s(n_bytes) for link in links)
    return time_s + _fold_s(topology, n_bytes)


def _halving_doubling(topology: Topology, n_bytes: float) -> float:
    """2 log2(p) alpha + 2(p-1)/p n beta + (p-1)/p n gamma (Rabenseifner 2004).

    Half the data goes to the neighbour, a quarter two away, ...: most of it stays near.
    """
    time_s = 0.0
    for k in range(topology.ranks.bit_length() - 1):
        # half, a quarter, ... with the rank 1, 2, 4, ... away
        part = n_bytes / (2 << k)
        link = topology.exchange(1 << k)
        time_s += link.reduced_s(part) + link.message_s(part)
    return time_s + _fold_s(topology, n_bytes)


def _fold_s(topology: Topology, n_bytes: float) -> float:
    """p = q + r, q = 2^k < p: r ranks fold onto neighbours first (alpha + n beta + n gamma) and get
    the sum at the end (alpha + n beta), as in MPICH."""
    if topology.ranks.bit_count() == 1:
        return 0.0
    link = topology.exchange(1)
    return link.reduced_s(n_bytes) + link.message_s(n_bytes)


def topology_grid(topology: Topology) -> tuple[int, int]:
    """Rows are nodes, columns the ranks of a node (Horovod's torus); one-rank nodes: `grid`."""
    if topology.node.ranks > 1 and topology.nodes > 1:
        return topology.nodes, topology.node.ranks
    return grid(topology.ranks)


# comm.algorithm -> seconds on a topology, given the grid (rows, columns) for those that have one.
ALGORITHMS: dict[str, Callable[[Topology, float, tuple[int, int]], float]] = {
    "ring": lambda topology, n, _: ring(
        topology.ranks, n, topology.ring(1, topology.ranks)
    ),
    "segmented_ring": lambda topology, n, _: segmented_ring(
        topology.ranks, n, topology.ring(1, topology.ranks)
    ),
    "recursive_doubling": lambda topology, n, _: _recursive_doubling(topology, n),
    "recursive_halving_doubling": lambda topology, n, _: _halving_doubling(topology, n),
    "torus_2d": torus_2d,
    "hierarchical": hierarchical,
    "double_tree": lambda topology, n, _: double_tree(topology, n),
}


def allreduce(algorithm: str, topology: Topology, n_bytes: float) -> float:
    """Seconds of `algorithm`, as `comm.algorithm` names it (with or without grid), on a machine."""
    name, sides_given = parse_algorithm(algorithm, topology.ranks)
    if topology.ranks == 1:
        return 0.0
    sides = sides_given or topology_grid(topology)
    return ALGORITHMS[name](topology, n_bytes, sides)
