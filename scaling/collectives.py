"""Allreduce algorithms as messages: rounds of (src, dst, slice, add or replace), over NumPy. Pure.

What `cost.py` states, these do: tests run them on arrays, where every rank must end with the sum,
and count their rounds and bytes; `simulate.py` runs clocks on them. A buffer of whole
elements (int n) is cut into whole chunks, one of bytes (float n) into equal ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .cost import SEGMENT_BYTES, grid, parse_algorithm

Ranks: TypeAlias = NDArray[np.int64]
Offsets: TypeAlias = NDArray[np.int64] | NDArray[np.float64]
Rounds: TypeAlias = Iterator["Round"]


class Round(NamedTuple):
    """Messages at once: [start, stop) of src's buffer is added to dst's, or replaces it."""

    src: Ranks
    dst: Ranks
    start: Offsets
    stop: Offsets
    reduce: bool


def schedule(
    algorithm: str, ranks: int, n: float, default_grid: tuple[int, int] | None = None
) -> Rounds:
    """Rounds of `algorithm`, as `comm.algorithm` names it, with its grid or `default_grid`."""
    name, sides = parse_algorithm(algorithm, ranks)
    if ranks == 1:
        return iter(())
    return SCHEDULES[name](ranks, n, sides or default_grid or grid(ranks))


def _edges(start: Offsets, stop: Offsets, chunks: int) -> Offsets:
    """Bounds of the chunks of each [start, stop): one row each, `chunks` + 1 columns."""
    steps = (stop - start)[:, None] * np.arange(chunks + 1)
    if np.issubdtype(steps.dtype, np.integer):
        return start[:, None] + steps // chunks
    return start[:, None] + steps / chunks


def _whole(n: float, rings: int) -> tuple[Offsets, Offsets]:
    """[0, n) for each ring, in whole elements or in bytes."""
    stop = np.full(rings, n)
    return np.zeros_like(stop), stop


def _neighbours(members: Ranks) -> tuple[Ranks, Ranks]:
    """(src, dst) of all rings: each row of `members` is one."""
    return members.ravel(), np.roll(members, -1, axis=1).ravel()


def _reduce_scatter(members: Ranks, edges: Offsets) -> Rounds:
    """Place i of each ring sends chunk i - k and ends with the sum of chunk i + 1."""
    ends, places = _neighbours(members), np.arange(members.shape[1])
    for k in range(len(places) - 1):
        chunk = (places - k) % len(places)
        yield Round(*ends, edges[:, chunk].ravel(), edges[:, chunk + 1].ravel(), reduce=True)


def _allgather(members: Ranks, edges: Offsets) -> Rounds:
    """Place i of each ring starts with chunk i + 1 and sends chunk i + 1 - k."""
    ends, places = _neighbours(members), np.arange(members.shape[1])
    for k in range(len(places) - 1):
        chunk = (places + 1 - k) % len(places)
        yield Round(*ends, edges[:, chunk].ravel(), edges[:, chunk + 1].ravel(), reduce=False)


def _rings(members: Ranks, start: Offsets, stop: Offsets) -> Rounds:
    edges = _edges(start, stop, members.shape[1])
    yield from _reduce_scatter(members, edges)
    yield from _allgather(members, edges)


def _ring(ranks: int, n: float, _: tuple[int, int]) -> Rounds:
    return _rings(np.arange(ranks)[None, :], *_whole(n, 1))


def segmented_ring(ranks: int, n: float, segment: float) -> Rounds:
    """The ring with every message sent in segments of at most `segment`."""
    k = max(1, int(np.ceil(n / ranks / segment)))
    for whole in _ring(ranks, n, (1, ranks)):
        edges = _edges(whole.start, whole.stop, k)
        for i in range(k):
            yield whole._replace(start=edges[:, i], stop=edges[:, i + 1])


def _torus_2d(ranks: int, n: float, sides: tuple[int, int]) -> Rounds:
    """Rows of `columns` neighbours reduce-scatter, columns reduce the chunks, rows gather."""
    rows, columns = sides
    members = np.arange(ranks).reshape(rows, columns)
    edges = _edges(*_whole(n, rows), columns)
    yield from _reduce_scatter(members, edges)
    own = (np.arange(columns) + 1) % columns
    yield from _rings(members.T, edges[0, own], edges[0, own + 1])
    yield from _allgather(members, edges)


def _hierarchical(ranks: int, n: float, sides: tuple[int, int]) -> Rounds:
    """Reduce to the first of each row, a ring of those, broadcast: all n goes across."""
    rows, columns = sides
    members = np.arange(ranks).reshape(rows, columns)
    leaders = members[:, 0]
    edges = _edges(*_whole(n, rows), columns)
    yield from _reduce_scatter(members, edges)
    own = [(place + 1) % columns for place in range(columns)]
    for place in range(1, columns):
        piece = edges[:, own[place]], edges[:, own[place] + 1]
        yield Round(members[:, place], leaders, *piece, reduce=False)
    yield from _rings(leaders[None, :], *_whole(n, 1))
    for place in range(1, columns):
        piece = edges[:, own[place]], edges[:, own[place] + 1]
        yield Round(leaders, members[:, place], *piece, reduce=False)
    yield from _allgather(members, edges)


def _recursive_doubling(ranks: int, n: float, _: tuple[int, int]) -> Rounds:
    def core(active: Ranks) -> Rounds:
        for k in range(len(active).bit_length() - 1):
            partner = active[np.arange(len(active)) ^ (1 << k)]
            yield Round(active, partner, *_whole(n, len(active)), reduce=True)

    return _folded(ranks, n, core)


def _halving_doubling(ranks: int, n: float, _: tuple[int, int]) -> Rounds:
    """Halves go to the neighbour, quarters two away, ...; then the sums come back that way."""

    def core(active: Ranks) -> Rounds:
        start, stop = _whole(n, len(active))
        places = np.arange(len(active))
        held = []
        for k in range(len(active).bit_length() - 1):
            held.append((start, stop))
            low = (places >> k) & 1 == 0  # keeps the lower half, sends the upper
            middle = _edges(start, stop, 2)[:, 1]
            partner = active[places ^ (1 << k)]
            sent = np.where(low, middle, start), np.where(low, stop, middle)
            yield Round(active, partner, *sent, reduce=True)
            start, stop = np.where(low, start, middle), np.where(low, middle, stop)
        for k in reversed(range(len(held))):
            yield Round(active, active[places ^ (1 << k)], start, stop, reduce=False)
            start, stop = held[k]

    return _folded(ranks, n, core)


def _folded(ranks: int, n: float, core: Callable[[Ranks], Rounds]) -> Rounds:
    """No power of two: of the first 2r ranks the even ones give theirs away and get the sum."""
    extra = ranks - (1 << (ranks.bit_length() - 1))
    given, taken = np.arange(0, 2 * extra, 2), np.arange(1, 2 * extra, 2)
    if extra:
        yield Round(given, taken, *_whole(n, extra), reduce=True)
    yield from core(np.concatenate([taken, np.arange(2 * extra, ranks)]))
    if extra:
        yield Round(taken, given, *_whole(n, extra), reduce=False)


def _parents(ranks: int) -> Ranks:
    """NCCL's binary tree: odd ranks are leaves; the root 0 is its own parent here."""
    rank = np.arange(ranks)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    return np.where(up < ranks, up, rank ^ bit)


def _double_tree(ranks: int, n: float, _: tuple[int, int]) -> Rounds:
    """Up to both roots and down again, a level a round; half the buffer in each tree."""
    parents = _parents(ranks)
    depths, at = np.zeros(ranks, np.int64), np.arange(ranks)
    while at.any():
        depths += at > 0
        at = parents[at]
    # The second tree mirrors the first, or shifts it by one, so that its inner ranks are leaves.
    plays = np.arange(ranks)
    other = ranks - 1 - plays if ranks % 2 == 0 else (plays + 1) % ranks
    start, middle, stop = _edges(*_whole(n, 1), 2)[0]

    def level(depth: int, *, reduce: bool) -> Round:
        child = np.flatnonzero(depths == depth)
        parent = parents[child]
        low, high = np.full(len(child), start), np.full(len(child), middle)
        ends = np.concatenate([child, other[child]]), np.concatenate([parent, other[parent]])
        halves = np.concatenate([low, high]), np.concatenate([high, np.full(len(child), stop)])
        return Round(*(ends if reduce else ends[::-1]), *halves, reduce=reduce)

    deepest = int(depths.max())
    for depth in range(deepest, 0, -1):
        yield level(depth, reduce=True)
    for depth in range(1, deepest + 1):
        yield level(depth, reduce=False)


SCHEDULES: dict[str, Callable[[int, float, tuple[int, int]], Rounds]] = {
    "ring": _ring,
    "segmented_ring": lambda ranks, n, _: segmented_ring(ranks, n, SEGMENT_BYTES),
    "recursive_doubling": _recursive_doubling,
    "recursive_halving_doubling": _halving_doubling,
    "torus_2d": _torus_2d,
    "hierarchical": _hierarchical,
    "double_tree": _double_tree,
}
