"""What a machine keeps of the layers below: the recipe's ranks, with which its learning rate goes,
and the network on which its points were measured. Pure."""

from __future__ import annotations

from ..host.errors import UserError, show
from .leaves import Layer, Leaf, Leaves, Origin, remove, value_in
from .machine import MeasuredOn, System
from .plan import spread

NODES = "system.nodes"
RANKS_PER_NODE = "system.ranks_per_node"
_PERFORMANCE = "system.performance"
_NETWORK = {name: f"{_PERFORMANCE}.{name}" for name in MeasuredOn.model_fields}
_NETWORK["ranks_per_node"] = RANKS_PER_NODE
_CALIBRATED = [f"{_PERFORMANCE}.{precision}" for precision in ("fp16", "fp32", "tf32")]


def note_network(leaves: Leaves, layer: Layer) -> None:
    """After `layer` is put: note beside its points the network, which is that of its machine."""
    for section in _CALIBRATED:
        noted = f"{section}.measured_on"
        if layer.mentions(f"{section}.points") and not layer.mentions(noted):
            remove(leaves, noted)
            for name, leaf in _network(leaves).items():
                leaves[f"{noted}.{name}"] = leaf


_SHEET = ("tensor_flops_per_s", "memory_bytes_per_s", "clock_hz")


def refuse_other_gpu(leaves: Leaves, layer: Layer) -> None:
    """Before `layer` is put: raise UserError where it gives the GPU another data sheet, and leaves
    the points that were measured on the one before."""
    measured = [
        section.rpartition(".")[2]
        for section in _CALIBRATED
        if f"{section}.points" in leaves
        and not (layer.mentions(f"{section}.points") or layer.last(section))
    ]
    for key in (f"{_PERFORMANCE}.{name}" for name in _SHEET):
        before = value_in(leaves, key)
        leaf = layer.last(key)
        if measured and before and leaf and leaf.value not in (before, None):
            cure = ", ".join(f"{precision}: null" for precision in measured)
            raise UserError(
                f"{leaf.origin}: {key}: expected {show(before)}, found {show(leaf.value)}: the "
                "points of the base were measured on another GPU; remove them by "
                f"`{cure}`, or give points of this one"
            )


def forget_same_network(leaves: Leaves) -> None:
    """After all layers: points whose network no later layer changed need no note."""
    now = {name: leaf.value for name, leaf in _network(leaves).items()}
    for section in _CALIBRATED:
        noted = f"{section}.measured_on"
        if now == {name: value_in(leaves, f"{noted}.{name}") for name in now}:
            remove(leaves, noted)


def _network(leaves: Leaves) -> Leaves:
    network = {}
    for name, field in MeasuredOn.model_fields.items():
        by_default = Leaf(field.default, Origin("default"))
        network[name] = leaves.get(_NETWORK[name], by_default)
    return network


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
    most = _count(leaves, RANKS_PER_NODE)
    if not most or ranks_of(leaves) == ranks:
        return  # validation will refuse it; or the machine has as many, by its own lines
    nodes, per_node = spread(ranks, most)
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
    if type(value) is int and value > 0:
        return value
    return 0
