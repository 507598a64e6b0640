"""Which image set the keys of `data` describe, and the counts that follow from it.

A layer with another `data.path` than the layers below names another set, for which their
`synthetic` and counts do not hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .leaves import (
    Layer,
    Leaf,
    Leaves,
    Origin,
    Origins,
    is_within,
    put,
    remove,
    value_in,
)
from .manifest import FILE_NAME, Counts, load_manifest
from .names import is_file
from .schema import Data, Synthetic

PATH = "data.path"
SYNTHETIC = "data.synthetic"
COUNTS = tuple(f"data.{field}" for field in Counts._fields)


def forget_other_set(leaves: Leaves, layer: Layer) -> None:
    """Drop from `leaves` what belongs to another image set than that of `layer`, which is put over
    them next. A layer that names `data.synthetic` too, even as `{}`, keeps the settings of the
    images to draw: the same images at its own path."""
    path = layer.last(PATH)
    if path is None or _real(path.value) == _real(_path_in(leaves)):
        return
    for key in COUNTS:
        leaves.pop(key, None)
    if not layer.mentions(SYNTHETIC):
        remove(leaves, SYNTHETIC)


def fill_counts(leaves: Leaves, *, from_manifest: bool) -> None:
    """Set the counts that no layer gives, where the set to be drawn or (`from_manifest`) a manifest
    has them. Raises UserError: the manifest is needed and cannot be read."""
    missing = [key for key in COUNTS if key not in leaves]
    # the second: no section but a value, which validation refuses
    if not missing or value_in(leaves, "data", {}) != {}:
        return
    path = _path_in(leaves)
    is_drawn = any(is_within(key, SYNTHETIC) for key in leaves)
    if is_drawn and value_in(leaves, SYNTHETIC, {}) == {}:
        counts = Counts._make(_drawn_count(leaves, name) for name in Counts._fields)
        origin = Origin(SYNTHETIC)
    elif from_manifest and isinstance(path, str) and is_file(Path(path) / FILE_NAME):
        counts = load_manifest(Path(path)).counts
        origin = Origin(str(Path(path) / FILE_NAME))
    else:
        return
    for key, count in zip(COUNTS, counts, strict=True):
        # another type is refused where it stands, in `data.synthetic`
        if key in missing and type(count) is int:
            put(leaves, key, Leaf(count, origin))


def _drawn_count(leaves: Leaves, name: str) -> Any:
    default = Synthetic.model_fields[name].default
    return value_in(leaves, f"{SYNTHETIC}.{name}", default)


def wrong_counts(
    data: Data, counts: Counts | Synthetic, source: str | Path, origins: Origins
) -> Iterator[str]:
    """A line for each count of the config that is not the set's.

    Args:
        data: the config's.
        counts: those of the set.
        source: where those stand.
        origins: where the config's values were written.
    """
    for key, name in zip(COUNTS, Counts._fields, strict=True):
        count = getattr(counts, name)
        configured = getattr(data, name)
        if configured != count:
            where = f"{origins[key]}: " if key in origins else ""
            yield f"{where}{key}: {count} expected, as in {source}, found {configured}"


def _path_in(leaves: Leaves) -> Any:
    return value_in(leaves, PATH, Data.model_fields["path"].default)


def _real(path: Any) -> Any:
    # a NUL byte is in no path, and `realpath` raises for one
    if isinstance(path, str) and "\0" not in path:
        return os.path.realpath(path)
    return path
