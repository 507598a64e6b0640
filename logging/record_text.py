"""Small steps from a record's bytes to what is said of it."""

from __future__ import annotations

import json
from typing import Any

from .events import type_name

_BLANKS = " \t\n\v\f\r\x1c\x1d\x1e\x1f"
_LATIN_BLANKS = _BLANKS + "\x85\xa0"

_WORD_CHARACTERS = 100


def decode(raw: bytes) -> str:
    """As UTF-8, else as Latin-1, as the official parser does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def stripped(text: str, raw: bytes) -> str:
    """Text after a record without what the official parser, which reads Latin-1, strips too."""
    text = text.strip(_BLANKS)
    if not text:
        return ""
    return "" if b"\xc2" not in raw and not text.strip(_LATIN_BLANKS) else text


def key_of(content: Any) -> str | None:
    """The key of a record's JSON, where it is one."""
    found = content.get("key") if isinstance(content, dict) else None
    return found if isinstance(found, str) else None


def repeats(text: str) -> list[list[tuple[str, Any]]]:
    """The objects of a JSON text that have a name more than once, as lists of (name, value).

    Raises:
        RecursionError: it is nested too deeply.
    """
    found: list[list[tuple[str, Any]]] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            found.append(pairs)
        return content

    json.loads(text, object_pairs_hook=look)
    return found


def same_value(one: Any, other: Any) -> bool:
    """Typed equality: true, 1 and 1.0 are three values."""
    try:
        return repr(one) == repr(other)
    except RecursionError:
        return False


def value_shown(value: Any) -> str:
    """A value in a message."""
    return type_name(value) if isinstance(value, list | dict) else repr(value)[:60]


def word(value: Any) -> str:
    """A part of a record that should be a text."""
    if isinstance(value, str):
        return value if len(value) <= _WORD_CHARACTERS else value[:_WORD_CHARACTERS]
    return "" if value is None else str(value)[:_WORD_CHARACTERS]
