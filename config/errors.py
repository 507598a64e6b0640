"""The one exception that means "the user can fix this": shown as one line, never as a traceback."""

from __future__ import annotations

_SHOWN_CHARACTERS = 80


class UserError(Exception):
    """Bad input or a bad environment. The message says where, what was expected, what was found."""


def show(value: object) -> str:
    """A value in a message: as Python writes it, so on one line, and short."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
