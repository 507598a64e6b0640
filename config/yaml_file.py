"""A YAML file as layers of leaves: its bases first, then what it sets itself.

Directives, which are no keys of the config:

    base            at the root: a YAML file or a preset; in a section: a YAML file with its keys.
                    `system: NAME` and `system: {base: NAME}` also take a machine's name.
    relative_to     at the root: `working_folder` leaves the paths that the file holds relative to
                    the folder in which the command runs; without it they are relative to the file.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent

from .errors import UserError, failing_as, show
from .leaves import Layer, Leaf, Origin
from .names import PRESETS, expand_home, find_base, find_file, find_system, resolve
from .reading import read_file
from .schema import PLACES

RELATIVE_TO, WORKING_FOLDER = "relative_to", "working_folder"
_SYSTEM = "system"
_COMMAND_LINE = Origin("command line")
# A sweep has keys of a config below its own.
_PLACE = re.compile(rf"(overrides\.|parameters\.)?({'|'.join(map(re.escape, PLACES))})(\.choice)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_ -]*")
_MOST_BYTES = 1 << 16
_MOST_OPEN = 100  # brackets; the reader takes six seconds to refuse 2,000


class _Entry(NamedTuple):
    """A key that is no section, by its dotted path from the file's root, and its plain value."""

    key: str
    value: Any
    line: int


def read_layers(
    path: Path, section: str = "", chain: tuple[Path, ...] = (), within: Path | None = None
) -> list[Layer]:
    """The layers of a YAML file, the lowest first.

    Raises UserError: unreadable, not YAML, or a base that is not there.

    Args:
        path: of the file.
        section: the section whose keys the file has; "": it has sections.
        chain: the files of which this one is a base, for circles.
        within: the folder that a recorded file must lie in; its bases are names of
            presets and machines, never files.
    """
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
    file = _File(path, section, (*chain, path.resolve()), within is None)
    return file.layers(list(_entries(tree, path)))


def machine_layers(path: Path, chain: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of a machine's file, which takes the place of the machine in the layers below."""
    layers = read_layers(path, _SYSTEM, chain) or [Layer(())]
    first, *more = [layer._replace(of_machine=True) for layer in layers]
    return [first._replace(machine=True), *more]


def parse_overrides(overrides: Iterable[str]) -> list[Layer]:
    """The layers of the command line: a machine that it names, then its keys; the last counts.
    Raises UserError: no KEY.PATH=VALUE, bad YAML, or no such machine."""
    own: list[tuple[str, Leaf]] = []
    machine: list[Layer] = []
    for key, value, _ in (entry for text in overrides for entry in _override(text)):
        if key in (_SYSTEM, f"{_SYSTEM}.base") and isinstance(value, str):
            where = f"{_COMMAND_LINE}: {key}"
            machine = machine_layers(_find(find_system, value, Path(), where))
        else:
            own.append((key, Leaf(_placed(key, value, None), _COMMAND_LINE)))
    return [*machine, Layer(tuple(own))]


def short(path: Path) -> str:
    """The path as a person would type it: relative to the current folder where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


@dataclass(frozen=True)
class _File:
    """One file that is read: where it is, what it is part of, whether it may name other files."""

    path: Path
    section: str
    chain: tuple[Path, ...]
    may_name_files: bool

    def layers(self, entries: list[_Entry]) -> list[Layer]:
        """The layers of its bases, those of outer sections first, and its own."""
        bases = [entry for entry in entries if self._is_base(entry)]
        bases.sort(key=lambda entry: entry.key.count("."))
        below = [layer for entry in bases for layer in self._base_layers(entry)]
        folder = self._folder_of_paths(entries)
        name = short(self.path)
        prefix = f"{self.section}." if self.section else ""
        own = []
        for entry in entries:
            if entry not in bases and entry.key != RELATIVE_TO:
                key = prefix + entry.key
                own.append((key, Leaf(_placed(key, entry.value, folder), Origin(name, entry.line))))
        return [*below, Layer(tuple(own))]

    def _is_base(self, entry: _Entry) -> bool:
        names_machine = (self.section, entry.key) == ("", _SYSTEM) and isinstance(entry.value, str)
        return names_machine or entry.key.rpartition(".")[2] == "base"

    def _base_layers(self, entry: _Entry) -> list[Layer]:
        where = f"{self.path}:{entry.line}: {entry.key.rpartition('.')[2]}"
        value = entry.value
        if not isinstance(value, str) or not value:
            raise UserError(f"{where}: a YAML file or a name expected, found {show(value)}")
        below = entry.key if entry.key == _SYSTEM else entry.key.rpartition(".")[0]
        section = ".".join(filter(None, (self.section, below)))
        finders: dict[str, Callable[[str, Path], Path]] = {"": find_base, _SYSTEM: find_system}
        base = self._found(finders.get(section, find_file), value, where)
        if section == _SYSTEM and self.section != _SYSTEM:
            return machine_layers(base, self.chain)
        return read_layers(base, section, self.chain)

    def _found(self, find: Callable[[str, Path], Path], value: str, where: str) -> Path:
        if not self.may_name_files and (find is find_file or not _NAME.fullmatch(value)):
            raise UserError(
                f"{where}: the name of a preset or a machine expected in a folder that is read "
                f"(no file, which is not followed there), found {show(value)}"
            )
        found = _find(find, value, self.path.parent if self.may_name_files else PRESETS, where)
        if found.resolve() in self.chain:
            names = " -> ".join(link.name for link in (*self.chain, found))
            raise UserError(f"{where}: a chain without a circle expected, found {names}")
        return found

    def _folder_of_paths(self, entries: list[_Entry]) -> Path | None:
        """What the file's paths are relative to; None: the working folder."""
        entry = next((entry for entry in entries if entry.key == RELATIVE_TO), None)
        if entry is None:
            return self.path.parent
        if entry.value != WORKING_FOLDER:
            raise UserError(
                f"{self.path}:{entry.line}: {RELATIVE_TO}: {WORKING_FOLDER} expected (without the "
                f"key, paths are relative to this file), found {show(entry.value)}"
            )
        return None


class _Composer(Composer):
    """Refuses aliases: a few lines of them would stand for billions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.loader.parser.check_event(AliasEvent):
            mark = self.loader.parser.get_event().start_mark
            raise ComposerError(None, None, "a value written out expected, found an alias", mark)
        return super().compose_node(parent, index)


@lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """The tree of a YAML 1.2 text, with lines. Remembered: bases and machines are read again for
    each of the presets. Raises YAMLError."""
    opened = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        opened = opened + 1 if bracket in "[{" else max(0, opened - 1)
        if opened > _MOST_OPEN:
            raise YAMLError("too many levels")
    yaml = YAML(typ="rt", pure=True)
    yaml.Composer = _Composer
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an anchor used again: with lines of the file
            return yaml.load(text)
    except (ValueError, RecursionError, OverflowError, LookupError) as error:
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


def _find(find: Callable[[str, Path], Path], value: str, folder: Path, where: str) -> Path:
    try:
        return find(value, folder)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _placed(key: str, value: Any, folder: Path | None) -> Any:
    """A value whose paths are relative to `folder` (None: the current one), as seen from here."""
    if not _PLACE.fullmatch(key):
        return value
    if isinstance(value, list):
        return [_placed(key, item, folder) for item in value]
    if not isinstance(value, str) or not value:
        return value
    return expand_home(value) if folder is None else resolve(value, folder)
