"""What a machine keeps of the layers below: the recipe's ranks, with which its learning rate goes,
and the network on which its points were measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .leaves import Layer, Leaf, Origin, remove
from .machine import MeasuredOn, System

NODES = "system.nodes"
RANKS_PER_NODE = "system.ranks_per_node"
_NETWORK = {name: f"system.performance.{name}" for name in MeasuredOn.model_fields}
_NETWORK["ranks_per_node"] = RANKS_PER_NODE
_POINTS = {
    f"system.performance.{precision}.points": f"system.performance.{precision}.measured_on"
    for precision in ("fp16", "fp32", "tf32")
}


def note_network(leaves: dict[str, Leaf], layer: Layer) -> None:
    """After `layer` is put: note beside its points the network, which is that of its machine."""
    for points, noted in _POINTS.items():
        if layer.mentions(points) and not layer.mentions(noted):
            remove(leaves, noted)
            leaves.update(
                {f"{noted}.{name}": leaf for name, leaf in _network(leaves).items()}
            )


def forget_same_network(leaves: dict[str, Leaf]) -> None:
    """After all layers: points whose network no later layer changed need no note."""
    now = {name: leaf.value for name, leaf in _network(leaves).items()}
    for noted in _POINTS.values():
        found = {name: leaves.get(f"{noted}.{name}") for name in now}
        if now == {name: leaf and leaf.value for name, leaf in found.items()}:
            remove(leaves, noted)


def _network(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    fields = MeasuredOn.model_fields
    default = Origin("default")
    return {
        n: leaves.get(key, Leaf(fields[n].default, default))
        for n, key in _NETWORK.items()
    }


def says_ranks(layer: Layer) -> bool:
    """Whether a layer says how many nodes or ranks there are; a machine's file says its own."""
    return not layer.is_machine and (
        layer.mentions(NODES) or layer.mentions(RANKS_PER_NODE)
    )


def ranks_of(leaves: Mapping[str, Leaf]) -> int | None:
    """Ranks of a config's leaves; None where it has no machine yet, or values that are none."""
    if NODES not in leaves and RANKS_PER_NODE not in leaves:
        return None
    nodes = _count(leaves, NODES)
    per_node = _count(leaves, RANKS_PER_NODE)
    return nodes * per_node if nodes and per_node else None


def lay_out(leaves: dict[str, Leaf], ranks: int) -> None:
    """Lay `ranks` on the machine in `leaves`: as many on a node as fill whole nodes."""
    most = _count(leaves, RANKS_PER_NODE)
    if not most or ranks_of(leaves) == ranks:
        return
    per_node = next(
        count for count in range(min(most, ranks), 0, -1) if ranks % count == 0
    )
    origin = Origin(f"{ranks} ranks, as before")
    leaves[NODES] = Leaf(ranks // per_node, origin)
    leaves[RANKS_PER_NODE] = Leaf(per_node, origin)


def with_ranks(overrides: list[str], ranks: int | None) -> list[str]:
    """Overrides and `--ranks`, where it is given."""
    more = [] if ranks is None else [f"{NODES}=1", f"{RANKS_PER_NODE}={ranks}"]
    return [*overrides, *more]


def _count(leaves: Mapping[str, Leaf], key: str) -> int:
    """A value, or 0 where validation will refuse it."""
    default = System.model_fields[key.removeprefix("system.")].default
    value = leaves[key].value if key in leaves else default
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0
        else 0
    )
