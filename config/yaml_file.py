"""A YAML file as layers of leaves: its bases first, then what it sets itself.

`base` at a file's root is no key of the config: it names a YAML file or a preset, in a machine's
file a YAML file or a machine. `system: NAME` and `system: {base: NAME}` take a machine's name too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode

from ..host.errors import COMMAND_LINE, Problem, UserError, failing_as, show
from ..host.reading import read_file
from .layout import put_layer
from .leaves import Layer, Leaf, Leaves, Origin
from .names import find_config, find_system
from .schema import PLACES

_MOST_BYTES = 1 << 16
_MOST_CHARACTERS = 1000


class _Entry(NamedTuple):
    """A key that is no section, by its dotted path from the file's root, and its plain value."""

    key: str
    value: Any
    line: int

    @property
    def names_machine(self) -> bool:
        """Is it `system: NAME` or `system: {base: NAME}`?"""
        return self.key in ("system", "system.base") and isinstance(self.value, str)

    def setting(self, origin: Origin, prefix: str = "") -> tuple[str, Leaf]:
        """Its leaf; in a path variables that are set have their values, and `~/`, which a shell
        leaves after `key=`, is the home."""
        key = prefix + self.key
        value = self.value
        if key in PLACES and isinstance(value, str):
            value = os.path.expandvars(value)
            if value.startswith("~/"):
                value = str(Path.home() / value[2:])
        return key, Leaf(value, origin)


def read_layers(
    path: Path,
    chain: tuple[Path, ...] = (),
    *,
    machine: bool = False,
    within: Path | None = None,
) -> list[Layer]:
    """The layers of a YAML file, the lowest first.

    Args:
        path: the file.
        chain: the files of which it is a base.
        machine: whether it has the keys of `system`.
        within: the folder that a recorded file must lie in, which has no bases; None: any.

    Raises:
        UserError: unreadable, not YAML, or a base that is not there.
    """
    entries = _read(path, within)
    chain = (*chain, path.resolve())
    bases = [entry for entry in entries if entry.key == "base"]
    if not machine:
        bases += [entry for entry in entries if entry.names_machine]
    if bases and within is not None:
        raise UserError(
            f"{path}:{bases[0].line}: {bases[0].key}: none in a recorded config expected"
        )
    layers = []
    for entry in bases:
        base = _base(entry, path, chain, machine)
        if entry.key == "base":
            layers += read_layers(base, chain, machine=machine)
        else:
            layers.append(machine_layer(base, chain))
    prefix = "system." if machine else ""
    name = short(path)
    settings = [
        entry.setting(Origin(name, entry.line), prefix)
        for entry in entries
        if entry not in bases
    ]
    return [*layers, Layer(settings)]


def machine_layer(path: Path, chain: tuple[Path, ...] = ()) -> Layer:
    """The layer of a machine's file and its bases."""
    leaves: Leaves = {}
    for layer in read_layers(path, chain, machine=True):
        put_layer(leaves, layer)
    return Layer(leaves.items(), is_machine=True)


def parse_overrides(overrides: Iterable[str]) -> list[Layer]:
    """The layers of the command line: a machine that it names, then its keys; the last counts.
    Raises UserError: no KEY.PATH=VALUE, bad YAML, or no such machine."""
    settings = []
    machine = []
    # the machine's layer is the lower one, wherever it stands among the words
    for override in overrides:
        for entry in _override(override):
            if entry.names_machine:
                machine = [machine_layer(find_system(entry.value))]
            else:
                settings.append(entry.setting(Origin(COMMAND_LINE)))
    return [*machine, Layer(settings)]


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
        node, tree = _parse(raw)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = str(path)
        if mark is not None:
            where += f":{mark.line + 1}"
        raise UserError(f"{where}: {_problem(error)}") from None
    if tree is None:
        raise UserError(f"{path}: settings expected, found none")
    if type(tree) is not dict:
        kind = "a list" if isinstance(tree, list) else "a single value"
        raise UserError(f"{path}:1: a mapping of sections expected, found {kind}")
    return list(_entries(node, tree))


def _base(entry: _Entry, path: Path, chain: tuple[Path, ...], machine: bool) -> Path:
    """The file that a base names. Raises UserError: none, or one that has this file as a base."""
    where = f"{path}:{entry.line}: {entry.key}"
    value = entry.value
    if not isinstance(value, str) or not value:
        raise UserError(f"{where}: a YAML file or a name expected, found {show(value)}")
    find = find_system if machine or entry.names_machine else find_config
    try:
        base = find(value, path.parent)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if base.resolve() in chain:
        names = " -> ".join(link.name for link in (*chain, base))
        raise UserError(f"{where}: a chain without a circle expected, found {names}")
    return base


class _Composer(Composer):
    """Refuses anchors and aliases, a few lines of which would stand for billions of values, and
    numbers with too many digits to print."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuses a long value and an anchor, before the node is made."""
        event = self.loader.parser.peek_event()
        # an alias is an event with the anchor that it means
        long = len(getattr(event, "value", None) or "") > _MOST_CHARACTERS
        if long or getattr(event, "anchor", None) is not None:
            problem = f"a value of at most {_MOST_CHARACTERS} characters, and no alias, expected"
            raise ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


class _Constructor(SafeConstructor):
    def flatten_mapping(self, node: Any) -> None:
        """Leaves a merge key (`<<`) where it is, which has no constructor and is refused."""

    def check_mapping_key(
        self, node: Any, key_node: Any, mapping: Any, key: Any, _: Any
    ) -> bool:
        """Refuses a key that is there twice."""
        if key in mapping:
            first = next(
                earlier for earlier, _ in node.value if earlier.value == key_node.value
            )
            problem = (
                f'"{key}" once expected, found in line {first.start_mark.line + 1} too'
            )
            raise ComposerError(None, None, problem, key_node.start_mark)
        return True


@lru_cache(maxsize=256)
def _parse(content: str | bytes) -> tuple[Any, Any]:
    """The tree of a YAML 1.2 text as nodes, which have lines, and as plain values. Remembered:
    bases and machines are read again for each of the presets. Raises YAMLError."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    yaml.Constructor = _Constructor
    try:
        if isinstance(content, bytes):
            # without the byte-order mark that editors of Windows put in front
            content = content.decode("utf-8-sig")
        node = yaml.compose(content)
        if node is None:
            return None, None
        return node, yaml.constructor.construct_document(node)
    except RecursionError:
        raise YAMLError("too many levels") from None
    except UnicodeDecodeError as error:
        raise YAMLError(_encoding_of(error)) from None
    except (ValueError, OverflowError, LookupError) as error:
        raise YAMLError(str(error).partition("\n")[0]) from None


def _encoding_of(error: UnicodeDecodeError) -> str:
    """What there is in the place of UTF-8."""
    content = error.object
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "UTF-16"
    else:
        line = content.count(b"\n", 0, error.start) + 1
        encoding = f"byte {content[error.start]:#x} in line {line}"
    return f"UTF-8 expected, found {encoding}; `iconv -t UTF-8 -f` its encoding"


def _problem(error: YAMLError) -> str:
    """What is wrong, within what that began where."""
    problem = getattr(error, "problem", None) or error
    if isinstance(error, MarkedYAMLError) and error.context_mark is not None:
        problem = f"{error.context} in line {error.context_mark.line + 1}, {problem}"
    return f"not valid YAML: {problem}"


def _override(override: str) -> list[_Entry]:
    """What KEY.PATH=VALUE sets: several keys where the value is a mapping."""
    key, equals, value = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UserError(
            f"{override!r}: an override KEY.PATH=VALUE expected, such as batch.per_rank=16"
        )
    if key in PLACES and not value.isprintable():  # YAML makes a blank of a newline
        return [_Entry(key, value, 0)]
    try:
        node, tree = _parse(value)
    except YAMLError as error:
        problem = f"{key}: {show(value)}: {_problem(error)}"
        raise UserError(Problem(COMMAND_LINE, problem)) from None
    if type(tree) is dict and tree:
        return list(_entries(node, tree, f"{key}."))
    return [_Entry(key, tree, 0)]


def _entries(
    node: MappingNode, section: dict[Any, Any], prefix: str = ""
) -> Iterator[_Entry]:
    """What a mapping and the mappings in it set, in the order in which it is written."""
    # the same keys twice: the nodes have lines, the plain tree has values
    pairs = zip(section.items(), node.value, strict=True)
    for (key, value), (key_node, value_node) in pairs:
        name = f"{prefix}{key}"
        if type(value) is dict and value:
            yield from _entries(value_node, value, f"{name}.")
        else:
            yield _Entry(name, value, key_node.start_mark.line + 1)
