"""The formulas against published step tables, hand arithmetic and each other."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rn50.config.algorithms import grid
from rn50.predict import cost
from rn50.predict.cost import ALGORITHMS, allreduce
from rn50.predict.topology import Link, Node, Topology
from tests.conftest import refused
from tests.predict.messages import flat

FUZZ = settings(max_examples=40)
LINK = Link(1e-5, 1e-9, 2e-10)
EDR = Link(6.6e-6, 1 / 12.5e9)
NVLINK = Link(5.7e-6, 1 / 50e9)
ABCI = Topology(Node(4, NVLINK, 2, EDR), 512, rack_nodes=34, oversubscription=3.0)


def test_sonys_grids() -> None:
    """Table 4, but for 3,456 ranks, which are 48 x 72 there."""
    assert grid(1024) == (32, 32)
    assert grid(2048) == (32, 64)
    assert grid(2176) == (34, 64)
    assert grid(3456) == (54, 64)


@FUZZ
@given(ranks=st.integers(2, 512), n_bytes=st.floats(1, 1e12))
def test_segments_hide_reduction_and_cost_latency(ranks: int, n_bytes: float) -> None:
    reducing = Link(0.0, 1e-9, 1e-9)
    plain = cost.ring(ranks, n_bytes, reducing)
    segmented = cost.segmented_ring(ranks, n_bytes, reducing)
    most_s = plain * (1 + 1e-12)
    assert segmented <= most_s
    slow = Link(1e-3, 1e-9)
    plain = cost.ring(ranks, n_bytes, slow)
    segmented = cost.segmented_ring(ranks, n_bytes, slow)
    least_s = plain * (1 - 1e-12)
    assert segmented >= least_s


def test_neighbours_on_two_nodes_leave_the_rack_every_other_time() -> None:
    """Ranks next to each other are at least a node apart where they are on two: in racks of two
    nodes half of the hops go up, at a third of the rate."""
    racks = ABCI._replace(rack_nodes=2)
    unlimited = racks._replace(oversubscription=1.0).ring(1, 2048)
    ratio = racks.ring(1, 2048).beta_s_per_byte / unlimited.beta_s_per_byte
    assert ratio == pytest.approx(1.5)


@pytest.mark.parametrize(
    "algorithm", ["rings", "torus_2d(2x3)", "torus_2d(8)", "torus_2d(axb)", "ring(2x4)"]
)
def test_a_wrong_name_or_grid_is_refused(algorithm: str) -> None:
    with refused("expected"):
        allreduce(algorithm, flat(8, LINK), 1e6)


def test_one_rank_pays_nothing() -> None:
    alone = flat(1, LINK)
    for name in ALGORITHMS:
        assert allreduce(name, alone, 1e6) == 0
