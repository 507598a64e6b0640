"""YAML to a frozen `Run`: layers of leaves, the origin of every leaf, all errors at once."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from ..host.errors import COMMAND_LINE, Problem, UserError, show
from ..host.reading import JsonObject
from .image_set import fill_counts, forget_other_set
from .layout import lay_out, put_layer, ranks_of, says_ranks
from .leaves import (
    Layer,
    Leaf,
    Leaves,
    Origin,
    Origins,
    flatten,
    is_within,
    put,
    remove,
    tree_of,
    value_in,
)
from .machine import UNDIGESTED, System
from .names import find_config, find_system, nearest_name, recorded_in
from .schema import Run
from .values import section_of
from .yaml_file import machine_layer, parse_overrides, read_layers

_Place: TypeAlias = tuple[int | str, ...]
_OF_GPUS = {"comm.groups": "single", "comm.cycle_ms": 0.1}
"""What no layer gives, where GPUs train: cuDNN's batch norm needs all multiprocessors at once, and
waits while a sum under backward has some of them (docs/communication.md)."""
_OF_PLANS = "NHWC"
"""The `model.layout` that a plan of a GPU's step computes in, whatever a layer gives."""
# What pydantic says in its own terms, by the type of the error.
_PLAIN = {
    "missing": "one value more",  # in a list
    "too_long": "fewer values",
    "too_short": "one value or more",
    "model_type": "a section (keys and values)",
    "tuple_type": "a list",
    "bool_type": "true or false (yes, no, on and off are text, as is all in quotes)",
}


@dataclass(frozen=True)
class Loaded:
    """A validated config and where each of its leaves came from (dotted path -> Origin)."""

    run: Run
    origins: Origins

    def to_dict(self) -> JsonObject:
        """The resolved tree as plain JSON types, durations as text; without the parts of a machine
        that are no part of a run's digest."""
        return self.run.model_dump(mode="json", exclude={"system": UNDIGESTED})

    def to_yaml(self) -> str:
        """The resolved tree as YAML text that `load` reads back, from the same folder."""
        tree = self.to_dict()
        tree["system"] = _system_tree(self.run.system)
        return _yaml_text(tree)

    @property
    def sha256(self) -> str:
        """Digest of the resolved tree, independent of how it was written."""
        # the order of keys and blanks do not count: equal configs have one digest
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def leaves(self) -> Iterator[tuple[str, Any, Origin]]:
        """Each leaf as (dotted path, value, origin), in schema order."""
        tree = self.to_dict()
        tree["system"] = _system_tree(self.run.system)
        tree["system"]["job"] = self.run.system.job.model_dump(mode="json")
        for path, value in flatten(tree):
            yield path, value, self.origin(path)

    def with_seed(self, seed: int | None) -> Loaded:
        """The same config, as if the command line had given the seed."""
        origins = {**self.origins, "seed": Origin(COMMAND_LINE)}
        return Loaded(self.run.model_copy(update={"seed": seed}), origins)

    def origin(self, path: str) -> Origin:
        """The place where a leaf, or the section that it is in, was written."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return Origin("default")


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
    _fill_for_device(leaves)
    origins = {key: leaf.origin for key, leaf in leaves.items()}
    run = _validate(leaves, str(path))
    # after validation, which knows the network: a plan computes in one layout alone
    is_planned = run.system.device == "gpu" and run.model.is_planned
    if is_planned and run.model.layout != _OF_PLANS:
        model = run.model.model_copy(update={"layout": _OF_PLANS})
        run = run.model_copy(update={"model": model})
        origins["model.layout"] = Origin("model.step")
    return Loaded(run, origins)


def merge(layers: Iterable[Layer]) -> Leaves:
    """The leaves of all layers, each over those before it. A machine takes the place of the one
    below, with as many ranks, unless a layer above it says how many nodes or ranks there are."""
    leaves: Leaves = {}
    ranks = None
    for layer in layers:
        if layer.is_machine:
            # of two machines, one over the other, the ranks below both count
            ranks = ranks or ranks_of(leaves)
            # where results go is no part of it
            remove(leaves, "system", keep=("system.results",))
        forget_other_set(leaves, layer)
        put_layer(leaves, layer)
        if says_ranks(layer):
            ranks = None
    if ranks is not None:
        lay_out(leaves, ranks)
    return leaves


def _fill_for_device(leaves: Leaves) -> None:
    """Set what the device decides and no layer gives."""
    is_gpu = value_in(leaves, "system.device") == "gpu"
    # the second: no section but a value, which validation refuses
    if not is_gpu or value_in(leaves, "comm", {}) != {}:
        return
    for key, value in _OF_GPUS.items():
        if key not in leaves:
            put(leaves, key, Leaf(value, Origin("system.device")))


def load_system(name: str) -> System:
    """A machine by its name in `config/system/` (case and dashes do not matter) or YAML path.
    Raises UserError: no such machine, or bad values."""
    leaves = merge([machine_layer(find_system(name))])
    return _validate(leaves, name).system


def _validate(leaves: Leaves, config: str) -> Run:
    try:
        return Run.model_validate(tree_of(leaves))
    except ValidationError as error:
        raise UserError(*explain(error, leaves, config)) from None


def system_yaml(system: System) -> str:
    """A machine with its performance as YAML text that `load_system` reads back."""
    tree = _system_tree(system)
    del tree["results"]  # no part of a machine
    return _yaml_text(tree)


def _system_tree(system: System) -> JsonObject:
    """A machine as plain JSON types: all that a prediction calculates with, and of the other parts
    that no digest has, what is no default."""
    tree = system.model_dump(mode="json", exclude=UNDIGESTED)
    tree |= system.model_dump(
        mode="json", include=UNDIGESTED - {"performance"}, exclude_defaults=True
    )
    if system.performance is not None:
        tree["performance"] = system.performance.model_dump(
            mode="json", exclude_none=True
        )
    return tree


def _yaml_text(tree: Mapping[str, Any]) -> str:
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    # blocks of one key a line, in the schema's order
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(tree, out)
    return out.getvalue()


def explain(
    error: ValidationError, leaves: Leaves, config: str, root: type[BaseModel] = Run
) -> list[Problem]:
    """The problems of a tree: file:line: key: expected ..., found ...; in the order in which they
    are written.

    Args:
        error: what pydantic found.
        leaves: what was validated, with the origin of each value.
        config: the name by which a value without an origin is called.
        root: the model of the tree.
    """
    origins = {key: leaf.origin for key, leaf in leaves.items()}
    problems = []
    for problem in error.errors(include_url=False):
        # without the numbers of a list's entries: a list is one leaf
        names = [part for part in problem["loc"] if isinstance(part, str)]
        key = ".".join(names)
        origin = nearest_origin(key, origins) or Origin(config)
        problems.append((origin, _text_of(problem, key, root)))
    problems.sort(key=lambda problem: (problem[0].source, problem[0].line or 0))
    return [Problem(str(origin), message) for origin, message in problems]


def _text_of(problem: ErrorDetails, key: str, root: type[BaseModel]) -> str:
    """What is wrong with `key`."""
    error_type = problem["type"]
    location = problem["loc"]
    message = problem["msg"].removeprefix("Value error, ")
    if error_type == "extra_forbidden":
        return f"{key}: unknown key{_suggest(location, root)}"
    # a section's own `_check`, whose message begins with the key in it
    if error_type == "value_error" and _section_at(location, root) is not None:
        return f"{key}.{message}" if key else message
    if error_type == "missing" and isinstance(location[-1], str):
        return f"{key}: a value expected, found none"
    expected = _PLAIN.get(error_type, message.removeprefix("Input should be "))
    return f"{key}: expected {expected}, found {show(problem['input'])}"


def nearest_origin(key: str, origins: Origins) -> Origin | None:
    """The place where a key was written, else something within it, else the section that it is
    in."""
    while key:
        if key in origins:
            return origins[key]
        within = [name for name in origins if is_within(name, key)]
        if within:
            return origins[within[-1]]
        key = key.rpartition(".")[0]
    return None


def _suggest(location: _Place, root: type[BaseModel]) -> str:
    """The nearest valid keys beside an unknown one."""
    section = _section_at(location[:-1], root)
    if section is None:
        return ""
    fields = section.model_fields
    return (
        nearest_name(str(location[-1]), fields) or f"; valid here: {', '.join(fields)}"
    )


def _section_at(location: _Place, root: type[BaseModel]) -> type[BaseModel] | None:
    """The section of the schema at a place, or None where a value stands."""
    section: type[BaseModel] | None = root
    parts = iter(location)
    for part in parts:
        if section is None or part not in section.model_fields:
            return None
        annotation = section.model_fields[str(part)].annotation
        section = section_of(annotation)
        if get_origin(annotation) is dict:
            next(parts, None)  # the user's own key
    return section
