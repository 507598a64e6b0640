"""Names of allreduce algorithms, and the grids on which some of them sum. Pure."""

from __future__ import annotations

import math

from ..host.errors import UserError
from .choices import ALGORITHMS

IN_SWITCHES = "in_switches"
"""What NCCL may choose; no config can ask for it."""


def grid(ranks: int) -> tuple[int, int]:
    """(rows Y, columns X) of the torus, X >= Y, as square as the divisors of `ranks` allow.

    Reduce-scatter runs inside a row, over X ranks. Gives Sony's grids (Table 4, vertical x
    horizontal) but one: 3456 ranks are 54 x 64 here, 48 x 72 there; say torus_2d(48x72).
    """
    rows = math.isqrt(ranks)
    # ends at 1 at the latest, which divides all
    while ranks % rows:
        rows -= 1
    return rows, ranks // rows


GRIDS = ("torus_2d", "hierarchical")
"""Algorithms of rows and columns."""


def parse_algorithm(
    algorithm: str, ranks: int | None = None, key: str = "comm.algorithm"
) -> tuple[str, tuple[int, int] | None]:
    """`torus_2d(2x4)` -> torus_2d, (2, 4): rows x columns. No brackets: no grid. Raises UserError,
    which names `key`: unknown algorithm, or a grid that does not hold `ranks`."""
    name, bracket, rest = algorithm.partition("(")
    if name not in ALGORITHMS or (bracket and name not in GRIDS):
        names = ", ".join(ALGORITHMS)
        raise UserError(f"{key}: one of {names} expected, found {algorithm}")
    if not bracket:
        return name, None
    sides = rest.removesuffix(")").split("x")
    if len(sides) != 2 or not all(map(str.isdecimal, sides)):
        raise UserError(f"{key}: {name}(ROWSxCOLUMNS) expected, found {algorithm}")
    rows, columns = map(int, sides)
    if ranks not in (None, rows * columns):
        raise UserError(f"{key}: {algorithm}: a grid of {ranks} ranks expected")
    return name, (rows, columns)
