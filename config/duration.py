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


def to_steps(duration: Duration, steps_per_epoch: float, total_steps: int | None = None) -> int:
    """Whole steps in `duration`, rounded to the nearest.

    Raises ValueError: "%" without `total_steps`.

    Args:
        duration: the length to convert.
        steps_per_epoch: optimizer steps in one pass over the data; a fraction where the last
            partial batch is mixed with the next epoch.
        total_steps: steps of the whole run, needed for "%" only.
    """
    if duration.unit == "steps":
        return int(duration.value)
    if duration.unit == "epochs":
        return round(duration.value * steps_per_epoch)
    if duration.unit == "%" and total_steps is not None:
        return round(duration.value / 100 * total_steps)
    raise ValueError(f"{duration} cannot be turned into steps here")
