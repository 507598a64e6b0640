"""Which image set the keys of `data` describe, and the counts that follow from it.

A layer with another `data.path` than the layers below names another set, for which their
`synthetic` and counts do not hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .leaves import Layer, Leaf, Origin, is_within, put, remove
from .manifest import FILE_NAME, Counts, load_manifest
from .names import is_file
from .schema import Data, Synthetic

PATH = "data.path"
SYNTHETIC = "data.synthetic"
COUNTS = tuple(f"data.{field}" for field in Counts._fields)


def forget_other_set(leaves: dict[str, Leaf], layer: Layer) -> None:
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


def fill_counts(leaves: dict[str, Leaf], *, from_manifest: bool) -> None:
    """Set the counts that no layer gives, where the set to be drawn or (`from_manifest`) a manifest
    has them. Raises UserError: the manifest is needed and cannot be read."""
    missing = [key for key in COUNTS if key not in leaves]
    path = _path_in(leaves)
    if not missing or ("data" in leaves and leaves["data"].value != {}):
        return  # the second: no section but a value, which is refused
    drawn = {
        key: leaf.value for key, leaf in leaves.items() if is_within(key, SYNTHETIC)
    }
    counts: dict[str, Any]
    if drawn and drawn.get(SYNTHETIC, {}) == {}:
        names = Counts._fields
        fields = Synthetic.model_fields
        counts = {
            name: drawn.get(f"{SYNTHETIC}.{name}", fields[name].default)
            for name in names
        }
        origin = Origin(SYNTHETIC)
    elif from_manifest and isinstance(path, str) and is_file(Path(path) / FILE_NAME):
        counts = load_manifest(Path(path)).counts._asdict()
        origin = Origin(str(Path(path) / FILE_NAME))
    else:
        return
    for key in missing:
        value = counts[key.removeprefix("data.")]
        if type(value) is int:  # else refused where it stands, in `data.synthetic`
            put(leaves, key, Leaf(value, origin))


def wrong_counts(
    data: Data, counts: Counts, source: str | Path, origins: Mapping[str, Origin]
) -> Iterator[str]:
    """A line for each count of the config that is not the set's, which stand in `source`."""
    for key, count in zip(COUNTS, counts, strict=True):
        configured = getattr(data, key.removeprefix("data."))
        if configured != count:
            where = f"{origins[key]}: " if key in origins else ""
            yield f"{where}{key}: {count} expected, as in {source}, found {configured}"


def _path_in(leaves: Mapping[str, Leaf]) -> Any:
    return leaves[PATH].value if PATH in leaves else Data.model_fields["path"].default


def _real(path: Any) -> Any:
    return (
        os.path.realpath(path) if isinstance(path, str) and "\0" not in path else path
    )
