"""Durations as one thinks of them ("36 epochs", "540 steps", "2 %"), made steps in one place."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

_LIMIT = 10**12
_PATTERN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:(epoch|step)s?|%)\s*")


@dataclass(frozen=True)
class Duration:
    """A length of training: a value and its unit (epochs, steps, or % of the whole run)."""

    value: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Duration | None:
        """Read "36 epochs", "540 steps" (whole ones) or "2 %"; None: it is none of these."""
        match = _PATTERN.fullmatch(text.lower())
        if match is None or float(match[1]) >= _LIMIT:
            return None
        value, unit = float(match[1]), f"{match[2]}s" if match[2] else "%"
        return None if unit == "steps" and not value.is_integer() else cls(value, unit)

    def __str__(self) -> str:
        # Every digit and no exponent: the text is saved with a run, hashed, and read again.
        return f"{Decimal(repr(self.value)).normalize():f} {self.unit}"
