"""The norms that `log.profile: norms` records: the ratios of the layers by step, a table of a step.

A layer is a tensor whose name ends with `weight`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..config.finding import number
from ..config.reading import JsonObject
from .charts import LARGEST, thinned
from .run_folder import RunFolder

NORM_RATIO = "norm_ratio"
_QUANTITIES = ("weight_norm", "gradient_norm", NORM_RATIO, "trust_ratio")


class Ratios(NamedTuple):
    """The ratios of a step, first layer first; a layer without a gradient has none."""

    step: float
    ratios: list[float]


def norm_ratios(records: Iterable[JsonObject]) -> list[Ratios]:
    """The records that have ratios which can be drawn, as many as a chart has across."""
    rows = []
    for record in records:
        step = number(record.get("step"))
        layers = (record[name] for name in record if name.endswith("weight"))
        values = (value or 0.0 for value in map(number, layers))
        ratios = [value for value in values if 1 / LARGEST < value < LARGEST]
        if step is not None and abs(step) < LARGEST and ratios:
            rows.append(Ratios(step, ratios))
    return thinned(rows)


class NormTable(NamedTuple):
    """All tensors at the last step with norms: a name and its quantities, None where it has
    none."""

    step: float
    rows: list[tuple[str, list[float | None]]]


def norm_table(folder: RunFolder) -> NormTable | None:
    """None: the run has recorded no norms."""
    last = [next(reversed(folder.records(name)), {}) for name in _QUANTITIES]
    step = number(last[0].get("step"))
    if step is None:
        return None
    names = [name for name in last[0] if name not in ("kind", "time_s", "step")]
    rows = [(name, [number(record.get(name)) for record in last]) for name in names]
    return NormTable(step, rows)
