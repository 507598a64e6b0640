"""A config as leaves: dotted path -> value and origin. A layer is what one file, without its bases,
or the command line sets."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..host.reading import JsonObject


class Origin(NamedTuple):
    """The place where a value was written: a file and line (1-based), the command line, or the
    default."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        if self.line is None:
            return self.source
        return f"{self.source}:{self.line}"


class Leaf(NamedTuple):
    """A value and where it was written."""

    value: Any
    origin: Origin


Leaves: TypeAlias = dict[str, Leaf]
"""A config's leaves by their dotted paths."""
Origins: TypeAlias = Mapping[str, Origin]


class Layer(NamedTuple):
    """Leaves in the order in which they were written. `is_machine`: of a machine's file, which
    takes the place of the machine in the layers below."""

    leaves: Collection[tuple[str, Leaf]]
    is_machine: bool = False

    def last(self, key: str) -> Leaf | None:
        """The leaf at exactly `key` that counts, if this layer has one."""
        return dict(self.leaves).get(key)

    def mentions(self, key: str) -> bool:
        """Whether it sets `key` or something within it."""
        return any(is_within(mentioned, key) for mentioned, _ in self.leaves)


def is_within(key: str, section: str) -> bool:
    """Is `key` the section itself, or a key below it?"""
    return key == section or key.startswith(f"{section}.")


def value_in(leaves: Leaves, key: str, default: Any = None) -> Any:
    """The value at exactly `key`."""
    return leaves[key].value if key in leaves else default


def put(leaves: Leaves, key: str, leaf: Leaf) -> None:
    """Set one leaf; a section it replaces goes, and so does a scalar above it. An empty mapping
    changes nothing in a section that is there."""
    is_section = any(present.startswith(f"{key}.") for present in leaves)
    if is_section and leaf.value == {}:
        return
    # a copy of the keys, as some are deleted
    for present in list(leaves):
        if is_within(present, key) or key.startswith(f"{present}."):
            del leaves[present]
    leaves[key] = leaf


def remove(leaves: Leaves, section: str, keep: Iterable[str] = ()) -> None:
    """Delete a section's leaves, or a leaf, but for the keys in `keep`."""
    for key in list(leaves):
        if is_within(key, section) and key not in keep:
            del leaves[key]


def tree_of(leaves: Leaves) -> JsonObject:
    """The values as a nested dict."""
    tree: JsonObject = {}
    for key, leaf in leaves.items():
        nest(tree, key, leaf.value)
    return tree


def nest(tree: JsonObject, key: str, value: Any) -> None:
    """Set the leaf at a dotted path of a nested dict."""
    *parents, last = key.split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
    tree[last] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a nested mapping as (dotted path, value)."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def yaml_value(value: Any) -> str:
    """A value as one would write it in YAML."""
    if isinstance(value, str):
        return value
    return json.dumps(value)
