"""Every algorithm as messages (`messages.py`) against its formula."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.predict import cost
from rn50.predict.cost import allreduce
from rn50.predict.topology import Link, Node, Topology
from tests.predict.messages import SCHEDULES, allreduce_s, flat, schedule

FUZZ = settings(max_examples=30)
LINK = Link(1e-5, 1e-9, 2e-10)
NODE = Node(4, Link(6e-6, 1 / 50e9, 1 / 300e9), 2, Link(6.6e-6, 1 / 12.5e9))
ABCI = Topology(NODE, 512, rack_nodes=34, oversubscription=3.0)
EXACT = ["ring", "torus_2d", "recursive_halving_doubling"]
EVERY = pytest.mark.parametrize("algorithm", sorted(SCHEDULES))


def formula(algorithm: str, network: Topology, n_bytes: float) -> float:
    """The time of the messages alone: MPI's part of the hierarchical one runs on the hosts."""
    formula_s = allreduce(algorithm, network, n_bytes)
    if algorithm == "hierarchical" and network.ranks > 1:
        _, columns = cost.topology_grid(network)
        formula_s -= cost.host_s(n_bytes / columns)
    return formula_s


# --- messages -----------------------------------------------------------------------------------


def test_the_tables_name_the_same_algorithms() -> None:
    assert list(SCHEDULES) == list(cost.ALGORITHMS)


@EVERY
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 12, 31, 64, 1000, 2048])
def test_rounds_and_bytes_are_the_formulas(algorithm: str, ranks: int) -> None:
    """The most that one rank sends; and all ranks, together, add each byte p - 1 times."""
    n_bytes = 51.1e6 / 8
    network = flat(ranks, LINK)
    steps = 0
    sent = np.zeros(ranks)
    added = 0.0
    for messages in schedule(algorithm, network, n_bytes):
        assert (messages.src != messages.dst).all()
        round_bytes = messages.n_bytes * messages.repeat
        steps += messages.repeat
        sent += np.bincount(messages.src, minlength=ranks) * round_bytes
        added += len(messages.src) * round_bytes * messages.reduce
    rounds = formula(algorithm, flat(ranks, Link(1.0, 0.0)), n_bytes)
    assert steps == pytest.approx(rounds)
    most_sent = formula(algorithm, flat(ranks, Link(0.0, 1.0)), n_bytes)
    if algorithm.startswith("recursive") and ranks.bit_count() > 1:
        most_sent -= n_bytes  # a rank is folded, or sends the sum to one that is
    if algorithm == "double_tree":  # of which a rank is a leaf in one
        most_sent = n_bytes * min(2.0, ranks / 2)
    assert sent.max() == pytest.approx(most_sent, rel=1e-9)
    if algorithm != "recursive_doubling":  # which adds the same sums on all ranks
        assert added == pytest.approx((ranks - 1) * n_bytes, rel=1e-9)


# --- one allreduce ------------------------------------------------------------------------------


def formula_and_clocks(
    algorithm: str, network: Topology, n_bytes: float
) -> tuple[float, float]:
    formula_s = formula(algorithm, network, n_bytes)
    return formula_s, allreduce_s(algorithm, network, n_bytes)


@pytest.mark.parametrize("algorithm", EXACT)
@FUZZ
@given(ranks=st.integers(2, 130), n_bytes=st.floats(1, 1e9))
def test_one_group_without_jitter_is_the_formula(
    algorithm: str, ranks: int, n_bytes: float
) -> None:
    network = flat(ranks, LINK)
    expected, last = formula_and_clocks(algorithm, network, n_bytes)
    assert last == pytest.approx(expected, rel=1e-9)


WHOLE_RACKS = Topology(NODE, 64, rack_nodes=8, oversubscription=2.0)
"""Powers of two: no rack or node is cut, so every round is what topology.py says it is."""
NOT_ADDED = flat(8, Link(1e-5, 1e-9))


@pytest.mark.parametrize(
    ("machine", "algorithms"),
    [
        (WHOLE_RACKS, ("torus_2d", "recursive_halving_doubling", "recursive_doubling")),
        (NOT_ADDED, ("segmented_ring",)),
        (flat(8, LINK), ("double_tree",)),
        (flat(2048, LINK), ("double_tree",)),
    ],
)
@pytest.mark.parametrize("n_bytes", [1e3, 1e5, 51.1e6])
def test_other_machines_and_algorithms_are_their_formulas(
    machine: Topology, algorithms: tuple[str, ...], n_bytes: float
) -> None:
    for algorithm in algorithms:
        expected, last = formula_and_clocks(algorithm, machine, n_bytes)
        assert last == pytest.approx(expected, rel=1e-9)


@FUZZ
@given(ranks=st.integers(2, 130), n_bytes=st.floats(1, 1e9))
def test_whole_buffers_are_the_formula_or_arrive_early(
    ranks: int, n_bytes: float
) -> None:
    """Ranks that fold nothing start at once; the formula lets all wait for the fold."""
    network = flat(ranks, LINK)
    expected, last = formula_and_clocks("recursive_doubling", network, n_bytes)
    assert 0.6 * expected <= last <= expected * (1 + 1e-9)
    if ranks.bit_count() == 1:
        assert last == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "torus_2d(32x64)"])
@pytest.mark.parametrize("n_bytes", [1e5, 51.1e6])
def test_rings_through_nodes_are_near_the_formula(
    algorithm: str, n_bytes: float
) -> None:
    """Mean latency of the hops plus the slowest rate: a bound, as one may hide behind the other."""
    expected, last = formula_and_clocks(algorithm, ABCI, n_bytes)
    assert 0.85 * expected <= last <= expected * (1 + 1e-9)


@pytest.mark.parametrize("n_bytes", [1e3, 1e6, 1e8])
def test_a_tree_with_ranks_missing_is_near_the_formula(n_bytes: float) -> None:
    """Some parents have one child less."""
    network = flat(100, LINK)
    expected, last = formula_and_clocks("double_tree", network, n_bytes)
    assert last == pytest.approx(expected, rel=0.05)
