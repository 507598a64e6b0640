"""The one exception that means "the user can fix this": shown as one line, never as a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a bad environment. The message says where, what was expected, what was found."""
