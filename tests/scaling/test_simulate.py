"""The oracle: every algorithm as messages against its formula, a step against the closed form,
order statistics, and faults worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config import choices
from rn50.scaling import cost
from rn50.scaling.collectives import SCHEDULES, schedule
from rn50.scaling.cost import allreduce
from rn50.scaling.simulate import Work, simulate
from rn50.scaling.step import exposed
from rn50.scaling.topology import Link, Node, Topology, flat

FUZZ = settings(max_examples=30)
LINK = Link(1e-5, 1e-9, 2e-10)
NODE = Node(4, Link(6e-6, 1 / 50e9, 1 / 300e9), 2, Link(6.6e-6, 1 / 12.5e9))
ABCI = Topology(NODE, 512, rack_nodes=34, oversubscription=3.0)
# Fujitsu's groups with ready times of a 38.3 ms step.
GROUPS = (
    *((0.018, 4.1e6), (0.024, 22.02e6), (0.031, 20.05e6)),
    *((0.0383, 4.84e6), (0.0383, 0.212e6)),
)
EXACT = ["ring", "torus_2d", "recursive_halving_doubling"]
EVERY = pytest.mark.parametrize("algorithm", sorted(SCHEDULES))


# --- messages -----------------------------------------------------------------------------------


def test_the_tables_name_the_same_algorithms() -> None:
    assert list(SCHEDULES) == list(cost.ALGORITHMS)
    assert {"auto", *SCHEDULES} == set(choices.ALGORITHMS)


@EVERY
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 8, 12, 16, 31, 48, 64, 1000, 2048, 3456])
def test_rounds_and_bytes_are_the_formulas(algorithm: str, ranks: int) -> None:
    """The most that one rank sends; and all ranks, together, add each byte p - 1 times."""
    n_bytes, steps, sent, added = 51.1e6 / 8, 0, np.zeros(ranks), 0.0
    for one in schedule(algorithm, ranks, n_bytes):
        assert (one.src != one.dst).all()
        steps += one.repeat
        sent += np.bincount(one.src, minlength=ranks) * one.n_bytes * one.repeat
        added += len(one.src) * one.n_bytes * one.repeat * one.reduce
    formula = allreduce(algorithm, flat(ranks, LINK), n_bytes)
    assert steps == formula.steps
    assert sent.max() == pytest.approx(formula.bytes_per_rank, rel=1e-9)
    if algorithm != "recursive_doubling":  # which adds the same sums on all ranks
        assert added == pytest.approx((ranks - 1) * n_bytes, rel=1e-9)


# --- one allreduce ------------------------------------------------------------------------------


def one_group(topology: Topology, algorithm: str, n_bytes: float) -> float:
    work = Work(groups=((0.0, n_bytes),), compute_s=0.0, topology=topology, algorithm=algorithm)
    return float(simulate(work, 1).step_s[0])


@pytest.mark.parametrize("algorithm", EXACT)
@FUZZ
@given(ranks=st.integers(2, 130), n_bytes=st.floats(1, 1e9))
def test_one_group_without_jitter_is_the_formula(
    algorithm: str, ranks: int, n_bytes: float
) -> None:
    network = flat(ranks, LINK)
    expected = allreduce(algorithm, network, n_bytes).time_s
    assert one_group(network, algorithm, n_bytes) == pytest.approx(expected, rel=1e-9)


ASKS_FIRST = flat(16, Link(1e-3, 1e-8, 0.0, eager_bytes=65536))
WHOLE_RACKS = Topology(NODE, 64, rack_nodes=8, oversubscription=2.0)
"""Powers of two: no rack or node is cut, so every round is what topology.py says it is."""
NOT_ADDED = flat(8, Link(1e-5, 1e-9))


@pytest.mark.parametrize(
    ("machine", "algorithms"),
    [
        (ASKS_FIRST, (*EXACT, "double_tree")),
        (WHOLE_RACKS, ("torus_2d", "recursive_halving_doubling", "recursive_doubling")),
        (NOT_ADDED, ("segmented_ring",)),
        *((flat(ranks, LINK), ("double_tree",)) for ranks in (2, 8, 128, 2048)),
    ],
)
@pytest.mark.parametrize("n_bytes", [1e3, 1e5, 51.1e6])
def test_other_machines_and_algorithms_are_their_formulas(
    machine: Topology, algorithms: tuple[str, ...], n_bytes: float
) -> None:
    for algorithm in algorithms:
        expected = allreduce(algorithm, machine, n_bytes).time_s
        assert one_group(machine, algorithm, n_bytes) == pytest.approx(expected, rel=1e-9)


@FUZZ
@given(ranks=st.integers(2, 130), n_bytes=st.floats(1, 1e9))
def test_whole_buffers_are_the_formula_or_arrive_early(ranks: int, n_bytes: float) -> None:
    """Ranks that fold nothing start at once; the formula lets all wait for the fold."""
    network = flat(ranks, LINK)
    expected = allreduce("recursive_doubling", network, n_bytes).time_s
    least = 1.0 if ranks & (ranks - 1) == 0 else 0.6
    simulated = one_group(network, "recursive_doubling", n_bytes)
    assert least * expected * (1 - 1e-9) <= simulated <= expected * (1 + 1e-9)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "torus_2d(32x64)"])
def test_rings_through_nodes_are_near_the_formula(algorithm: str) -> None:
    """Mean latency of the hops plus the slowest rate: a bound, as one may hide behind the other."""
    for n_bytes in (1e5, 51.1e6):
        expected = allreduce(algorithm, ABCI, n_bytes).time_s
        assert 0.85 * expected <= one_group(ABCI, algorithm, n_bytes) <= expected * (1 + 1e-9)


def test_a_tree_with_ranks_missing_is_near_the_formula() -> None:
    """Some parents have one child less."""
    network = flat(100, LINK)
    for n_bytes in (1e3, 1e6, 1e8):
        expected = allreduce("double_tree", network, n_bytes).time_s
        assert one_group(network, "double_tree", n_bytes) == pytest.approx(expected, rel=0.05)


# --- steps --------------------------------------------------------------------------------------


@FUZZ
@given(
    ready_s=st.lists(st.floats(0, 0.05), min_size=1, max_size=6),
    sizes=st.lists(st.floats(1, 3e7), min_size=6, max_size=6),
    algorithm=st.sampled_from(EXACT),
)
def test_many_groups_are_wait_free_backpropagation(
    ready_s: list[float], sizes: list[float], algorithm: str
) -> None:
    network = flat(16, LINK)
    groups = tuple(zip(sorted(ready_s), sizes, strict=False))
    cost_s = [allreduce(algorithm, network, n_bytes).time_s for _, n_bytes in groups]
    expected = exposed(sorted(ready_s), cost_s, backward_s=0.05)
    work = Work(groups=groups, compute_s=0.05, topology=network, algorithm=algorithm, update_s=0.01)
    run = simulate(work, 2)
    assert run.step_s == pytest.approx(expected.finish_s + 0.01, rel=1e-9)
    assert run.exposed_s == pytest.approx(expected.exposed_s, rel=1e-9, abs=1e-12)
    assert run.straggler_s == pytest.approx(0.0, abs=1e-12)


ON_ABCI = Work(groups=GROUPS, compute_s=0.0383, topology=ABCI, algorithm="torus_2d")


def test_the_same_seed_gives_the_same_steps() -> None:
    jittery = ON_ABCI._replace(jitter=0.05)
    first, again, other = (simulate(jittery, 2, seed=seed) for seed in (1, 1, 2))
    assert (first.step_s == again.step_s).all()
    assert (first.step_s != other.step_s).all()
    assert (simulate(ON_ABCI, 2, seed=1).step_s < first.step_s).all()


# --- faults -------------------------------------------------------------------------------------


def test_one_slow_node_holds_up_all() -> None:
    """By half a step at first; then a bit less: the last to send is the first to be done."""
    plain, slow = simulate(ON_ABCI, 4), simulate(ON_ABCI._replace(slow_node=1.5), 4)
    assert slow.straggler_s[0] == pytest.approx(0.5 * 0.0383, rel=1e-9)
    assert (slow.straggler_s[1:] > 0.4 * 0.0383).all()
    assert (slow.step_s > plain.step_s + 0.25 * 0.0383).all()


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        simulate(ON_ABCI._replace(algorithm="fastest"), 1)
