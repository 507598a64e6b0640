"""YAML text to nodes and plain values: YAML 1.2, bounded, no tags of its own, no objects.

ruamel.yaml's own loader gives lines too, but bounds neither aliases nor depth, and has no bases.
"""

from __future__ import annotations

import re
import warnings
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from .errors import UserError, failing_as, show
from .leaves import Origin
from .reading import read_file

Pairs = dict[str, tuple[Node, Node]]
_MAX_BYTES = 1 << 16
_BRACKET = re.compile(rb"[\[\]{}]")
_MAX_DEPTH = 20
_MAX_BRACKETS = 5 * _MAX_DEPTH  # open at once: thousands take the reader seconds to refuse
_MAX_NODES = 2000  # keys and values, aliases written out; the whole schema has some 200


def compose_file(path: Path, within: Path | None = None) -> Node | None:
    """The root node of a YAML file; None: it is empty. `within`: the folder that it must lie in
    (`reading.open_file`). Raises UserError."""
    with failing_as(f"{path}: cannot read"):
        raw = read_file(path, _MAX_BYTES, within=within)
    if _brackets_open(raw) > _MAX_BRACKETS:
        raise UserError(f"{path}: at most {_MAX_DEPTH} levels expected, found more")
    try:
        root = _compose(raw.decode("utf-8-sig"))
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


def compose_value(text: str, where: Origin, key: str) -> Node | None:
    """The node of a value on the command line; None: empty. Raises UserError."""
    try:
        if _brackets_open(text.encode(errors="replace")) > _MAX_BRACKETS:
            raise RecursionError
        node = _compose(text)
    except (YAMLError, RecursionError, ValueError):
        raise UserError(f"{where}: {key}: {show(text)} is not valid YAML") from None
    if node is not None and _count(node, _MAX_NODES) > _MAX_NODES:
        raise UserError(f"{where}: {key}: at most {_MAX_NODES} values expected, found more")
    return node


@lru_cache(maxsize=256)
def _compose(text: str) -> Node | None:
    """Remembered: bases and machines are read again for each of the presets (half of the time)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an anchor used again: with lines of the file
        return YAML(typ="rt", pure=True).compose(text)


@cache
def _safe() -> YAML:
    """Made once: it looks for plug-ins in its package's folder, which every rank would do for each
    of 50 values (on a shared file system at the start of thousands)."""
    return YAML(typ="safe", pure=True)


def _brackets_open(raw: bytes) -> int:
    """How many brackets are open at once at most, those in texts and comments among them."""
    most = depth = 0
    for bracket in _BRACKET.findall(raw):
        depth = depth + 1 if bracket in b"[{" else max(0, depth - 1)
        most = max(most, depth)
    return most


def construct(node: Node, where: Origin, key: str, depth: int) -> Any:
    """Plain Python value of a YAML 1.2 core-schema node; tags and deep nesting are refused."""
    if isinstance(node, SequenceNode):
        _check_collection(node, where, key, depth)
        return [construct(item, where, key, depth + 1) for item in node.value]
    if isinstance(node, MappingNode):
        pairs = pairs_of(node, where, key, depth)
        return {name: construct(v, where, key, depth + 1) for name, (_, v) in pairs.items()}
    kind = str(node.tag).rpartition(":")[2]
    if kind not in ("str", "int", "float", "bool", "null"):
        raise UserError(
            f"{where}: {key}: text, number, true, false or null expected, found {node.tag}"
        )
    try:
        value = _safe().Constructor(loader=_safe()).construct_object(node)
    except (YAMLError, ValueError, OverflowError, LookupError):
        raise UserError(f"{where}: {key}: {kind} expected, found {show(node.value)}") from None
    if isinstance(value, int) and value.bit_length() > 63:
        raise UserError(f"{where}: {key}: below 2^63 expected, found {show(node.value)}")
    return value


def pairs_of(node: MappingNode, where: Origin, key: str, depth: int) -> Pairs:
    """The keys of a mapping, each with the nodes of key and value. Raises UserError: a key that is
    no text, or is there twice."""
    _check_collection(node, where, key, depth)
    prefix = f"{key}." if key else ""
    pairs: Pairs = {}
    for key_node, value_node in node.value:
        place = where if where.line is None else where._replace(line=line_of(key_node))
        if not isinstance(key_node, ScalarNode):
            raise UserError(f"{place}: a plain key expected")
        name = str(key_node.value)
        if name in pairs:
            raise UserError(
                f"{place}: {prefix}{name}: each key once expected, "
                f"found again (first on line {line_of(pairs[name][0])})"
            )
        pairs[name] = (key_node, value_node)
    return pairs


def _check_collection(node: Node, where: Origin, key: str, depth: int) -> None:
    """Refuse a list or mapping with a tag of its own, or too deep."""
    place = f"{where}: {key}" if key else f"{where}"
    if depth > _MAX_DEPTH:
        raise UserError(f"{place}: at most {_MAX_DEPTH} levels expected, found more")
    if str(node.tag) not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
        raise UserError(f"{place}: a plain list or mapping expected, found {node.tag}")


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


def kind_of(node: Node) -> str:
    """A node that is no mapping, in a message."""
    return "a list" if isinstance(node, SequenceNode) else f"{node.value!r}"


def line_of(node: Node) -> int:
    """The line (1-based) on which a node begins."""
    return int(node.start_mark.line) + 1
