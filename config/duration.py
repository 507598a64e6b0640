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
    def parse(cls, text: str) -> Duration:
        """Read "36 epochs", "540 steps" or "2 %". Raises ValueError."""
        match = _PATTERN.fullmatch(text.lower())
        if match is None:
            raise ValueError('a duration such as "36 epochs", "540 steps" or "2 %"')
        unit = f"{match[2]}s" if match[2] else "%"
        value = float(match[1])
        if value >= _LIMIT:
            raise ValueError(f"a duration below {_LIMIT:,} {unit}")
        if unit == "steps" and not value.is_integer():
            raise ValueError("a whole number of steps")
        return cls(value, unit)

    def __str__(self) -> str:
        # Every digit and no exponent: the text is saved with a run, hashed, and read again.
        return f"{Decimal(repr(self.value)).normalize():f} {self.unit}"
