"""Names that come twice in one record: JSON leaves open which of their values holds."""

from __future__ import annotations

import json
from typing import Any

from .checked_keys import READ_NAMES, CheckedKeys
from .events import cut, type_name
from .troubles import Troubles


def look_for_repeats(
    troubles: Troubles, checked: CheckedKeys, number: int, key: str, text: str
) -> None:
    """Names that come twice in one object: which value holds is up to who reads it."""
    try:
        found = _repeats(text)
    except RecursionError:
        troubles.problem(number, "type", key, "values nested too deeply", True)
        return
    for pairs in found:
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name not in values:
                values[name] = value
                continue
            keys = [one for one in (key, value, values[name]) if isinstance(one, str)]
            if key not in checked and not (name == "key" and any(k in checked for k in keys)):
                continue
            said = f'record ({cut(key)}) has "{cut(name)}" twice'
            if _same_value(value, values[name]):
                troubles.note(number, "repeated", key, f"{said}, with one value")
                continue
            both = f"{_shown(values[name])} and {_shown(value)}"
            if name not in READ_NAMES:
                troubles.note(number, "repeated", key, f"{said}: {both}")
                continue
            message = f"{said}: {both}; which one holds is up to the reader"
            troubles.problem(number, "repeated", key, message, False)


def _repeats(text: str) -> list[list[tuple[str, Any]]]:
    """The objects of a JSON text that have a name more than once, as lists of (name, value). Raises
    RecursionError: it is nested too deeply."""
    found: list[list[tuple[str, Any]]] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            found.append(pairs)
        return content

    json.loads(text, object_pairs_hook=look)
    return found


def _same_value(one: Any, other: Any) -> bool:
    """Typed equality: true, 1 and 1.0 are three values."""
    try:
        return repr(one) == repr(other)
    except RecursionError:
        return False


def _shown(value: Any) -> str:
    """A value in a message."""
    return type_name(value) if isinstance(value, list | dict) else repr(value)[:60]
