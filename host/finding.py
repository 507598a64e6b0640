"""What a check finds: the shape that config checks and log checks share."""

import json
import math
from typing import Any, NamedTuple

ERROR = "error"
POLICY = "policy"
WARNING = "warning"
NOTE = "note"
SEVERITIES = (ERROR, POLICY, WARNING, NOTE)
MISSING = "missing"
_SHOWN_CHARACTERS = 200


class Finding(NamedTuple):
    """One broken rule, once. `severity`: error (the official checker fails it, or there is no valid
    result), policy (the rules forbid it and no tool checks it), warning (likely a mistake) or note.
    `id`: the rule's code. `caused_by`: that of the finding that explains this one. `about`: what is
    wrong with a record: that it is MISSING; empty: something else."""

    id: str
    severity: str
    line: int | None
    expected: str
    found: str
    message: str
    advice: str = ""
    caused_by: str = ""
    name: str = ""
    about: str = ""

    @property
    def rule(self) -> str:
        """Code and name, as people are shown them."""
        return f"{self.id} {self.name}".rstrip()

    @property
    def comparison(self) -> str:
        """What was expected and found; empty where the message has one of them already."""
        if self.expected in self.message or self.found in self.message:
            return ""
        return f"expected {self.expected}, found {self.found}"


def printable(value: str) -> str:
    """Text without control characters, which become \\x1b and the like."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)


def shown(value: Any) -> str:
    """A value from a file, short and safe to print."""
    if isinstance(value, str):
        printed = json.dumps(value[:_SHOWN_CHARACTERS], ensure_ascii=False)
        if len(value) > _SHOWN_CHARACTERS:
            printed += "..."
        return printable(printed)
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    return json.dumps(value)[:_SHOWN_CHARACTERS]


def plain(value: float) -> str:
    """A number as a person writes it: 38, not 38.0."""
    is_whole = math.isfinite(value) and value == int(value)
    # beyond 2^53, about 9e15, a float has no single whole number
    if is_whole and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def number(value: Any) -> float | None:
    """A finite number, or None. Booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None


def first_number(*values: Any) -> float | None:
    """The first value that is a number."""
    for value in values:
        if number(value) is not None:
            return number(value)
    return None


def clock_time(seconds: float) -> str:
    """`0:42`, `12:03`, `1:02:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}"
