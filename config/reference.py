"""Every key of a config: meaning, values and default, from the schema's own fields.

What `rn50 config explain` prints and docs/config.md holds.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from ..host.errors import UserError, show
from . import schema
from .choices import Form
from .leaves import is_within, yaml_value
from .names import nearest_name
from .values import Duration, Section, section_of

BEGIN = "<!-- keys: begin -->"
END = "<!-- keys: end -->"
_BOUNDS: dict[type, str] = {
    Ge: "{.ge:,} or more",
    Gt: "above {.gt:,}",
    Le: "at most {.le:,}",
    Lt: "below {.lt:,}",
}
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


class Key(NamedTuple):
    """One key, or a section, which has no values. `[]` in a path: each entry of a list."""

    path: str
    meaning: str
    values: str
    default: str


@lru_cache(maxsize=1)
def all_keys() -> tuple[Key, ...]:
    """Every key and section, in the schema's order."""
    return tuple(_keys_of(schema.Run, ""))


def find_keys(query: str) -> list[Key]:
    """The keys that a word means: a section with its keys, or those with the word in their paths.
    Raises UserError: none."""
    query = query.replace("[]", "")
    keys = [(key.path.replace("[]", ""), key) for key in all_keys()]
    within = [key for path, key in keys if is_within(path, query)]
    named = within or [key for path, key in keys if query in path]
    if named:
        return named
    with_values = (path for path, key in keys if key.values)
    hint = nearest_name(query, with_values)
    raise UserError(
        f"{show(query)}: a key of a config expected; `rn50 config explain` lists them{hint}"
    )


def render_markdown() -> str:
    """The reference as tables, a section each: what is between BEGIN and END in docs/config.md."""
    sections: dict[str, list[Key]] = {"": []}
    for key in all_keys():
        section = key.path
        if key.values:
            section = section.rpartition(".")[0]
        sections.setdefault(section, []).append(key)
    lines = []
    described: dict[tuple[Key, ...], str] = {}
    for section, keys in sections.items():
        title = f"`{section}`" if section else "The run"
        lines += [f"### {title}", ""]
        content = tuple(
            key._replace(path=key.path.removeprefix(section)) for key in keys
        )
        first = described.setdefault(content, section)
        if first != section:
            lines += [f"The keys of `{first}`.", ""]
            continue
        if section:
            by_default = " `null` by default." if keys[0].default else ""
            lines += [keys[0].meaning + by_default, ""]
        lines += ["| key | meaning | values | default |", "|---|---|---|---|"]
        lines += [_row(key) for key in keys if key.values]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(key: Key) -> str:
    name = key.path.rpartition(".")[2]
    cells = (f"`{name}`", key.meaning, key.values, f"`{key.default}`")
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def replace_in_page(page: str) -> str:
    """A page with the reference between BEGIN and END. Raises UserError where they are missing."""
    head, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"a page with the lines {BEGIN} and {END} expected, found none")
    return f"{head}{BEGIN}\n\n{render_markdown()}\n{END}{after}"


def _keys_of(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path = f"{prefix}{name}"
        below = section_of(field.annotation)
        holder = get_origin(field.annotation)
        default = _default_of(field)
        if below is None or holder is tuple:
            meaning = _on_one_line(field.description or "")
            yield Key(path, meaning, _values(field.annotation, field.metadata), default)
        if below is None:
            continue
        if holder is tuple:
            path += "[]"
        elif holder is dict:
            path += ".NAME"
        if holder is tuple or default != "null":
            default = ""
        yield Key(path, _on_one_line(below.__doc__ or ""), "", default)
        yield from _keys_of(below, f"{path}.")


def _default_of(field: FieldInfo) -> str:
    """The default as one would write it."""
    if field.is_required():
        return "required"
    default = field.get_default()
    if isinstance(default, Duration):
        return str(default)
    return yaml_value(to_jsonable_python(default, fallback=str))


def _on_one_line(docstring: str) -> str:
    return " ".join(docstring.split())


def _values(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """What may be written, in words."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = [*more, *metadata]
    forms = [str(item) for item in metadata if isinstance(item, Form)]
    if forms:
        return forms[-1]
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if annotation is type(None):
        return "null"
    if origin in (Union, types.UnionType):
        *forms_text, last = map(_values, arguments)
        if last == "null":
            return " or ".join(forms_text) + "; or null"
        return " or ".join([*forms_text, last])
    if origin is tuple:
        item_type, *other_types = arguments
        if other_types == [Ellipsis]:
            return f"list of: {_values(item_type)}"
        return f"list of {len(arguments)}: {_values(item_type)}"
    if issubclass(annotation, Section):
        return "section of keys"
    return ", ".join([_WORDS[annotation], *_bounds(metadata)])


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for item in metadata:
        for bound in getattr(item, "metadata", (item,)):  # those of a `Field`
            if type(bound) in _BOUNDS:
                yield _BOUNDS[type(bound)].format(bound)
