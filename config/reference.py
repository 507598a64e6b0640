"""Every key of a config: meaning, unit, values and default, from the schema's own fields.

What `rn50 config explain` prints and docs/config.md holds.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic_core import to_jsonable_python

from .choices import Form
from .errors import UserError, show
from .leaves import is_within, yaml_value
from .schema import Run
from .values import Section, section_of

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
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


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


def find_keys(word: str) -> list[Key]:
    """The keys that a word means: a section with its keys, a key by its path or last name, or a
    beginning. Raises UserError: none; names the nearest."""
    wanted = word.strip().rstrip(".")
    keys = [(path.replace("[]", ""), key) for path, key in all_keys().items()]
    for matches in (
        lambda path: is_within(path, wanted),
        lambda path: path.rpartition(".")[2] == wanted,
        lambda path: wanted and path.startswith(wanted),
    ):
        if found := [key for path, key in keys if matches(path)]:
            return found
    last = {path.rpartition(".")[2]: path for path, _ in reversed(keys)}
    near = difflib.get_close_matches(wanted, [*dict(keys), *last], n=1)
    hint = (
        f"did you mean {last.get(near[0], near[0])}?"
        if near
        else "`rn50 config explain` lists them"
    )
    raise UserError(f"{show(word)}: a key of a config, its beginning or a section expected; {hint}")


def render(key: Key) -> list[str]:
    """One key in lines for a terminal."""
    about = {"unit": key.unit, "values": key.values, "default": key.default}
    lines = [f"  {name:8} {value}" for name, value in about.items() if value]
    return [f"{key.path}: {key.meaning}", *lines]


def render_markdown() -> str:
    """The reference as tables, a section each: what is between BEGIN and END in docs/config.md."""
    sections: dict[str, list[Key]] = {"": []}
    for key in all_keys().values():
        section = key.path if key.is_section else key.path.rpartition(".")[0]
        sections.setdefault(section, []).append(key)
    lines: list[str] = []
    described: dict[tuple[Key, ...], str] = {}
    for section, keys in sections.items():
        lines += [f"### {f'`{section}`' if section else 'The run'}", ""]
        content = tuple(key._replace(path=key.path.removeprefix(section)) for key in keys)
        if (first := described.setdefault(content, section)) != section:
            lines += [f"The keys of `{first}`.", ""]
            continue
        if section:
            lines += [keys[0].meaning + (" `null` by default." if keys[0].default else ""), ""]
        lines += ["| key | meaning | values | default |", "|---|---|---|---|"]
        for key in keys:
            if not key.is_section:
                name = key.path.rpartition(".")[2]
                meaning = f"{key.meaning} In {key.unit}." if key.unit else key.meaning
                cells = (f"`{name}`", meaning, key.values, f"`{key.default}`")
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


def _keys_of(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        below, is_list = section_of(field.annotation)
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
        default = to_jsonable_python(field.get_default(), fallback=str)
        key = Key(
            path=path,
            meaning=field.description or "",
            unit=unit,
            values=_values(field.annotation, tuple(field.metadata)),
            default="required" if field.is_required() else yaml_value(default),
        )
        if below is None or is_list:
            yield key
        if below is not None:
            path += "[]" if is_list else ""
            meaning = " ".join((below.__doc__ or "").split())
            can_be_null = not is_list and key.default == "null"
            if not can_be_null:
                key = key._replace(values="", default="")
            yield key._replace(path=path, meaning=meaning, unit="", is_section=True)
            yield from _keys_of(below, f"{path}.")


def _values(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """What may be written, in words."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = (*more, *metadata)
    forms = [str(item) for item in metadata if isinstance(item, Form)]
    if forms:
        return forms[-1]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        words = [_values(part) for part in arguments if part is not type(None)]
        return " or ".join(words) + ("; or null" if type(None) in arguments else "")
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f" {len(arguments)}"
        return f"list of{count}: {_values(arguments[0])}"
    if issubclass(annotation, Section):
        return "section of keys"
    return ", ".join([_WORDS[annotation], *_bounds(metadata)])


def _bounds(metadata: tuple[Any, ...]) -> Iterator[str]:
    for part in (part for item in metadata for part in getattr(item, "metadata", (item,))):
        if type(part) in _BOUNDS:
            limit = getattr(part, type(part).__name__.lower())
            power = abs(limit) > 2**50 and isinstance(limit, int)
            sign = "-" if limit < 0 else ""
            text = f"{sign}2^{abs(limit).bit_length() - 1}" if power else f"{limit:,}"
            yield _BOUNDS[type(part)].format(text if isinstance(limit, int) else f"{limit:g}")
