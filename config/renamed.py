"""Keys of the release before and their names of today: accepted for one release, with a warning."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from .errors import UserError
from .leaves import Leaf, Origin, flatten, nest

RENAMED = {
    "comm.wire": "comm.gradient_dtype",
    "data.plain_from_epoch": "data.no_augment_from_epoch",
    "limits.learning_by": "limits.min_accuracy_by",
    "system.performance.interrupted": "system.performance.os_noise_fraction",
}
# A sweep has keys of a config below its own.
_OLD = re.compile(
    rf"(?P<sweep>(?:overrides|parameters)\.)?(?P<old>{'|'.join(map(re.escape, RENAMED))})"
    r"(?P<below>\..*)?"
)


def today(key: str) -> str:
    """A key under today's name."""
    found = _OLD.fullmatch(key)
    if found is None:
        return key
    return f"{found['sweep'] or ''}{RENAMED[found['old']]}{found['below'] or ''}"


def rename_leaves(leaves: Iterable[tuple[str, Leaf]]) -> list[tuple[str, Leaf]]:
    """The leaves of one file or of the command line under today's names; warns once of each. Raises
    UserError: a file that has a key under both names."""
    leaves = list(leaves)
    named = {key: leaf.origin for key, leaf in leaves}
    renamed = []
    for key, leaf in leaves:
        new, origin = today(key), leaf.origin
        if new != key:
            if new in named and origin.line is not None:
                raise UserError(
                    f"{origin}: {key}: each key once expected, found it under its name of today, "
                    f"{new}, as well (line {named[new].line})"
                )
            _warn(origin, key, new)
        renamed.append((new, leaf))
    return renamed


def rename_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config that was recorded, such as a checkpoint's, under today's names."""
    renamed: dict[str, Any] = {}
    for key, value in flatten(tree):
        if (new := today(key)) != key:
            _warn(Origin("checkpoint"), key, new)
        nest(renamed, new, value)
    return renamed


@cache
def _warn(origin: Origin, old: str, new: str) -> None:
    print(f"rn50: warning: {origin}: {old} is {new} now", file=sys.stderr, flush=True)
