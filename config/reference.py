"""Every key of a config: meaning, values and default, from the schema's own fields.

What `rn50 config explain` prints and docs/config.md holds.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic_core import to_jsonable_python

from .choices import Form
from .errors import UserError, show
from .leaves import is_within, yaml_value
from .names import nearest_name
from .schema import Run
from .values import Duration, Section, section_of

BEGIN = "<!-- keys: begin -->"
END = "<!-- keys: end -->"
_BOUNDS = {Ge: "{} or more", Gt: "above {}", Le: "at most {}", Lt: "below {}"}
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


class Key(NamedTuple):
    """One key, or a section, which has no values. `[]` in a path: each entry of a list."""

    path: str
    meaning: str
    values: str
    default: str


@lru_cache(maxsize=1)
def all_keys() -> dict[str, Key]:
    """Every key and section by its path, in the schema's order."""
    return {key.path: key for key in _keys_of(Run, "")}


def find_keys(word: str) -> list[Key]:
    """The keys that a word means: a section with its keys, or those with the word in their paths.
    Raises UserError: none."""
    keys = [(path.replace("[]", ""), key) for path, key in all_keys().items()]
    within = [key for path, key in keys if is_within(path, word)]
    if found := within or [key for path, key in keys if word in path]:
        return found
    hint = nearest_name(word, (path for path, key in keys if key.values))
    raise UserError(
        f"{show(word)}: a key of a config expected; `rn50 config explain` lists them{hint}"
    )


def render_markdown() -> str:
    """The reference as tables, a section each: what is between BEGIN and END in docs/config.md."""
    sections: dict[str, list[Key]] = {"": []}
    for key in all_keys().values():
        section = key.path.rpartition(".")[0] if key.values else key.path
        sections.setdefault(section, []).append(key)
    lines = []
    described: dict[tuple[Key, ...], str] = {}
    for section, keys in sections.items():
        lines += [f"### {f'`{section}`' if section else 'The run'}", ""]
        content = tuple(
            key._replace(path=key.path.removeprefix(section)) for key in keys
        )
        if (first := described.setdefault(content, section)) != section:
            lines += [f"The keys of `{first}`.", ""]
            continue
        if section:
            lines += [
                keys[0].meaning + (" `null` by default." if keys[0].default else ""),
                "",
            ]
        lines += ["| key | meaning | values | default |", "|---|---|---|---|"]
        for key in keys:
            if key.values:
                name = key.path.rpartition(".")[2]
                cells = (f"`{name}`", key.meaning, key.values, f"`{key.default}`")
                lines.append(
                    f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
                )
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
        default = field.get_default()
        default = str(default) if isinstance(default, Duration) else default
        default = yaml_value(to_jsonable_python(default, fallback=str))
        default = "required" if field.is_required() else default
        if below is None or is_list:
            values = _values(field.annotation, tuple(field.metadata))
            yield Key(path, field.description or "", values, default)
        if below is not None:
            path += (
                "[]"
                if is_list
                else ".NAME"
                if get_origin(field.annotation) is dict
                else ""
            )
            default = "null" if default == "null" and not is_list else ""
            yield Key(path, " ".join((below.__doc__ or "").split()), "", default)
            yield from _keys_of(below, f"{path}.")


def _values(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """What may be written, in words."""
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata = (*more, *metadata)
    forms = [str(item) for item in metadata if isinstance(item, Form)]
    if forms:
        return forms[-1]
    origin = get_origin(annotation)
    arguments = get_args(annotation)
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
    bounds = [part for item in metadata for part in getattr(item, "metadata", (item,))]
    limits = [
        (type(part), getattr(part, type(part).__name__.lower(), None))
        for part in bounds
    ]
    words = [
        _BOUNDS[kind].format(f"{limit:,}") for kind, limit in limits if kind in _BOUNDS
    ]
    return ", ".join([_WORDS[annotation], *words])
