"""Small steps from a record's bytes to what is said of it."""

from __future__ import annotations

from typing import Any

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


def word(value: Any) -> str:
    """A part of a record that should be a text."""
    if isinstance(value, str):
        return value if len(value) <= _WORD_CHARACTERS else value[:_WORD_CHARACTERS]
    return "" if value is None else str(value)[:_WORD_CHARACTERS]
