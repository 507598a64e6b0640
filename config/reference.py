"""Every key of a config: meaning, unit, values, default, and the presets that set it.

All from the schema's own descriptions and types, and from the presets themselves: what
`rn50 config explain` prints and docs/config.md holds.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from .choices import OneOf
from .errors import UserError, show
from .finding import plain
from .leaves import is_within
from .load import merge
from .names import PRESETS, list_presets
from .schema import Run
from .values import Form, Section, section_of
from .yaml_file import read_layers

BEGIN, END = "<!-- keys: begin -->", "<!-- keys: end -->"
_UNITS = {  # by the end of a key's name, the longest first
    "_bytes_per_s": "bytes per second",
    "_flops_per_s": "operations per second",
    "_images_per_s": "images per second",
    "_px": "pixels",
    "_ms": "milliseconds",
    "_s": "seconds",
}
_BOUNDS = {Ge: "{} or more", Gt: "above {}", Le: "at most {}", Lt: "below {}"}


class Key(NamedTuple):
    """One key, or a section of keys. `path`: dotted; `[]` stands for each entry of a list of
    sections. `values` and `default`: empty for a section, but for one that can be null."""

    path: str
    meaning: str
    unit: str
    values: str
    default: str
    is_section: bool = False


@lru_cache(maxsize=1)
def all_keys() -> dict[str, Key]:
    """Every key and section by its path, in the schema's order."""
    return {key.path: key for key in _keys_of(Run, "")}


@lru_cache(maxsize=1)
def recipes() -> dict[str, dict[str, tuple[str, ...]]]:
    """Per key: each value that presets give it, as YAML, and their names. Left out: their own
    names, what all have from `base`, and how fast their machines are."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for name in sorted(list_presets()):
        for path, (value, origin) in merge(read_layers(PRESETS / f"{name}.yaml")).items():
            is_shared = name != "base" and Path(origin.source).name == "base.yaml"
            if not is_shared and path != "name" and not is_within(path, "system.performance"):
                names, text = found.setdefault(path, {}), _as_yaml(value)
                names[text] = (*names.get(text, ()), name)
    return found


def find_keys(word: str) -> list[Key]:
    """The keys that a word means: a key, a section with its keys, a key's last name, or a prefix.
    Raises UserError: none; names the nearest."""
    keys = all_keys()
    plain_paths = {path.replace("[]", ""): path for path in keys}
    wanted = word.strip().rstrip(".").replace("[]", "")
    exact = plain_paths.get(wanted)
    if exact is not None:
        return [key for key in keys.values() if is_within(key.path.replace("[]", ""), wanted)]
    last = [path for path in keys if path.rpartition(".")[2] == wanted]
    begun = [path for path in plain_paths if wanted and path.startswith(wanted)]
    if last or begun:
        return [keys[path] for path in last or (plain_paths[path] for path in begun)]
    raise UserError(
        f"{show(word)}: a key of a config, its beginning or a section expected{near(word)}"
    )


def near(word: str) -> str:
    """The keys nearest to a word, as the end of a message."""
    by_name: dict[str, list[str]] = {}
    for path in all_keys():
        for name in (path, path.rpartition(".")[2]):
            by_name.setdefault(name.replace("[]", ""), []).append(path)
    close = difflib.get_close_matches(word, by_name, n=3)
    paths = list(dict.fromkeys(path for name in close for path in by_name[name]))[:3]
    return (
        f"; did you mean {' or '.join(paths)}?" if paths else "; `rn50 config explain` lists them"
    )


def render(key: Key) -> list[str]:
    """One key in lines for a terminal."""
    lines = [f"{key.path}: {key.meaning}"]
    about = {"unit": key.unit, "values": key.values, "default": key.default}
    lines += [f"  {name:8} {value}" for name, value in about.items() if value]
    name = "set by"
    for value, presets in recipes().get(key.path, {}).items():
        lines.append(f"  {name:8} {value}: {', '.join(presets)}")
        name = ""
    return lines


def to_dict(key: Key) -> dict[str, Any]:
    """As `rn50 config explain --json` prints it."""
    return {
        **key._asdict(),
        "recipes": {v: list(n) for v, n in recipes().get(key.path, {}).items()},
    }


def render_markdown() -> str:
    """The reference as tables, a section each: what is between BEGIN and END in docs/config.md."""
    lines: list[str] = []
    table: dict[str, list[Key]] = {}
    for key in all_keys().values():
        section = key.path if key.is_section else key.path.rpartition(".")[0]
        table.setdefault(section, []).append(key)
    described: dict[tuple[Key, ...], str] = {}
    for section, keys in table.items():
        own = next((key for key in keys if key.path == section), None)
        lines += [f"### {f'`{section}`' if section else 'The run'}", ""]
        content = tuple(key._replace(path=key.path.removeprefix(section)) for key in keys)
        if (first := described.setdefault(content, section)) != section:
            lines += [f"The keys of `{first}`.", ""]
            continue
        if own is not None:
            lines += [own.meaning + (" `null` by default." if own.default else ""), ""]
        lines += ["| key | meaning | values | default | set by |", "|---|---|---|---|---|"]
        for key in keys:
            if not key.is_section:
                meaning = f"{key.meaning} In {key.unit}." if key.unit else key.meaning
                name = key.path.rpartition(".")[2]
                cells = (f"`{name}`", meaning, key.values, f"`{key.default}`", _set_by(key))
                lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def replace_in_page(page: str) -> str:
    """A page with the reference between BEGIN and END. Raises UserError where they are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"a page with the lines {BEGIN} and {END} expected, found none")
    return f"{before}{BEGIN}\n\n{render_markdown()}\n{END}{after}"


def _set_by(key: Key) -> str:
    parts = [
        f"`{value}` {', '.join(names)}" for value, names in recipes().get(key.path, {}).items()
    ]
    return "; ".join(parts) or "-"


def _keys_of(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        meaning = field.description or ""
        below, many = section_of(field.annotation)
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
        default, values = _default(field), _values(field.annotation, tuple(field.metadata))
        is_key = below is None or many
        if is_key:
            yield Key(path, meaning, unit, values, default)
        if below is not None:
            path += "[]" if many else ""
            about = " ".join((below.__doc__ or "").split())
            if is_key or default != "null":
                values = default = ""
            yield Key(path, about, "", values, default, is_section=True)
            yield from _keys_of(below, f"{path}.")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return _as_yaml(_plain(field.default))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | type(None)) else str(value)


def _as_yaml(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return plain(round(value, 6)) if 0.01 <= abs(value) < 1e6 else f"{value:g}"
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{k}: {_as_yaml(v)}" for k, v in value.items() if v is not None) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_yaml, value)) + "]"
    return json.dumps(value)


def _limit(value: float) -> str:
    """A bound as a person writes it."""
    if value in (2**53, -(2**53), 2**63):
        return f"{'-' if value < 0 else ''}2^{abs(int(value)).bit_length() - 1}"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def _values(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """What may be written, in words."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = (*more, *metadata)
    forms = [item for item in metadata if isinstance(item, Form | OneOf)]
    if forms:
        return str(forms[-1])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(str(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        words = [_values(part) for part in arguments if part is not type(None)]
        return " or ".join(words) + ("; or null" if type(None) in arguments else "")
    if origin is tuple:
        inner = _values(arguments[0])
        many = len(arguments) == 2 and arguments[1] is Ellipsis
        inner = inner.replace("section of keys", "sections")
        return f"list of {inner}" if many else f"list of {len(arguments)}: {inner}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section of keys"
    word = {bool: "true or false", int: "whole number", float: "number", str: "text"}[annotation]
    bounds = []
    for item in metadata:
        for part in getattr(item, "metadata", (item,)):
            template = _BOUNDS.get(type(part))
            if template is not None:
                limit = getattr(part, type(part).__name__.lower())
                bounds.append(template.format(_limit(limit)))
    return ", ".join([word, *bounds])
