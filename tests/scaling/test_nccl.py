"""NCCL's own predictions: hand arithmetic from its constants, and what it picks where."""

from __future__ import annotations

import math

import pytest

from rn50.scaling.nccl import PROTOCOLS, nccl_allreduce, tree_threshold_2_4
from rn50.scaling.topology import Link, Node, Topology

EDR = Link(1e-6, 1 / 12.5e9)
ABCI = Topology(Node(4, Link(1e-6, 1 / 50e9), 2, EDR), 512)
DGX1 = Topology(Node(8, Link(1e-6, 1 / 130e9), 4, EDR), 1)


def test_2_4_by_hand() -> None:
    """Ring 6 us x 2047; tree 15 us x 9 + 4 us x 3; 20 GB/s over four rings, tree 3/4 of it."""
    ring = nccl_allreduce("2.4", ABCI, 20e6, algorithm="ring")
    tree = nccl_allreduce("2.4", ABCI, 15e6, algorithm="tree")
    assert ring.time_s == pytest.approx(6e-6 * 2047 + 1e-3)
    assert tree.time_s == pytest.approx(147e-6 + 1e-3)
    by_hand = 20e3 * 15e3 / 5e3 * (6 * 2047 - 147)
    assert tree_threshold_2_4(ABCI) == pytest.approx(by_hand)


def test_2_4_takes_the_tree_up_to_its_threshold() -> None:
    edge = tree_threshold_2_4(ABCI)
    assert nccl_allreduce("2.4", ABCI, edge * 0.99).algorithm == "tree"
    assert nccl_allreduce("2.4", ABCI, edge * 1.01).algorithm == "ring"
    assert tree_threshold_2_4(DGX1) == 0
    assert math.isinf(tree_threshold_2_4(ABCI._replace(nodes=2)))


def test_2_5_6_by_hand() -> None:
    """2048 ranks on 512 nodes; bus 25 GB/s; Simple ring 8.4 + 4094 x 6.6 us."""
    ring = nccl_allreduce("2.5.6", ABCI, 51e6, algorithm="ring", protocol="Simple")
    assert ring.latency_s == pytest.approx((8.4 + 4094 * 6.6) * 1e-6)
    assert ring.bytes_per_s == pytest.approx(25e9 * 2048 / 4094)
    tree = nccl_allreduce("2.5.6", ABCI, 51e6, algorithm="tree", protocol="LL128")
    assert tree.latency_s == pytest.approx((4.4 + 2 * (3 * 1.9 + 9 * 7.5)) * 1e-6)
    assert tree.bytes_per_s == pytest.approx(25e9 * 0.9 * 7 / 9 / 2)


def test_current_by_hand() -> None:
    """1022 network steps, the rest inside at 3 us of posting; x1.9 on Volta for large messages."""
    ring = nccl_allreduce("current", ABCI, 51e6, algorithm="ring", protocol="Simple")
    assert ring.latency_s == pytest.approx(1.9 * (8.4 + 3072 * 3.4 + 1022 * 14) * 1e-6)
    low = nccl_allreduce("current", ABCI, 64, algorithm="ring", protocol="LL")
    assert low.latency_s == pytest.approx((6.6 + 3072 * 1.0 + 1022 * 2.7) * 1e-6)
    tree = nccl_allreduce("current", ABCI, 64, algorithm="tree", protocol="LL")
    assert tree.latency_s == pytest.approx((6.8 + 2 * (3 * 0.6 + 9 * 5)) * 1e-6)


@pytest.mark.parametrize("version", ["2.5.6", "current"])
@pytest.mark.parametrize("wire", ["nvlink", "pci"])
def test_small_messages_go_as_ll_over_trees_and_large_as_simple(version: str, wire: str) -> None:
    small = nccl_allreduce(version, ABCI, 1024, wire=wire)  # type: ignore[arg-type]
    large = nccl_allreduce(version, ABCI, 16e9, wire=wire)  # type: ignore[arg-type]
    assert (small.algorithm, small.protocol) == ("tree", "LL")
    assert (large.algorithm, large.protocol) == ("ring", "Simple")
    assert nccl_allreduce(version, DGX1, 4e9).algorithm == "ring"  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_choice_is_the_least_of_all(protocol: str) -> None:
    for n_bytes in (100, 1e5, 4e6, 5e7):
        best = nccl_allreduce("current", ABCI, n_bytes, generation="ampere")
        for algorithm in ("ring", "tree"):
            other = nccl_allreduce(
                "current",
                ABCI,
                n_bytes,
                algorithm=algorithm,
                protocol=protocol,  # type: ignore[arg-type]
                generation="ampere",
            )
            assert best.time_s <= other.time_s


def test_one_rank_pays_nothing() -> None:
    alone = Topology(ABCI.node._replace(ranks=1), 1)
    assert nccl_allreduce("current", alone, 1e6).time_s == 0
