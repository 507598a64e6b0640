"""YAML to a frozen `Run`: base chains, overrides, the origin of every leaf, all errors at once."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from .errors import UserError
from .schema import Run, System

PRESETS = Path(__file__).resolve().parent
SYSTEM_ALIASES = {
    "v100": "dgx1",
    "a100": "dgxa100",
    "h100": "dgxh100",
    "hgxa100": "dgxa100",
    "hgxh100": "dgxh100",
    "selene": "dgxa100",
    "eos": "dgxh100",
    "a100pcie80gb": "a100_pcie",
    "dgxa10080gb": "dgxa100",
    "alibaba": "alibaba_v100",
}
_MAX_BYTES = 1 << 16
_MAX_DEPTH = 20
_MAX_NODES = 2000  # keys and values, aliases written out; the whole schema has some 200
# What pydantic says in its own terms, by the type of the error.
_PLAIN = {
    "missing": "one value more",
    "too_long": "fewer values",
    "model_type": "a section (keys and values)",
    "tuple_type": "a list",
    "string_pattern_mismatch": "letters, digits, dots, dashes (the first a letter or digit)",
}


class Origin(NamedTuple):
    """Where a value was written: a file and line (1-based), the command line, or the default."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Leaf(NamedTuple):
    value: Any
    origin: Origin


@dataclass(frozen=True)
class Loaded:
    """A validated config and where each of its leaves came from (dotted path -> Origin)."""

    run: Run
    origins: Mapping[str, Origin]

    def to_dict(self) -> dict[str, Any]:
        """The resolved tree as plain JSON types; durations as text."""
        return self.run.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved tree as YAML text that `load` reads back."""
        tree = self.to_dict()
        tree["system"] = _system_tree(self.run.system)
        return _yaml_text(tree)

    @property
    def sha256(self) -> str:
        """Digest of the resolved tree, independent of how it was written."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def leaves(self) -> Iterator[tuple[str, Any, Origin]]:
        """Each leaf as (dotted path, value, origin), in schema order."""
        for path, value in flatten(self.to_dict()):
            yield path, value, self._origin(path)

    def _origin(self, path: str) -> Origin:
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path.rpartition(".")[0]
        return Origin("default")


def load(config: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read a preset name or YAML path, apply `key.path=value` overrides, validate.

    `system=NAME` among the overrides puts the machine of that name in the place of the config's.

    Raises:
        UserError: unreadable file, bad YAML, or bad values: every problem, one line each.
    """
    path = find_config(config)
    leaves = read_tree(path)
    for text in overrides:
        if text.startswith("system=") and re.fullmatch(r"system=[\w. -]+", text):
            leaves = {
                key: leaf for key, leaf in leaves.items() if key.partition(".")[0] != "system"
            }
            leaves |= _system_leaves(text.removeprefix("system="), None, "system")
            continue
        for key, leaf in _parse_override(text):
            _put(leaves, key, leaf)
    tree: dict[str, Any] = {}
    for key, leaf in leaves.items():
        nest(tree, key, leaf.value)
    try:
        run = Run.model_validate(tree)
    except ValidationError as error:
        raise UserError("\n".join(explain(error, leaves, str(path)))) from None
    return Loaded(run, {key: leaf.origin for key, leaf in leaves.items()})


def find_config(config: str | Path) -> Path:
    """The file a CONFIG argument means: a path, or the bare name of a preset."""
    path = Path(config)
    preset = PRESETS / f"{config}.yaml"
    try:
        if path.is_file():
            return path
        if preset.parent == PRESETS and preset.is_file():
            return preset
        kind = "is a folder" if path.is_dir() else "no such file"
    except OSError as error:
        raise UserError(f"{config}: cannot read: {error.strerror}") from None
    near = difflib.get_close_matches(path.stem, list_presets(), n=1)
    hint = f'; did you mean "{near[0]}"?' if near else "; `rn50 config list` shows the presets"
    raise UserError(f"{config}: {kind}, and no preset of that name{hint}")


def load_system(name: str, ruleset: str | None = None) -> System:
    """A machine by its name in `config/system/` (case and dashes do not matter) or YAML path.

    `ruleset` takes the file with the software of that round, where there is one (NAME_v07.yaml).

    Raises:
        UserError: no such machine (the message lists them), or bad values.
    """
    leaves = _system_leaves(name, ruleset, "--system")
    tree: dict[str, Any] = {}
    for key, leaf in leaves.items():
        nest(tree, key, leaf.value)
    try:
        return Run.model_validate(tree).system
    except ValidationError as error:
        raise UserError("\n".join(explain(error, leaves, name))) from None


def _system_leaves(name: str, ruleset: str | None, asked_by: str) -> dict[str, Leaf]:
    """`system.KEY` -> Leaf of a machine's file."""
    systems = {path.stem: path for path in sorted((PRESETS / "system").glob("*.yaml"))}
    wanted = re.sub(r"[ ._-]", "", name.lower())
    known = {stem.replace("_", ""): path for stem, path in systems.items()}
    known.update({alias: systems[stem] for alias, stem in SYSTEM_ALIASES.items()})
    dated = f"{wanted}v{(ruleset or '')[:3].replace('.', '')}"
    path = known.get(dated) or known.get(wanted, Path(name))
    try:
        found = path.is_file()
    except OSError:  # such as a name too long
        found = False
    if not found:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f'; did you mean "{known[near[0]].stem}"?' if near else ""
        raise UserError(
            f"{asked_by}: a YAML file or one of {', '.join(systems)} expected, "
            f"found {_show(name)}{hint}"
        )
    return {f"system.{key}": leaf for key, leaf in read_tree(path).items()}


def system_yaml(system: System) -> str:
    """A machine with its performance as YAML text that `load_system` reads back."""
    return _yaml_text(_system_tree(system))


def list_presets() -> list[str]:
    """Names of the presets beside this module, `quick` first."""
    names = [path.stem for path in PRESETS.glob("*.yaml")]
    return sorted(names, key=lambda name: (name != "quick", name))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a nested mapping as (dotted path, value)."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def _system_tree(system: System) -> dict[str, Any]:
    """A machine as plain JSON types, its performance and what is said of jobs among them."""
    tree = system.model_dump(mode="json")
    if job := system.job.model_dump(mode="json", exclude_defaults=True):
        tree["job"] = job
    if system.performance is not None:
        tree["performance"] = system.performance.model_dump(mode="json", exclude_none=True)
    return tree


def _yaml_text(tree: Mapping[str, Any]) -> str:
    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(tree, out)
    return out.getvalue()


def read_tree(path: Path, chain: tuple[Path, ...] = ()) -> dict[str, Leaf]:
    """Leaves of one YAML file over those of its bases, as dotted path -> Leaf."""
    root = _compose(path)
    leaves: dict[str, Leaf] = {}
    if root is not None:
        if not isinstance(root, MappingNode):
            raise UserError(f"{path}:1: a mapping of sections expected, found {_kind(root)}")
        _walk(root, "", leaves, path, (*chain, path.resolve()), 0)
    return leaves


def _compose(path: Path) -> Node | None:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}") from None
    if len(raw) > _MAX_BYTES:
        raise UserError(f"{path}: at most {_MAX_BYTES} bytes expected, found {len(raw)}")
    try:
        root = YAML(typ="rt", pure=True).compose(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: UTF-8 text expected, found byte {error.start} bad") from None
    except (YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}: not valid YAML: {problem}") from None
    if root is not None and _count(root, _MAX_NODES) > _MAX_NODES:
        raise UserError(f"{path}: at most {_MAX_NODES} keys and values expected, found more")
    return root


def _count(node: Node, limit: int) -> int:
    """Nodes of a tree with its aliases written out; stops soon after `limit`."""
    counted = 0
    waiting = [node]
    while waiting and counted <= limit:
        counted += 1
        below = waiting.pop().value
        if isinstance(below, list):
            for item in below:
                waiting.extend(item if isinstance(item, tuple) else (item,))
    return counted


def _walk(
    node: MappingNode,
    prefix: str,
    leaves: dict[str, Leaf],
    path: Path,
    chain: tuple[Path, ...],
    depth: int,
) -> None:
    _check_collection(node, Origin(str(path), _line(node)), prefix.rstrip("."), depth)
    pairs: dict[str, tuple[Node, Node]] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, ScalarNode):
            raise UserError(f"{path}:{_line(key_node)}: a plain key expected")
        key = str(key_node.value)
        if key in pairs:
            first = _line(pairs[key][0])
            raise UserError(
                f"{path}:{_line(key_node)}: {prefix}{key}: each key once expected, "
                f"found again (first on line {first})"
            )
        pairs[key] = (key_node, value_node)
    if "base" in pairs:
        for key, leaf in _read_base(*pairs.pop("base"), path, chain).items():
            _put(leaves, f"{prefix}{key}", leaf)
    for key, (key_node, value_node) in pairs.items():
        dotted = f"{prefix}{key}"
        if isinstance(value_node, MappingNode) and value_node.value:
            _walk(value_node, f"{dotted}.", leaves, path, chain, depth + 1)
        else:
            origin = Origin(_short(path), _line(key_node))
            _put(leaves, dotted, Leaf(_construct(value_node, origin, dotted, depth), origin))


def _read_base(
    key_node: Node, value_node: Node, path: Path, chain: tuple[Path, ...]
) -> dict[str, Leaf]:
    where = Origin(str(path), _line(key_node))
    value = _construct(value_node, where, "base", 0)
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: base: a relative YAML path expected, found {_show(value)}")
    base = path.parent / value
    try:
        found = base.is_file()
    except OSError:  # such as a name too long
        found = False
    if Path(value).is_absolute() or not found:
        raise UserError(
            f"{where}: base: a YAML file relative to this one expected, found {_show(value)}"
        )
    if base.resolve() in chain:
        names = " -> ".join(link.name for link in (*chain, base))
        raise UserError(f"{where}: base: a chain without a circle expected, found {names}")
    return read_tree(base, chain)


def _construct(node: Node, where: Origin, key: str, depth: int) -> Any:
    """Plain Python value of a YAML 1.2 core-schema node; tags and deep nesting are refused."""
    if not isinstance(node, ScalarNode):
        _check_collection(node, where, key, depth)
        if isinstance(node, SequenceNode):
            return [_construct(item, where, key, depth + 1) for item in node.value]
        return {str(k.value): _construct(v, where, key, depth + 1) for k, v in node.value}
    kind = str(node.tag).rpartition(":")[2]
    if kind not in ("str", "int", "float", "bool", "null"):
        raise UserError(
            f"{where}: {key}: text, number, true, false or null expected, found {node.tag}"
        )
    try:
        value = YAML(typ="safe", pure=True).constructor.construct_object(node)
    except (YAMLError, ValueError, OverflowError, LookupError):
        raise UserError(f"{where}: {key}: {kind} expected, found {_show(node.value)}") from None
    if isinstance(value, int) and value.bit_length() > 63:
        raise UserError(f"{where}: {key}: below 2^63 expected, found {_show(node.value)}")
    return value


def _check_collection(node: Node, where: Origin, key: str, depth: int) -> None:
    """Refuse a list or mapping with a tag of its own, or too deep."""
    place = f"{where}: {key}" if key else f"{where}"
    if depth > _MAX_DEPTH:
        raise UserError(f"{place}: at most {_MAX_DEPTH} levels expected, found more")
    if str(node.tag) not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        raise UserError(f"{place}: a plain list or mapping expected, found {node.tag}")


def _parse_override(text: str) -> Iterable[tuple[str, Leaf]]:
    """The leaves that KEY.PATH=VALUE sets: several where the value is a mapping."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"{text!r}: an override KEY.PATH=VALUE expected, such as batch.per_rank=16")
    where = Origin("command line")
    try:
        node = YAML(typ="rt", pure=True).compose(value)
    except (YAMLError, RecursionError, ValueError):
        raise UserError(f"{where}: {key}: {_show(value)} is not valid YAML") from None
    if node is not None and _count(node, _MAX_NODES) > _MAX_NODES:
        raise UserError(f"{where}: {key}: at most {_MAX_NODES} values expected, found more")
    plain = None if node is None else _construct(node, where, key, 0)
    return [(path, Leaf(leaf, where)) for path, leaf in flatten({key: plain})]


def _put(leaves: dict[str, Leaf], key: str, leaf: Leaf) -> None:
    """Set one leaf; a section it replaces goes, and so does a scalar above it.

    An empty mapping changes nothing in a section that is there.
    """
    if leaf.value == {} and any(other.startswith(f"{key}.") for other in leaves):
        return
    for other in list(leaves):
        if other.startswith(f"{key}.") or key.startswith(f"{other}."):
            del leaves[other]
    leaves.pop(key, None)
    leaves[key] = leaf


def nest(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the leaf at a dotted path of a nested dict."""
    *parents, last = key.split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
    tree[last] = value


def explain(
    error: ValidationError,
    leaves: Mapping[str, Leaf],
    config: str,
    root: type[BaseModel] = Run,
) -> Iterable[str]:
    """One line per problem of a tree of `root`: file:line: key: expected ..., found ..."""
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"] if not isinstance(part, int))
        origin = _nearest_origin(key, leaves) or Origin(config)
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            yield f"{origin}: {key}: unknown key{_suggest(problem['loc'], root)}"
        elif problem["type"] == "value_error" and _section_at(problem["loc"], root) is not None:
            yield f"{origin}: {key}.{message}" if key else f"{origin}: {message}"
        elif problem["type"] == "value_error":
            yield f"{origin}: {key}: expected {message}, found {_show(problem['input'])}"
        else:
            expected = _PLAIN.get(problem["type"]) or message.removeprefix("Input should be ")
            yield f"{origin}: {key}: expected {expected}, found {_show(problem['input'])}"


def _nearest_origin(key: str, leaves: Mapping[str, Leaf]) -> Origin | None:
    probe = key
    while probe:
        if probe in leaves:
            return leaves[probe].origin
        below = [leaf.origin for other, leaf in leaves.items() if other.startswith(f"{probe}.")]
        if below:
            return below[-1]
        probe = probe.rpartition(".")[0]
    return None


def _suggest(loc: tuple[int | str, ...], root: type[BaseModel]) -> str:
    """The nearest valid keys beside an unknown one."""
    section = _section_at(loc[:-1], root)
    if section is None:
        return ""
    fields = section.model_fields
    near = difflib.get_close_matches(str(loc[-1]), fields, n=1)
    return f"; did you mean {near[0]}?" if near else f"; valid here: {', '.join(fields)}"


def _section_at(loc: tuple[int | str, ...], root: type[BaseModel]) -> type[BaseModel] | None:
    """The section of the schema at a place, or None where a value stands."""
    section: type[BaseModel] | None = root
    parts = iter(loc)
    for part in parts:
        if section is None or part not in section.model_fields:
            return None
        field = section.model_fields[str(part)]
        section = _section_of(field)
        if get_origin(field.annotation) is dict:
            next(parts, None)  # the user's own key
    return section


def _section_of(field: FieldInfo) -> type[BaseModel] | None:
    kinds = getattr(field.annotation, "__args__", (field.annotation,))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kind(node: Node) -> str:
    return "a list" if isinstance(node, SequenceNode) else f"{node.value!r}"


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _short(path: Path) -> str:
    """The path as a person would type it: relative to the current folder where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
