"""What a machine keeps of the layers below: the recipe's ranks, with which its learning rate goes,
and no points that were measured on another GPU or network. Pure."""

from __future__ import annotations

from typing import Any

from ..host.errors import UserError, show
from .leaves import Layer, Leaf, Leaves, Origin, put, value_in
from .machine import System, Waiting
from .plan import spread

NODES = "system.nodes"
RANKS_PER_NODE = "system.ranks_per_node"
_PERFORMANCE = "system.performance"
_PRECISIONS = ("fp16", "fp32", "tf32")
_SHEET = ("tensor_flops_per_s", "memory_bytes_per_s", "clock_hz")
_BEFORE: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(_SHEET, ("GPU", None)),
    **{
        name: ("network", field.default) for name, field in Waiting.model_fields.items()
    },
}
"""What points depend on, with what counts where no layer gives it; None: nothing does."""


def put_layer(leaves: Leaves, layer: Layer) -> None:
    """Set the leaves of a layer over those that are there. Raises UserError: it gives the machine
    another data sheet or network, and leaves the points that were measured on the one before."""
    measured = [
        precision
        for precision in _PRECISIONS
        if _keeps_points(leaves, layer, f"{_PERFORMANCE}.{precision}")
    ]
    for name, (part, default) in _BEFORE.items():
        key = f"{_PERFORMANCE}.{name}"
        base_value = value_in(leaves, key, default)
        leaf = layer.last(key)
        if (
            measured
            and leaf
            and base_value is not None
            and leaf.value not in (base_value, None)
        ):
            cure = ", ".join(f"{precision}: null" for precision in measured)
            raise UserError(
                f"{leaf.origin}: {key}: expected {show(base_value)}, found {show(leaf.value)}: the "
                f"points of the base were measured on another {part}; remove them by "
                f"`{cure}`, or give points of this one"
            )
    for key, setting in layer.leaves:
        put(leaves, key, setting)


def _keeps_points(leaves: Leaves, layer: Layer, section: str) -> bool:
    """Whether the points below remain when `layer` is put."""
    points = f"{section}.points"
    return points in leaves and not (layer.mentions(points) or layer.last(section))


def says_ranks(layer: Layer) -> bool:
    """Whether a layer says how many nodes or ranks there are; a machine's file says its own."""
    if layer.is_machine:
        return False
    return layer.mentions(NODES) or layer.mentions(RANKS_PER_NODE)


def ranks_of(leaves: Leaves) -> int | None:
    """Ranks of a config's leaves; None where it has no machine yet, or values that are none."""
    if NODES not in leaves and RANKS_PER_NODE not in leaves:
        return None
    return _count(leaves, NODES) * _count(leaves, RANKS_PER_NODE) or None


def lay_out(leaves: Leaves, ranks: int) -> None:
    """Lay `ranks` on the machine in `leaves`: as many on a node as fill whole nodes."""
    most_per_node = _count(leaves, RANKS_PER_NODE)
    if not most_per_node or ranks_of(leaves) == ranks:
        return  # validation will refuse it; or the machine has as many, by its own lines
    nodes, per_node = spread(ranks, most_per_node)
    origin = Origin(f"{ranks} ranks, as before")
    leaves[NODES] = Leaf(nodes, origin)
    leaves[RANKS_PER_NODE] = Leaf(per_node, origin)


def with_ranks(overrides: list[str], ranks: int | None) -> list[str]:
    """Overrides and `--ranks`, where it is given."""
    if ranks is None:
        return overrides
    return [*overrides, f"{NODES}=1", f"{RANKS_PER_NODE}={ranks}"]


def _count(leaves: Leaves, key: str) -> int:
    """A value, or 0 where validation will refuse it."""
    field = System.model_fields[key.removeprefix("system.")]
    value = value_in(leaves, key, field.default)
    # by its type: `true` is an int to isinstance
    if type(value) is int and value > 0:
        return value
    return 0
