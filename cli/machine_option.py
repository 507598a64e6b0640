"""`--system NAME`: a config on another machine, in one meaning for all commands."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..config.errors import UserError
from ..config.load import load_system
from ..config.yaml_file import parse_overrides
from .console import split_config


def on_machine(overrides: Sequence[str], name: str | None) -> list[str]:
    """The overrides that put a config on a machine, with its number of ranks unless they say how
    many nodes or ranks there are.

    Args:
        overrides: of the config, as given.
        name: of the machine, or its YAML file; None: the config's own.

    Raises:
        UserError: no such machine, or another one among the overrides.
    """
    if name is None:
        return list(overrides)
    if any(layer.machine for layer in parse_overrides(overrides)):
        raise UserError(f"--system: no system=NAME beside it expected, found {name} and that")
    load_system(name)  # refused by the option's name
    return [f"system={json.dumps(name)}", *overrides]


def put_config(config: str, overrides: list[str] | None, name: str | None) -> tuple[str, list[str]]:
    """A command's config and overrides, on the machine that its `--system` names."""
    preset, texts = split_config(config, overrides)
    return preset, on_machine(texts, name)
