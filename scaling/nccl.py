"""What NCCL itself expects of an allreduce: its tuning constants by version, as a table. Pure.

NVIDIA/nccl: 2.4.2 src/init.cu (ncclTreeThreshold), 2.5.6 and 2.2x src/graph/tuning.cc.
NCCL picks the algorithm and protocol with the least predicted time.
Left out: its caps by channel, which need the graph that it finds.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from .topology import Topology

Algorithm = Literal["ring", "tree"]
Protocol = Literal["LL", "LL128", "Simple"]
Version = Literal["2.4", "2.5.6", "current"]
Wire = Literal["nvlink", "pci"]
Generation = Literal["volta", "ampere", "hopper"]

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree")

# us, for LL / LL128 / Simple. Hops: inside a node over NVLink or PCI, and over the network.
BASE_US: dict[tuple[str, str], tuple[float, float, float]] = {
    ("2.5.6", "tree"): (4.4, 4.4, 0.0),
    ("2.5.6", "ring"): (3.6, 3.6, 8.4),
    ("current", "tree"): (6.8, 14.0, 8.4),
    ("current", "ring"): (6.6, 14.0, 8.4),
}
HOP_US: dict[tuple[str, str, str], tuple[float, float, float]] = {
    ("2.5.6", "tree", "nvlink"): (0.5, 1.9, 28.0),
    ("2.5.6", "ring", "nvlink"): (0.4, 2.5, 5.7),
    ("2.5.6", "tree", "pci"): (1.0, 1.9, 28.0),
    ("2.5.6", "ring", "pci"): (1.0, 2.5, 5.7),
    ("2.5.6", "tree", "network"): (5.0, 7.5, 50.0),
    ("2.5.6", "ring", "network"): (0.9, 2.5, 6.6),
    ("current", "tree", "nvlink"): (0.6, 1.25, 4.0),
    ("current", "ring", "nvlink"): (0.6, 1.9, 3.4),
    ("current", "tree", "pci"): (1.0, 1.9, 4.0),
    ("current", "ring", "pci"): (1.0, 2.5, 5.7),
    ("current", "tree", "network"): (5.0, 8.5, 14.0),
    ("current", "ring", "network"): (2.7, 4.0, 14.0),
}
# GB/s by generation, for 1, 2 and more nodes. LL over more nodes goes by CPU: Intel's column.
LL_CAP = {"volta": (39.0, 39.0, 20.4), "ampere": (87.7, 39.0, 20.4), "hopper": (141.0, 39.0, 20.4)}
# treeCorrectionFactor of "current", in tenths: powers of two from 64 B on, 1 beyond.
TREE_TENTHS: dict[str, tuple[int, ...]] = {
    "LL": (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10),
    "LL128": (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10),
    "Simple": (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9),
}


class Choice(NamedTuple):
    """An algorithm and protocol with NCCL's prediction: latency_s + bytes / bandwidth."""

    algorithm: Algorithm
    protocol: Protocol
    time_s: float
    latency_s: float
    bytes_per_s: float


def nccl_allreduce(
    version: Version,
    topology: Topology,
    n_bytes: float,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    wire: Wire = "nvlink",
    generation: Generation = "volta",
    channels: int = 4,
) -> Choice:
    """NCCL's choice for `n_bytes` and the time it expects, or of those named.

    `algorithm` is what NCCL_ALGO, `protocol` what NCCL_PROTO sets; `channels` sets the rate
    in 2.4 alone (Fujitsu: 4-16 rings), later versions search the graph: here the slower of one
    accelerator's link and the node's NICs together.
    """
    if topology.ranks == 1:
        return Choice(algorithm or "ring", protocol or "Simple", 0.0, 0.0, math.inf)
    choices = []
    for name in ALGORITHMS if algorithm is None else (algorithm,):
        if version == "2.4":
            choices.append(_constants_2_4(name, topology, n_bytes, wire, channels))
            continue
        offered = PROTOCOLS if wire == "nvlink" else ("LL", "Simple")  # LL128 needs NVLink
        for proto in offered if protocol is None else (protocol,):
            latency_s = _latency_us(version, name, proto, topology, wire) * 1e-6
            rate = _bytes_per_s(version, name, proto, topology, generation)
            if version == "current":
                slower, slowed = _corrected(name, proto, topology, n_bytes, generation, channels)
                latency_s, rate = latency_s * slower, rate * slowed
            choices.append(Choice(name, proto, latency_s + n_bytes / rate, latency_s, rate))
    return min(choices, key=lambda choice: choice.time_s)


def tree_threshold_2_4(topology: Topology, wire: Wire = "nvlink", channels: int = 4) -> float:
    """Bytes below which 2.4 takes the tree: ringbw treebw/(ringbw-treebw) (ringlat-treelat)."""
    ring = _constants_2_4("ring", topology, 0, wire, channels)
    tree = _constants_2_4("tree", topology, 0, wire, channels)
    gain_s = ring.latency_s - tree.latency_s
    if topology.nodes < 2 or gain_s <= 0:
        return 0.0
    if tree.bytes_per_s > ring.bytes_per_s:
        return math.inf
    return gain_s / (1 / tree.bytes_per_s - 1 / ring.bytes_per_s)


def _constants_2_4(
    algorithm: Algorithm, topology: Topology, n_bytes: float, wire: Wire, channels: int
) -> Choice:
    """Ring 6 us (p-1), tree 15 us log2(nodes) + 4 us (ranks per node - 1); 5 GB/s a ring."""
    rate = 5e9 * (channels if wire == "nvlink" else 1)
    latency_s = 6e-6 * (topology.ranks - 1)
    if algorithm == "tree":
        latency_s = 15e-6 * _log2(topology.nodes) + 4e-6 * (topology.node.ranks - 1)
        rate *= 2 / 3 if wire == "pci" else 3 / 4 * (2 if topology.nodes == 2 else 1)
    return Choice(algorithm, "Simple", latency_s + n_bytes / rate, latency_s, rate)


def _latency_us(
    version: Version, algorithm: Algorithm, protocol: Protocol, topology: Topology, wire: Wire
) -> float:
    """Ring: base + 2(p-1) hops; tree: base + 2((ranks per node - 1) inside + log2(nodes) across).

    2.5.6 counts every hop of a ring over nodes as a network hop; "current" 2(nodes-1) of them,
    the others inside, each at least the 1 us (Simple 3) that posting to the network takes.
    """
    column = PROTOCOLS.index(protocol)
    base = BASE_US[version, algorithm][column]
    inside = HOP_US[version, algorithm, wire][column]
    network = HOP_US[version, algorithm, "network"][column]
    nodes, per_node = topology.nodes, topology.node.ranks
    if algorithm == "tree":
        return base + 2 * ((per_node - 1) * inside + _log2(nodes) * network)
    hops = 2 * (topology.ranks - 1)
    if nodes == 1:
        return base + hops * inside
    if version == "2.5.6":
        return base + hops * network
    if per_node == 1:  # nothing hides a hop's latency then: the tree's
        network = HOP_US[version, "tree", "network"][column]
    across = 2 * (nodes - 1)
    inside = max(inside, 3.0 if protocol == "Simple" else 1.0)
    return base + (hops - across) * inside + across * network


def _bytes_per_s(
    version: Version,
    algorithm: Algorithm,
    protocol: Protocol,
    topology: Topology,
    generation: Generation,
) -> float:
    """algBW: busBW p / (2(p-1)) for a ring, busBW / 2 for a tree, of what the protocol leaves."""
    bus = 1 / topology.node.inside.beta_s_per_byte
    if topology.nodes > 1:
        bus = min(bus, 1 / topology.one_flow().beta_s_per_byte)
    if version == "2.5.6":
        bus = _bus_2_5(algorithm, protocol, topology.nodes, bus)
    else:
        cap = LL_CAP[generation][min(topology.nodes, 3) - 1] * 1e9
        bus = _bus_current(algorithm, protocol, topology.nodes, bus, cap)
    return bus * (topology.ranks / (2 * (topology.ranks - 1)) if algorithm == "ring" else 0.5)


def _bus_2_5(algorithm: Algorithm, protocol: Protocol, nodes: int, bus: float) -> float:
    if algorithm == "ring":
        return {"LL": bus / 4, "LL128": min(bus * 120 / 128, 100e9), "Simple": bus}[protocol]
    bus = min(bus * 0.9, 70e9 if nodes > 1 else 90e9)
    return {"LL": bus / 3, "LL128": bus * 7 / 9, "Simple": bus}[protocol]


def _bus_current(
    algorithm: Algorithm, protocol: Protocol, nodes: int, bus: float, cap: float
) -> float:
    if algorithm == "ring":
        return {"LL": min(cap, bus / 2), "LL128": bus * 0.92, "Simple": bus}[protocol]
    bus *= 0.92
    part = 7 / 9 if nodes == 1 else 120 / 128
    return {"LL": min(bus / 3.8, cap), "LL128": bus * part, "Simple": bus}[protocol]


def _corrected(
    algorithm: Algorithm,
    protocol: Protocol,
    topology: Topology,
    n_bytes: float,
    generation: Generation,
    channels: int,
) -> tuple[float, float]:
    """Factors of "current" on (latency, rate): rings on a plateau, trees for middle sizes."""
    if algorithm == "tree":
        power = max(0, (int(n_bytes) >> 6).bit_length() - 1)
        tenths = TREE_TENTHS[protocol]
        return 1.0, tenths[power] / 10 if power < len(tenths) else 1.0
    plateau = topology.nodes > 1 and n_bytes / (channels * topology.ranks) >= 64
    if protocol == "Simple" and plateau:
        return 1.9 if generation == "volta" else 1.4, 1.0
    return 1.0, 1.0


def _log2(count: int) -> int:
    return count.bit_length() - 1
