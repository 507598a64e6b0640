"""YAML to a frozen `Run`: layers of leaves, the origin of every leaf, all errors at once."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from .errors import COMMAND_LINE, Problem, UserError, show
from .image_set import fill_counts, forget_other_set
from .layout import forget_same_network, lay_out, note_network, ranks_of, says_ranks
from .leaves import Layer, Leaf, Origin, flatten, put, remove, tree_of
from .machine import System
from .names import find_config, find_system, nearest_name, recorded_in
from .schema import Run
from .values import section_of
from .yaml_file import machine_layer, parse_overrides, read_layers

# What pydantic says in its own terms, by the type of the error.
_PLAIN = {
    "missing": "one value more",  # in a list
    "too_long": "fewer values",
    "too_short": "one value or more",
    "model_type": "a section (keys and values)",
    "tuple_type": "a list",
    "bool_type": "true or false, without quotes",
}


@dataclass(frozen=True)
class Loaded:
    """A validated config and where each of its leaves came from (dotted path -> Origin)."""

    run: Run
    origins: Mapping[str, Origin]

    def to_dict(self) -> dict[str, Any]:
        """The resolved tree as plain JSON types; durations as text."""
        return self.run.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved tree as YAML text that `load` reads back, from the same folder."""
        return _yaml_text(self.to_dict() | {"system": _system_tree(self.run.system)})

    @property
    def sha256(self) -> str:
        """Digest of the resolved tree, independent of how it was written."""
        text = json.dumps(
            self.to_dict(),
            sort_keys=True,
            separators=(",", ":"),
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def leaves(self) -> Iterator[tuple[str, Any, Origin]]:
        """Each leaf as (dotted path, value, origin), in schema order."""
        system = self.run.system
        job = {"job": system.job.model_dump(mode="json")}
        for path, value in flatten(
            self.to_dict() | {"system": _system_tree(system) | job}
        ):
            yield path, value, self.origin(path)

    def with_seed(self, seed: int | None) -> Loaded:
        """The same config, as if the command line had given the seed."""
        origins = {**self.origins, "seed": Origin(COMMAND_LINE)}
        return Loaded(self.run.model_copy(update={"seed": seed}), origins)

    def origin(self, path: str) -> Origin:
        """Where a leaf was written."""
        sections = [path[: dot.start()] for dot in re.finditer(r"\.|$", path)]
        found = [
            self.origins[section] for section in sections if section in self.origins
        ]
        return found[-1] if found else Origin("default")


def load(
    config: str | Path, overrides: Sequence[str] = (), *, within: Path | None = None
) -> Loaded:
    """Read a preset name or YAML path, apply `key.path=value` overrides, validate.

    `within`: the folder in which a recorded config lies: nothing outside is read, be it by a link
    or as the manifest of `data.path`. Raises UserError: unreadable file, bad YAML, or
    bad values: every problem, one line each.
    """
    path = find_config(str(config)) if within is None else Path(config)
    layers = read_layers(path, within=within or recorded_in(path))
    leaves = merge([*layers, *parse_overrides(overrides)])
    fill_counts(leaves, from_manifest=within is None)
    try:
        run = Run.model_validate(tree_of(leaves))
    except ValidationError as error:
        raise UserError(*explain(error, leaves, str(path))) from None
    return Loaded(run, {key: leaf.origin for key, leaf in leaves.items()})


def merge(layers: Iterable[Layer]) -> dict[str, Leaf]:
    """The leaves of all layers, each over those before it. A machine takes the place of the one
    below, with as many ranks, unless a layer above it says how many nodes or ranks there are."""
    leaves: dict[str, Leaf] = {}
    ranks = None
    for layer in layers:
        if layer.is_machine:
            ranks = ranks or ranks_of(leaves)
            # where results go is no part of it
            remove(leaves, "system", keep=("system.results",))
        forget_other_set(leaves, layer)
        for key, leaf in layer.leaves:
            put(leaves, key, leaf)
        note_network(leaves, layer)
        if says_ranks(layer):
            ranks = None
    if ranks is not None:
        lay_out(leaves, ranks)
    forget_same_network(leaves)
    return leaves


def load_system(name: str) -> System:
    """A machine by its name in `config/system/` (case and dashes do not matter) or YAML path.
    Raises UserError: no such machine, or bad values."""
    leaves = merge([machine_layer(find_system(name))])
    try:
        return Run.model_validate(tree_of(leaves)).system
    except ValidationError as error:
        raise UserError(*explain(error, leaves, name)) from None


def system_yaml(system: System) -> str:
    """A machine with its performance as YAML text that `load_system` reads back."""
    tree = _system_tree(system)
    del tree["results"]  # no part of a machine
    return _yaml_text(tree)


def _system_tree(system: System) -> dict[str, Any]:
    """A machine as plain JSON types, with its performance and its jobs' settings."""
    tree = system.model_dump(mode="json")
    for name, section in (("job", system.job), ("description", system.description)):
        if given := section.model_dump(mode="json", exclude_defaults=True):
            tree[name] = given
    if system.references:
        tree["references"] = {
            name: one.model_dump() for name, one in system.references.items()
        }
    if system.performance is not None:
        tree["performance"] = system.performance.model_dump(
            mode="json", exclude_none=True
        )
    return tree


def _yaml_text(tree: Mapping[str, Any]) -> str:
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(tree, out)
    return out.getvalue()


def explain(
    error: ValidationError,
    leaves: Mapping[str, Leaf],
    config: str,
    root: type[BaseModel] = Run,
) -> list[Problem]:
    """The problems of a tree of `root`: file:line: key: expected ..., found ...; in the order in
    which they are written."""
    problems = _explained(error, leaves, config, root)
    ordered = sorted(problems, key=lambda pair: (pair[0].source, pair[0].line or 0))
    return [Problem(str(origin), text) for origin, text in ordered]


def _explained(
    error: ValidationError,
    leaves: Mapping[str, Leaf],
    config: str,
    root: type[BaseModel],
) -> Iterator[tuple[Origin, str]]:
    origins = {key: leaf.origin for key, leaf in leaves.items()}
    for problem in error.errors(include_url=False):
        key = ".".join(
            str(part) for part in problem["loc"] if not isinstance(part, int)
        )
        origin = _nearest(key, origins) or Origin(config)
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            yield origin, f"{key}: unknown key{_suggest(problem['loc'], root)}"
        elif (
            problem["type"] == "value_error"
            and _section_at(problem["loc"], root) is not None
        ):
            yield origin, f"{key}.{message}" if key else message
        elif problem["type"] == "missing" and isinstance(problem["loc"][-1], str):
            yield origin, f"{key}: a value expected, found none"
        else:
            expected = _PLAIN.get(
                problem["type"], message.removeprefix("Input should be ")
            )
            yield origin, f"{key}: expected {expected}, found {show(problem['input'])}"


def _nearest(key: str, origins: Mapping[str, Origin]) -> Origin | None:
    """Where a key was written, else something within it, else the section that it is in."""
    while key:
        if key in origins:
            return origins[key]
        below = [
            origin for other, origin in origins.items() if other.startswith(f"{key}.")
        ]
        if below:
            return below[-1]
        key = key.rpartition(".")[0]
    return None


def _suggest(loc: tuple[int | str, ...], root: type[BaseModel]) -> str:
    """The nearest valid keys beside an unknown one."""
    section = _section_at(loc[:-1], root)
    if section is None:
        return ""
    fields = section.model_fields
    return nearest_name(str(loc[-1]), fields) or f"; valid here: {', '.join(fields)}"


def _section_at(
    loc: tuple[int | str, ...], root: type[BaseModel]
) -> type[BaseModel] | None:
    """The section of the schema at a place, or None where a value stands."""
    section: type[BaseModel] | None = root
    parts = iter(loc)
    for part in parts:
        if section is None or part not in section.model_fields:
            return None
        field = section.model_fields[str(part)]
        section, _ = section_of(field.annotation)
        if get_origin(field.annotation) is dict:
            next(parts, None)  # the user's own key
    return section
