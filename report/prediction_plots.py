"""A prediction as a report shows it: figures, bars and charts. Who predicts is not its business."""

from __future__ import annotations

from typing import NamedTuple

from .plots import Plot


class Part(NamedTuple):
    """A bar between 0 and 100 % of its row."""

    name: str
    value: str
    left: float
    width: float


class Outlook(NamedTuple):
    """What the recipe of a report would take on a described machine."""

    machine: str
    size: str
    """Accelerators and images on each."""
    rows: tuple[tuple[str, str, str, str], ...]
    """Name, predicted, its 90 % interval, as run ("" where the run does not say)."""
    step: tuple[Part, ...]
    overlap: tuple[Part, ...]
    plots: tuple[Plot, ...]
