"""A YAML file as layers of leaves: its bases first, then what it sets itself.

`base` at a file's root is no key of the config: it names a YAML file or a preset, in a machine's
file a YAML file or a machine. `system: NAME` and `system: {base: NAME}` take a machine's name too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import YAMLError

from .errors import UserError, failing_as, show
from .layout import note_network
from .leaves import Layer, Leaf, Origin, put
from .names import PRESETS, find_config, find_system
from .reading import read_file
from .schema import PLACES

_MACHINE = ("system", "system.base")
_COMMAND_LINE = Origin("command line")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ -]*")
_MOST_BYTES = 1 << 16


class _Entry(NamedTuple):
    """A key that is no section, by its dotted path from the file's root, and its plain value."""

    key: str
    value: Any
    line: int


def read_layers(
    path: Path, chain: tuple[Path, ...] = (), *, machine: bool = False, within: Path | None = None
) -> list[Layer]:
    """The layers of a YAML file, the lowest first.

    Raises UserError: unreadable, not YAML, or a base that is not there.

    Args:
        path: of the file.
        chain: the files of which this one is a base, for circles.
        machine: whether the file is a machine's, with the keys of `system`.
        within: the folder that a recorded file must lie in; its bases are names of
            presets and machines, never files.
    """
    entries = _read(path, within)
    chain = (*chain, path.resolve())
    bases = [entry for entry in entries if entry.key == "base"]
    if not machine:
        bases += [e for e in entries if e.key in _MACHINE and isinstance(e.value, str)]
    layers: list[Layer] = []
    for entry in bases:
        found = _base(entry, path, chain, machine, within)
        if entry.key == "base":
            layers += read_layers(found, chain, machine=machine)
        else:
            layers.append(machine_layer(found, chain))
    prefix = "system." if machine else ""
    own = []
    for entry in entries:
        if entry not in bases:
            own.append(_set(prefix + entry.key, entry.value, Origin(short(path), entry.line)))
    return [*layers, Layer(tuple(own))]


def machine_layer(path: Path, chain: tuple[Path, ...] = ()) -> Layer:
    """The layer of a machine's file and its bases."""
    leaves: dict[str, Leaf] = {}
    for layer in read_layers(path, chain, machine=True):
        for key, leaf in layer.leaves:
            put(leaves, key, leaf)
        note_network(leaves, layer)
    return Layer(tuple(leaves.items()), is_machine=True)


def parse_overrides(overrides: Iterable[str]) -> list[Layer]:
    """The layers of the command line: a machine that it names, then its keys; the last counts.
    Raises UserError: no KEY.PATH=VALUE, bad YAML, or no such machine."""
    own: list[tuple[str, Leaf]] = []
    machine: list[Layer] = []
    for key, value, _ in (entry for text in overrides for entry in _override(text)):
        if key in _MACHINE and isinstance(value, str):
            machine = [machine_layer(find_system(value))]
        else:
            own.append(_set(key, value, _COMMAND_LINE))
    return [*machine, Layer(tuple(own))]


def short(path: Path) -> str:
    """The path as a person would type it: relative to the current folder where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _read(path: Path, within: Path | None) -> list[_Entry]:
    """What a file sets, in the order in which it is written."""
    with failing_as(f"{path}: cannot read"):
        raw = read_file(path, _MOST_BYTES, within=within)
    try:
        tree = _parse(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: UTF-8 text expected, found byte {error.start} bad") from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = path if mark is None else f"{path}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or error
        raise UserError(f"{where}: not valid YAML: {problem}") from None
    if tree is None:
        return []
    if not _is_plain_map(tree):
        found = show(_plain(tree, f"{path}:1"))
        raise UserError(f"{path}:1: a mapping of sections expected, found {found}")
    return list(_entries(tree, path))


def _base(
    entry: _Entry, path: Path, chain: tuple[Path, ...], machine: bool, within: Path | None
) -> Path:
    """The file that a base names. Raises UserError: none, or one that has this file as a base."""
    where = f"{path}:{entry.line}: {entry.key}"
    value = entry.value
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: a YAML file or a name expected, found {show(value)}")
    if within is not None and not _NAME.fullmatch(value):
        raise UserError(
            f"{where}: the name of a preset or a machine expected in a folder that is read "
            f"(no file, which is not followed there), found {show(value)}"
        )
    find = find_system if machine or entry.key in _MACHINE else find_config
    try:
        found = find(value, path.parent if within is None else PRESETS)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if found.resolve() in chain:
        names = " -> ".join(link.name for link in (*chain, found))
        raise UserError(f"{where}: a chain without a circle expected, found {names}")
    return found


class _Composer(Composer):
    """Refuses anchors and aliases: a few lines of them would stand for billions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.loader.parser.peek_event()
        if getattr(event, "anchor", None) is not None:
            problem = "a value written out expected, found an anchor or an alias"
            raise ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """The tree of a YAML 1.2 text, with lines. Remembered: bases and machines are read again for
    each of the presets. Raises YAMLError."""
    yaml = YAML(typ="rt", pure=True)
    yaml.Composer = _Composer
    try:
        return yaml.load(text)
    except RecursionError:
        raise YAMLError("too many levels") from None
    except (ValueError, OverflowError, LookupError) as error:
        raise YAMLError(str(error).partition("\n")[0]) from None


def _override(text: str) -> list[_Entry]:
    """What KEY.PATH=VALUE sets: several keys where the value is a mapping."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(f"{text!r}: an override KEY.PATH=VALUE expected, such as batch.per_rank=16")
    try:
        tree = _parse(value)
    except YAMLError:
        raise UserError(f"{_COMMAND_LINE}: {key}: {show(value)} is not valid YAML") from None
    if _is_plain_map(tree) and tree:
        return list(_entries(tree, None, f"{key}."))
    return [_Entry(key, _plain(tree, f"{_COMMAND_LINE}: {key}"), 0)]


def _entries(section: CommentedMap, path: Path | None, prefix: str = "") -> Iterator[_Entry]:
    """What a mapping and the mappings in it set, in the order in which it is written. `path`: of
    the file; None: the command line."""
    for key, value in section.items():
        line = section.lc.data[key][0] + 1
        name = f"{prefix}{key}"
        if _is_plain_map(value) and value:
            yield from _entries(value, path, f"{name}.")
        else:
            place = f"{path}:{line}" if path else _COMMAND_LINE
            yield _Entry(name, _plain(value, f"{place}: {name}"), line)


def _is_plain_map(value: Any) -> bool:
    return type(value) is CommentedMap and value.tag.value is None


def _plain(value: Any, place: str) -> Any:
    """A value without the parser's types. Raises UserError: a tag of its own, or a date."""
    if _is_plain_map(value):
        return {str(key): _plain(item, place) for key, item in value.items()}
    if type(value) is CommentedSeq and value.tag.value is None:
        return [_plain(item, place) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            plain = kind(value)
            if isinstance(plain, int) and plain.bit_length() > 63:  # has too many digits to print
                raise UserError(f"{place}: below 2^63 expected, found {hex(plain)[:20]}...")
            return plain
    found = getattr(getattr(value, "tag", None), "value", None) or type(value).__name__
    raise UserError(f"{place}: a plain list, mapping, text or number expected, found {found}")


def _set(key: str, value: Any, origin: Origin) -> tuple[str, Leaf]:
    """A leaf; in a path that begins with `~/`, which a shell leaves after `key=`, the home."""
    if key in PLACES and isinstance(value, str) and value.startswith("~/"):
        value = str(Path.home() / value[2:])
    return key, Leaf(value, origin)
