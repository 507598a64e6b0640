"""A YAML file as layers of leaves: its bases first, then what it sets itself.

Directives, which are no keys of the config:

    base            at the root: a YAML file or a preset; in a section: a YAML file with its keys.
                    `system: NAME` and `system: {base: NAME}` also take a machine's name.
    relative_to     at the root: `working_folder` leaves the paths that the file holds relative to
                    the folder in which the command runs; without it they are relative to the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node

from .errors import UserError, show
from .leaves import Layer, Leaf, Origin, flatten
from .names import PRESETS, expand_home, find_base, find_file, find_system, resolve
from .schema import PLACES
from .yaml_nodes import (
    Pairs,
    compose_file,
    compose_value,
    construct,
    kind_of,
    line_of,
    pairs_of,
)

RELATIVE_TO, WORKING_FOLDER = "relative_to", "working_folder"
_SYSTEM = "system"
_COMMAND_LINE = Origin("command line")
# A sweep has keys of a config below its own.
_PLACE = re.compile(rf"(overrides\.|parameters\.)?({'|'.join(map(re.escape, PLACES))})(\.choice)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ -]*")
_MOST_FILES = 32  # a preset of a preset on a machine takes five
_MOST_KEYS = 4000  # of all files; each file may have some 1000, the whole schema has 200
_Find = Callable[[str, Path], Path]


class _Load:
    """What one load has read so far: files that are bases of each other twice over, level upon
    level, would go on for ever."""

    def __init__(self) -> None:
        self.files = self.keys = 0

    def add(self, path: Path, files: int, keys: int) -> None:
        self.files += files
        self.keys += keys
        if self.files > _MOST_FILES:
            raise UserError(f"{path}: at most {_MOST_FILES} bases in all expected, found more")
        if self.keys > _MOST_KEYS:
            raise UserError(
                f"{path}: at most {_MOST_KEYS} keys with all bases expected, found more"
            )


def read_layers(
    path: Path,
    section: str = "",
    chain: tuple[Path, ...] = (),
    load: _Load | None = None,
    within: Path | None = None,
) -> list[Layer]:
    """The layers of a YAML file, the lowest first.

    Raises UserError: unreadable, not YAML, or a base that is not there.

    Args:
        path: of the file.
        section: the section whose keys the file has; "": it has sections.
        chain: the files of which this one is a base, for circles.
        load: what has been read before as part of it.
        within: the folder of somebody else that the file must lie in; its bases are names of
            presets and machines, never files.
    """
    load = load or _Load()
    load.add(path, 1, 0)
    root = compose_file(path, within)
    if root is None:
        return []
    if not isinstance(root, MappingNode):
        raise UserError(f"{path}:1: a mapping of sections expected, found {kind_of(root)}")
    folder = path.parent if within is None else None
    return _Reader(path, section, (*chain, path.resolve()), load, folder).read(root)


def machine_layers(
    path: Path, chain: tuple[Path, ...] = (), load: _Load | None = None
) -> list[Layer]:
    """The layers of a machine's file, which takes the place of the machine in the layers below."""
    layers = read_layers(path, _SYSTEM, chain, load) or [Layer(())]
    first, *more = [layer._replace(of_machine=True) for layer in layers]
    return [first._replace(machine=True), *more]


def parse_overrides(overrides: Iterable[str]) -> list[Layer]:
    """The layers of the command line: a machine that it names, then its keys; the last counts.
    Raises UserError: no KEY.PATH=VALUE, bad YAML, or no such machine."""
    own: list[tuple[str, Leaf]] = []
    machine: list[Layer] = []
    for text in overrides:
        for key, leaf in _parse_override(text):
            if key in (_SYSTEM, f"{_SYSTEM}.base") and isinstance(leaf.value, str):
                where = f"{leaf.origin}: {key}"
                machine = machine_layers(_find(find_system, leaf.value, Path(), where))
            else:
                own.append((key, _placed(key, leaf, None)))
    return [*machine, Layer(tuple(own))]


def _parse_override(text: str) -> Iterable[tuple[str, Leaf]]:
    """The leaves that KEY.PATH=VALUE sets: several where the value is a mapping."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"{text!r}: an override KEY.PATH=VALUE expected, such as batch.per_rank=16")
    node = compose_value(value, _COMMAND_LINE, key)
    plain = None if node is None else construct(node, _COMMAND_LINE, key, 0)
    return [(path, Leaf(leaf, _COMMAND_LINE)) for path, leaf in flatten({key: plain})]


class _Reader:
    """Reads one file: where it is, what it is part of, and what it was found to hold."""

    def __init__(
        self, path: Path, section: str, chain: tuple[Path, ...], load: _Load, folder: Path | None
    ) -> None:
        self._path, self._section, self._chain, self._load = path, section, chain, load
        self._name = short(path)  # follows links: not for each key
        self._folder = folder
        """Where the files lie that it names; None: it may name none."""
        self._below: list[Layer] = []
        self._own: list[tuple[str, Leaf]] = []

    def read(self, root: MappingNode) -> list[Layer]:
        prefix = f"{self._section}." if self._section else ""
        pairs = pairs_of(root, Origin(str(self._path), line_of(root)), self._section, 0)
        folder = self._folder_of_paths(pairs.pop(RELATIVE_TO, None))
        self._walk(pairs, prefix, 0)
        self._load.add(self._path, 0, len(self._own))
        own = tuple((key, _placed(key, leaf, folder)) for key, leaf in self._own)
        return [*self._below, Layer(own)]

    def _folder_of_paths(self, pair: tuple[Node, Node] | None) -> Path | None:
        """What the file's paths are relative to; None: the working folder."""
        if pair is None:
            return self._path.parent
        where = Origin(str(self._path), line_of(pair[0]))
        value = construct(pair[1], where, RELATIVE_TO, 0)
        if value != WORKING_FOLDER:
            raise UserError(
                f"{where}: {RELATIVE_TO}: {WORKING_FOLDER} expected (without the key, paths are "
                f"relative to this file), found {show(value)}"
            )
        return None

    def _walk(self, pairs: Pairs, prefix: str, depth: int) -> None:
        if "base" in pairs:
            self._read_base(*pairs.pop("base"), prefix.rstrip("."))
        for key, (key_node, value_node) in pairs.items():
            dotted = f"{prefix}{key}"
            if isinstance(value_node, MappingNode) and value_node.value:
                where = Origin(str(self._path), line_of(value_node))
                below = pairs_of(value_node, where, dotted, depth + 1)
                self._walk(below, f"{dotted}.", depth + 1)
                continue
            origin = Origin(self._name, line_of(key_node))
            value = construct(value_node, origin, dotted, depth)
            if dotted == _SYSTEM and isinstance(value, str):
                machine = self._found(find_system, value, f"{origin}: {_SYSTEM}")
                self._below += machine_layers(machine, self._chain, self._load)
            else:
                self._own.append((dotted, Leaf(value, origin)))

    def _read_base(self, key_node: Node, value_node: Node, section: str) -> None:
        origin = Origin(str(self._path), line_of(key_node))
        value = construct(value_node, origin, "base", 0)
        if not isinstance(value, str) or not value:
            raise UserError(f"{origin}: base: a YAML file or a name expected, found {show(value)}")
        finders: dict[str, _Find] = {"": find_base, _SYSTEM: find_system}
        find = finders.get(section, find_file)
        base = self._found(find, value, f"{origin}: base")
        if section == _SYSTEM and self._section != _SYSTEM:
            self._below += machine_layers(base, self._chain, self._load)
        else:
            self._below += read_layers(base, section, self._chain, self._load)

    def _found(self, find: _Find, value: str, where: str) -> Path:
        if self._folder is None and (find is find_file or not _NAME.fullmatch(value)):
            raise UserError(
                f"{where}: the name of a preset or a machine expected in a folder that is read "
                f"(no file, which is not followed there), found {show(value)}"
            )
        found = _find(find, value, self._folder or PRESETS, where)
        if found.resolve() in self._chain:
            names = " -> ".join(link.name for link in (*self._chain, found))
            raise UserError(f"{where}: a chain without a circle expected, found {names}")
        return found


def _find(find: _Find, value: str, folder: Path, where: str) -> Path:
    try:
        return find(value, folder)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _placed(key: str, leaf: Leaf, folder: Path | None) -> Leaf:
    """A leaf whose paths, relative to `folder`, are as seen from the current one (None)."""
    if not _PLACE.fullmatch(key):
        return leaf
    if isinstance(leaf.value, list):
        return leaf._replace(value=[_seen_from_here(item, folder) for item in leaf.value])
    return leaf._replace(value=_seen_from_here(leaf.value, folder))


def _seen_from_here(value: Any, folder: Path | None) -> Any:
    if not isinstance(value, str) or not value:
        return value
    return expand_home(value) if folder is None else resolve(value, folder)


def short(path: Path) -> str:
    """The path as a person would type it: relative to the current folder where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
