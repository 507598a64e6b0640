"""`--system NAME`: a config on another machine, in one meaning for all commands."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..config.errors import UserError
from ..config.load import load, load_system
from ..config.yaml_file import parse_overrides
from .console import split_config

_PLACE = ("system.nodes=", "system.ranks_per_node=")


def on_machine(config: str, overrides: Sequence[str], name: str | None) -> list[str]:
    """The overrides that put a config on a machine: its number of ranks, on the machine's nodes.

    `system.nodes` and `system.ranks_per_node` among the overrides win.

    Args:
        overrides: of the config, as given.
        name: of the machine, or its YAML file; None: the config's own.

    Raises:
        UserError: no such machine, another one among the overrides, or ranks that do not fill its
            nodes.
    """
    if name is None:
        return list(overrides)
    if any(layer.machine for layer in parse_overrides(overrides)):
        raise UserError(f"--system: no system=NAME beside it expected, found {name} and that")
    machine = load_system(name)
    if not any(text.startswith(_PLACE) for text in overrides):
        return [f"system={json.dumps(name)}", *overrides]  # which keeps the ranks
    run = load(config, overrides).run
    ranks = run.system.world_size
    per_node = min(ranks, machine.ranks_per_node)
    if ranks % per_node and not all(any(t.startswith(k) for t in overrides) for k in _PLACE):
        raise UserError(
            f"--system {name}: ranks that fill nodes of {per_node} expected, found {ranks}; "
            "system.nodes and system.ranks_per_node place them"
        )
    placed = (f"{key}{n}" for key, n in zip(_PLACE, (ranks // per_node, per_node), strict=True))
    return [f"system={json.dumps(name)}", *placed, *overrides]


def put_config(config: str, overrides: list[str] | None, name: str | None) -> tuple[str, list[str]]:
    """A command's config and overrides, on the machine that its `--system` names."""
    preset, texts = split_config(config, overrides)
    return preset, on_machine(preset, texts, name)
