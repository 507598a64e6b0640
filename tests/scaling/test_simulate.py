"""The simulation against the closed forms, order statistics, and faults worked out by hand."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.scaling.clocks import Program, compile_allreduce, run
from rn50.scaling.cost import allreduce
from rn50.scaling.simulate import (
    Failure,
    Faults,
    Result,
    SlowLink,
    SlowNode,
    simulate,
)
from rn50.scaling.step import exposed
from rn50.scaling.topology import Link, Node, Topology, flat

FUZZ = settings(max_examples=40)
LINK = Link(1e-5, 1e-9, 2e-10)
NODE = Node(4, Link(6e-6, 1 / 50e9, 1 / 300e9), 2, Link(6.6e-6, 1 / 12.5e9))
ABCI = Topology(NODE, 512, rack_nodes=34, oversubscription=3.0)
# Fujitsu's groups with ready times of a 38.3 ms step.
GROUPS = [(0.018, 4.1e6), (0.024, 22.02e6), (0.031, 20.05e6), (0.0383, 4.84e6), (0.0383, 0.212e6)]
EXACT = ["ring", "torus_2d", "recursive_halving_doubling"]


def one_group(topology: Topology, algorithm: str, n_bytes: float) -> float:
    run = simulate(
        1, groups=[(0.0, n_bytes)], compute_s=0.0, topology=topology, algorithm=algorithm
    )
    return float(run.step_s[0])


@pytest.mark.parametrize("algorithm", EXACT)
@FUZZ
@given(ranks=st.integers(2, 130), n_bytes=st.floats(1, 1e9))
def test_one_group_without_jitter_is_the_formula(
    algorithm: str, ranks: int, n_bytes: float
) -> None:
    network = flat(ranks, LINK)
    expected = allreduce(algorithm, network, n_bytes).time_s
    assert one_group(network, algorithm, n_bytes) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", EXACT)
@pytest.mark.parametrize("ranks", [2048, 3456, 8192])
def test_the_formula_at_scale(algorithm: str, ranks: int) -> None:
    network = flat(ranks, LINK)
    expected = allreduce(algorithm, network, 51.1e6).time_s
    assert one_group(network, algorithm, 51.1e6) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("algorithm", [*EXACT, "double_tree"])
@pytest.mark.parametrize("n_bytes", [1e5, 1e6, 1e8])
def test_large_messages_that_ask_first_are_the_formula(algorithm: str, n_bytes: float) -> None:
    network = flat(16, Link(1e-3, 1e-8, 0.0, eager_bytes=65536))
    expected = allreduce(algorithm, network, n_bytes).time_s
    assert one_group(network, algorithm, n_bytes) == pytest.approx(expected, rel=1e-9)


def test_shared_nics_and_uplinks_are_the_formulas_too() -> None:
    """Powers of two: no rack or node is cut, so every round is what topology.py says it is."""
    machine = Topology(NODE, 64, rack_nodes=8, oversubscription=2.0)
    for algorithm in ("torus_2d", "recursive_halving_doubling", "recursive_doubling"):
        expected = allreduce(algorithm, machine, 51.1e6).time_s
        assert one_group(machine, algorithm, 51.1e6) == pytest.approx(expected, rel=1e-9)


@FUZZ
@given(ranks=st.integers(2, 130), n_bytes=st.floats(1, 1e9))
def test_whole_buffers_are_the_formula_or_arrive_early(ranks: int, n_bytes: float) -> None:
    """Ranks that fold nothing start at once; the formula lets all wait for the fold."""
    network = flat(ranks, LINK)
    expected = allreduce("recursive_doubling", network, n_bytes).time_s
    simulated = one_group(network, "recursive_doubling", n_bytes)
    assert simulated <= expected * (1 + 1e-9)
    if ranks & (ranks - 1) == 0:
        assert simulated == pytest.approx(expected, rel=1e-9)
    else:
        assert simulated >= 0.6 * expected


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "torus_2d(32x64)"])
def test_rings_through_nodes_are_near_the_formula(algorithm: str) -> None:
    """Mean latency of the hops plus the slowest rate: a bound, as one may hide behind the other."""
    for n_bytes in (1e5, 51.1e6):
        expected = allreduce(algorithm, ABCI, n_bytes).time_s
        assert 0.85 * expected <= one_group(ABCI, algorithm, n_bytes) <= expected * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [2, 8, 100, 128, 2048])
@pytest.mark.parametrize("n_bytes", [1e3, 1e6, 1e8])
def test_trees_are_the_formula(ranks: int, n_bytes: float) -> None:
    """Exact where the tree is full; with ranks missing some parents have one child less."""
    network = flat(ranks, LINK)
    expected = allreduce("double_tree", network, n_bytes).time_s
    simulated = one_group(network, "double_tree", n_bytes)
    assert simulated == pytest.approx(expected, rel=0.05 if ranks == 100 else 1e-9)


def test_segments_cost_what_the_formula_says_where_nothing_is_added() -> None:
    network = flat(8, Link(1e-5, 1e-9))
    expected = allreduce("segmented_ring", network, 51.1e6).time_s
    assert one_group(network, "segmented_ring", 51.1e6) == pytest.approx(expected, rel=1e-9)


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
    groups = list(zip(sorted(ready_s), sizes, strict=False))
    cost_s = [allreduce(algorithm, network, n_bytes).time_s for _, n_bytes in groups]
    expected = exposed(sorted(ready_s), cost_s, backward_s=0.05)
    run = simulate(
        2, groups=groups, compute_s=0.05, topology=network, algorithm=algorithm, update_s=0.01
    )
    assert run.step_s == pytest.approx(expected.finish_s + 0.01, rel=1e-9)
    assert run.exposed_s == pytest.approx(expected.exposed_s, rel=1e-9, abs=1e-12)
    assert run.straggler_s == pytest.approx(0.0, abs=1e-12)


def on_abci(steps: int = 4, algorithm: str = "torus_2d", **options: object) -> Result:
    defaults: dict[str, object] = {"groups": GROUPS, "compute_s": 0.0383, "topology": ABCI}
    return simulate(steps, algorithm=algorithm, **(defaults | options))  # type: ignore[arg-type]


def test_a_step_is_the_sum_of_its_parts() -> None:
    run = on_abci(jitter=0.02, update_s=0.001)
    parts = 0.0383 + run.straggler_s + run.exposed_s + 0.001
    assert run.step_s == pytest.approx(parts, rel=1e-12)
    assert run.total_s == pytest.approx(run.step_s.sum())
    assert (run.exposed_s > 0).all()


def test_the_same_seed_gives_the_same_steps() -> None:
    first, again, other = (on_abci(2, seed=seed, jitter=0.05) for seed in (1, 1, 2))
    assert (first.step_s == again.step_s).all()
    assert (first.step_s != other.step_s).all()
    assert (on_abci(2, seed=1).step_s < first.step_s).all()


@pytest.mark.parametrize("ranks", [4, 64, 1024])
def test_waiting_for_the_slowest_is_the_largest_of_p(ranks: int) -> None:
    """E[max of p normals], by numerical integration of its density."""
    run = simulate(
        2000,
        groups=[(1.0, 8.0)],
        compute_s=1.0,
        topology=flat(ranks, Link(0.0, 0.0)),
        algorithm="recursive_doubling",
        jitter=0.01,
    )
    z = np.linspace(-8, 8, 4001)
    below = np.array([NormalDist().cdf(value) for value in z])
    expected = 0.01 * float((z[1:] * np.diff(below**ranks)).sum())
    assert run.straggler_s.mean() == pytest.approx(expected, rel=0.05)


def test_one_slow_node_holds_up_all() -> None:
    """By half a step at first; then a bit less: the last to send is the first to be done."""
    plain = on_abci()
    slow = on_abci(faults=Faults(slow_node=SlowNode(100, 1.5)))
    assert slow.straggler_s[0] == pytest.approx(0.5 * 0.0383, rel=1e-9)
    assert (slow.straggler_s[1:] > 0.4 * 0.0383).all()
    assert (slow.step_s > plain.step_s + 0.25 * 0.0383).all()


@pytest.mark.parametrize("algorithm", ["ring", "torus_2d"])
def test_one_slow_link_slows_its_rounds(algorithm: str) -> None:
    """A tenth of the rate at one node: each of its rounds is bound by that link."""
    large = [(0.0383, 1e9)]
    plain = on_abci(1, algorithm, groups=large).exposed_s[0]
    slow = on_abci(1, algorithm, groups=large, faults=Faults(slow_link=SlowLink(7, 10.0)))
    across = 2 * 511 / 512 * 1e9 / 4 / 6.25e9 if algorithm == "torus_2d" else 2e9 / 25e9
    assert slow.exposed_s[0] == pytest.approx(plain + 9 * across, rel=0.05)


def test_a_failure_costs_the_restart_and_the_steps_since_the_checkpoint() -> None:
    failure = Failure(step=8, checkpoint_steps=5, restart_s=30.0)
    run, plain = on_abci(10, faults=Faults(failure=failure)), on_abci(10)
    step_s = float(plain.step_s[0])
    assert len(run.step_s) == 10 + 3
    assert run.lost_s == pytest.approx(30.0 + 3 * step_s)
    assert run.total_s == pytest.approx(plain.total_s + run.lost_s)
    assert on_abci(3, faults=Faults(failure=failure)).lost_s == 0


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "algorithm"), [(512, "ring"), (2048, "torus_2d(64x128)")])
def test_2048_and_8192_ranks_run(nodes: int, algorithm: str) -> None:
    run = on_abci(20, algorithm, topology=ABCI._replace(nodes=nodes), jitter=0.02)
    assert len(run.step_s) == 20


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "fastest"},
        {"faults": Faults(slow_node=SlowNode(512, 2.0))},
        {"faults": Faults(slow_link=SlowLink(0, 2.0)), "topology": Topology(NODE, 1)},
    ],
)
def test_wrong_input_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|needs"):
        on_abci(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["ring", "torus_2d(8x64)", "torus_2d(64x8)"])
def test_slices_are_the_numbers(algorithm: str) -> None:
    """The fast way for rings gives what the messages' own sources and destinations give."""
    machine = Topology(NODE, 128)
    program = compile_allreduce(algorithm, machine, 51.1e6, SlowLink(3, 2.0))
    assert any(stage.rings for stage in program.stages)
    plain = Program(tuple(stage._replace(rings=None) for stage in program.stages))
    clocks = np.random.default_rng(0).exponential(0.01, machine.ranks)
    assert (run(clocks, program) == run(clocks, plain)).all()
