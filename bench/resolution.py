"""Whether repeated measurements resolve a part, such as how much of something is hidden. Pure.

A hidden part is 1 - (difference of two measured times) / (a third). Where the third is small
against the noise of the difference, the part is noise over little; such figures are marked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

MOST_UNCERTAIN = 0.25
"""Half width of the 90 % interval of a part up to which it counts: half of something can then be
told from nothing and from all of it."""
MARK = "?"
"""Stands in a table for a part that is not resolvable."""
_T_95 = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81)
"""Student's t that 95 % lie below, for 1 to 10 degrees of freedom; for more that of ten, which is
on the safe side of 1.64."""


def pooled_deviation(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Standard deviation around each group's own mean, and its degrees of freedom."""
    freedom = sum(len(group) - 1 for group in groups)
    squares = math.fsum((value - fmean(group)) ** 2 for group in groups for value in group)
    return (math.sqrt(squares / freedom) if freedom else 0.0), freedom


def half_width(groups: Sequence[Sequence[float]], *counts: int) -> float | None:
    """Half the width of the 90 % interval of a difference of means: t s sqrt(sum of 1 / count).

    Args:
        groups: repeated measurements, whose pooled deviation is s; in the unit of the result.
        counts: how many measurements each mean of the difference is of.

    Returns:
        None where nothing was repeated: one measurement shows no spread.
    """
    deviation, freedom = pooled_deviation(groups)
    if not freedom:
        return None
    t = _T_95[min(freedom, len(_T_95)) - 1]
    return t * deviation * math.sqrt(math.fsum(1 / count for count in counts))


def is_resolvable(uncertainty: float | None) -> bool:
    """Whether a part known to +- `uncertainty` counts; None: not known at all."""
    return uncertainty is not None and uncertainty <= MOST_UNCERTAIN


def why_not(uncertainties: Sequence[float | None]) -> str:
    """What keeps parts from being resolved, in words."""
    known = [value for value in uncertainties if value is not None]
    if not known:
        return "one round shows no spread to judge it by: two --rounds or more expected"
    return (
        f"the rounds differ by so much that it is known to +-{min(known):,.2f} at best, where "
        f"+-{MOST_UNCERTAIN:g} is the limit (90 % interval): more --rounds or --steps or a "
        "slower network (tests/lab/netlab.sh) would resolve it"
    )
