"""Static groups of gradients: which tensors travel together, last layers first. Pure.

The ranks agree on the groups before the run, so no rank has to ask at each step what is ready
(Yamazaki et al. 2019, section III-B).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..config.choices import GROUPINGS as CHOICES
from ..config.choices import OneOf

Group = tuple[int, ...]
ALLOWED = OneOf(CHOICES)


def gradient_groups(rule: str, sizes_bytes: Sequence[int]) -> list[Group]:
    """Tensor numbers of each group, in the order in which backward completes them.

    Args:
        rule: `cubic(F)`, `equal_bytes(N)`, `equal_count(N)`, `halving(N)`, `single`, or
            `explicit(N,N,...)`, the number of tensors in each group, last layers first.
        sizes_bytes: size of every gradient, first layer first.

    Raises:
        ValueError: unknown rule, or explicit sizes that do not add up to the number of tensors.
    """
    ALLOWED.check(rule)
    name, _, argument = rule.rstrip(")").partition("(")
    tensors = len(sizes_bytes)
    bounds = GROUPINGS[name](
        sizes_bytes, [int(number) for number in argument.split(",") if number]
    )
    ends = [tensors, *bounds[:-1]]
    return [
        tuple(range(end - 1, start - 1, -1))
        for start, end in zip(bounds, ends, strict=True)
        if start < end
    ]


def _cubic_bounds(sizes: Sequence[int], factor: int) -> list[int]:
    """Fujitsu's rule: group k ends at tensor max(0, T - F (k+1)^3); 161, 3 -> 3, 21, 57, 80."""
    bounds: list[int] = []
    tensors = len(sizes)
    k = 0
    while not bounds or bounds[-1] > 0:
        k += 1
        bounds.append(max(0, tensors - factor * k**3))
    return bounds


def _explicit_bounds(tensors: int, sizes: Sequence[int]) -> list[int]:
    if sum(sizes) != tensors:
        raise ValueError(
            f"sizes that add up to the network's {tensors} tensors expected, "
            f"found {'+'.join(map(str, sizes))} = {sum(sizes)}"
        )
    return [tensors - sum(sizes[: k + 1]) for k in range(len(sizes))]


def _equal_bounds(sizes: Sequence[int], groups: int) -> list[int]:
    """Cut from the back as soon as a group holds its share of what is left."""
    return _bounds_by_share(sizes, groups, lambda still: still)


def _halving_bounds(sizes: Sequence[int], groups: int) -> list[int]:
    """Each group takes half of what is left: small at the end, whose sum nothing hides."""
    return _bounds_by_share(sizes, groups, lambda _: 2)


def _bounds_by_share(
    sizes: Sequence[int], groups: int, parts: Callable[[int], int]
) -> list[int]:
    """The next group takes one of the `parts` of what is left, given how many are still to fill."""
    bounds: list[int] = []
    left = sum(sizes)
    filled = 0
    for index in reversed(range(len(sizes))):
        filled += sizes[index]
        still = groups - len(bounds)
        if still > 1 and filled * parts(still) >= left:
            bounds.append(index)
            left -= filled
            filled = 0
    if not bounds or bounds[-1] > 0:
        bounds.append(0)
    return bounds


GROUPINGS: dict[str, Callable[[Sequence[int], list[int]], list[int]]] = {
    "single": lambda sizes, _: [0],
    "cubic": lambda sizes, numbers: _cubic_bounds(sizes, numbers[0]),
    "equal_count": lambda sizes, numbers: _equal_bounds([1] * len(sizes), numbers[0]),
    "equal_bytes": lambda sizes, numbers: _equal_bounds(sizes, numbers[0]),
    "halving": lambda sizes, numbers: _halving_bounds(sizes, numbers[0]),
    "explicit": lambda sizes, numbers: _explicit_bounds(len(sizes), numbers),
}
"""By the name of a rule of `comm.groups`: from sizes and the numbers in its brackets to the first
tensor of each group, the last group's first."""
