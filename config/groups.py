"""Static groups of gradients: which tensors travel together, last layers first. Pure.

The ranks agree on the groups before the run, so no rank has to ask at each step what is ready
(Yamazaki et al. 2019, section III-B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from .choices import GROUPINGS as CHOICES
from .choices import OneOf

Group = tuple[int, ...]
ALLOWED = OneOf(CHOICES)


def gradient_groups(rule: str, sizes_bytes: Sequence[int]) -> list[Group]:
    """Tensor numbers of each group, in the order in which backward completes them.

    Args:
        rule: `cubic(F)`, `equal_bytes(N)`, `equal_count(N)`, `halving(N)`, `single`, or
            `explicit(N,N,...)`, the number of tensors in each group, last layers first.
        sizes_bytes: size of every gradient, first layer first.

    Raises:
        ValueError: unknown rule, or explicit sizes that do not add up to the number of tensors; it
            says what was expected.
    """
    ALLOWED.check(rule)
    # checked: so the brackets are there or not, and hold numbers
    name, _, argument = rule.rstrip(")").partition("(")
    numbers = [int(number) for number in argument.split(",") if number]
    starts = GROUPINGS[name](sizes_bytes, numbers)
    end = len(sizes_bytes)
    groups = []
    for start in starts:
        # more groups than tensors: some would be empty
        if start < end:
            groups.append(tuple(reversed(range(start, end))))
        end = start
    return groups


def _cubic_bounds(sizes: Sequence[int], factor: int) -> list[int]:
    """Fujitsu's rule: group k ends at tensor max(0, T - F (k+1)^3); 161, 3 -> 3, 21, 57, 80."""
    bounds: list[int] = []
    bound = len(sizes)
    while bound > 0:
        k = len(bounds) + 1
        bound = max(0, len(sizes) - factor * k**3)
        bounds.append(bound)
    return bounds


def _explicit_bounds(tensors: int, counts: Sequence[int]) -> list[int]:
    if sum(counts) != tensors:
        raise ValueError(
            f"sizes that add up to the network's {tensors} tensors (not to {sum(counts)})"
        )
    return [tensors - grouped for grouped in accumulate(counts)]


def _equal_bounds(sizes: Sequence[int], groups: int) -> list[int]:
    """Cut from the back as soon as a group holds its share of what is left."""
    return _bounds_by_share(sizes, range(groups, 1, -1))


def _bounds_by_share(sizes: Sequence[int], shares: Iterable[int]) -> list[int]:
    """Each group but the last takes one of so many parts of what is left."""
    bounds = []
    index = len(sizes)
    remaining = sum(sizes)
    for parts in shares:
        filled = 0
        while index and filled * parts < remaining:
            index -= 1
            filled += sizes[index]
        bounds.append(index)
        remaining -= filled
    return [*bounds, 0]


GROUPINGS: dict[str, Callable[[Sequence[int], list[int]], list[int]]] = {
    "single": lambda sizes, _: [0],
    "cubic": lambda sizes, numbers: _cubic_bounds(sizes, numbers[0]),
    "equal_count": lambda sizes, numbers: _equal_bounds([1] * len(sizes), numbers[0]),
    "equal_bytes": lambda sizes, numbers: _equal_bounds(sizes, numbers[0]),
    # half of what is left to each: small at the end, whose sum nothing hides
    "halving": lambda sizes, numbers: _bounds_by_share(sizes, [2] * (numbers[0] - 1)),
    "explicit": lambda sizes, numbers: _explicit_bounds(len(sizes), numbers),
}
"""The rules of `comm.groups`: from sizes and the numbers in a rule's brackets to the first tensor
of each group, the last group's first."""
