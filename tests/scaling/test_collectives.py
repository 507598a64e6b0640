"""The messages of every algorithm: all ranks end with the sum; rounds and bytes are cost.py's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rn50.scaling import collectives, cost
from rn50.scaling.collectives import SCHEDULES, Round, schedule
from rn50.scaling.cost import Cost, allreduce
from rn50.scaling.topology import Link, flat

FUZZ = settings(max_examples=60)
LINK = Link(1e-6, 1e-9)
EVERY = pytest.mark.parametrize("algorithm", sorted(SCHEDULES))


def execute(rounds: Iterable[Round], buffers: Sequence[NDArray[np.generic]]) -> None:
    """Run the messages on one buffer per rank, in place; a round sends what it found."""
    for messages in rounds:
        pieces = [
            (dst, slice(int(start), int(stop)), buffers[src][int(start) : int(stop)].copy())
            for src, dst, start, stop in zip(*messages[:4], strict=True)
        ]
        for dst, where, piece in pieces:
            if messages.reduce:
                buffers[dst][where] += piece  # type: ignore[misc]
            else:
                buffers[dst][where] = piece


def count(rounds: Iterable[Round], ranks: int) -> Cost:
    """Rounds, and the most that one rank sends; no time."""
    steps, sent = 0, np.zeros(ranks)
    for messages in rounds:
        steps += 1
        sent += np.bincount(messages.src, messages.stop - messages.start, minlength=ranks)
    return Cost(0.0, steps, float(sent.max()))


def check_sum(rounds: object, ranks: int, elements: int, seed: int = 0) -> None:
    """Whole numbers: the sum is exact in any order."""
    data = np.random.default_rng(seed).integers(-1000, 1000, (ranks, elements))
    buffers = data.copy()
    execute(rounds, buffers)  # type: ignore[arg-type]
    assert (buffers == data.sum(axis=0)).all()


def test_the_tables_name_the_same_algorithms() -> None:
    assert list(SCHEDULES) == list(cost.ALGORITHMS)


@EVERY
@pytest.mark.parametrize("ranks", range(1, 65))
def test_every_rank_ends_with_the_sum(algorithm: str, ranks: int) -> None:
    check_sum(schedule(algorithm, ranks, 2 * ranks + 3), ranks, 2 * ranks + 3)


@EVERY
@FUZZ
@given(ranks=st.integers(1, 24), elements=st.integers(0, 100), seed=st.integers(0, 9))
def test_any_length_even_shorter_than_the_ranks(
    algorithm: str, ranks: int, elements: int, seed: int
) -> None:
    check_sum(schedule(algorithm, ranks, elements), ranks, elements, seed)


@pytest.mark.parametrize("name", ["torus_2d", "hierarchical"])
@FUZZ
@given(rows=st.integers(1, 8), columns=st.integers(1, 8), elements=st.integers(0, 90))
def test_any_grid(name: str, rows: int, columns: int, elements: int) -> None:
    ranks = rows * columns
    check_sum(schedule(f"{name}({rows}x{columns})", ranks, elements), ranks, elements)


@FUZZ
@given(ranks=st.integers(2, 16), elements=st.integers(1, 200), segment=st.integers(1, 30))
def test_any_segments(ranks: int, elements: int, segment: int) -> None:
    rounds = list(collectives.segmented_ring(ranks, elements, segment))
    check_sum(rounds, ranks, elements)
    formula = cost.segmented_ring(ranks, elements, LINK, segment)
    assert len(rounds) == formula.steps


@EVERY
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 8, 12, 16, 31, 32, 48, 63, 64])
def test_rounds_and_bytes_are_the_formulas(algorithm: str, ranks: int) -> None:
    n_bytes = float(ranks * 64)
    counted = count(schedule(algorithm, ranks, n_bytes), ranks)
    formula = allreduce(algorithm, flat(ranks, LINK), n_bytes)
    assert counted.steps == formula.steps
    assert counted.bytes_per_rank == pytest.approx(formula.bytes_per_rank, rel=1e-12)


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("ranks", [1000, 1024, 2048, 2176, 3456, 4096])
def test_rounds_and_bytes_at_scale(algorithm: str, ranks: int) -> None:
    n_bytes = 51.1e6 / 8
    counted = count(schedule(algorithm, ranks, n_bytes), ranks)
    formula = allreduce(algorithm, flat(ranks, LINK), n_bytes)
    assert counted.steps == formula.steps
    assert counted.bytes_per_rank == pytest.approx(formula.bytes_per_rank, rel=1e-9)


@EVERY
@pytest.mark.parametrize("ranks", [5, 8, 12])
def test_nobody_sends_to_itself_or_twice_in_a_round(algorithm: str, ranks: int) -> None:
    """One port out; trees send to two children and hear two, one level a round."""
    for messages in schedule(algorithm, ranks, 64):
        assert (messages.src != messages.dst).all()
        assert np.bincount(messages.src).max() <= (3 if algorithm == "double_tree" else 1)


def test_no_rank_is_inner_in_both_trees() -> None:
    """So that 2 n bytes a rank are enough (Sanders, Speck, Traeff 2009)."""
    for ranks in range(2, 200):
        most = count(schedule("double_tree", ranks, 2.0), ranks).bytes_per_rank
        assert most == min(4.0, float(ranks))


def test_a_round_sends_what_it_found() -> None:
    """Two ranks that swap and add both get the sum, not one of them the sum of a sum."""
    swap = Round(*(np.array(ends) for ends in ([0, 1], [1, 0], [0, 0], [1, 1])), reduce=True)
    buffers = np.array([[1], [2]])
    execute([swap], buffers)
    assert buffers.tolist() == [[3], [3]]


def test_a_missing_message_is_noticed() -> None:
    rounds = list(schedule("ring", 4, 8))
    with pytest.raises(AssertionError):
        check_sum(rounds[1:], 4, 8)
