"""The norms that `log.profile: norms` records: the ratios of the layers by step, a table of a step.

A layer is a tensor whose name ends with `weight`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..host.finding import number
from ..host.reading import JsonObject
from .charts import LARGEST, thinned
from .run_records import RunRecords

NORM_RATIO = "norm_ratio"
_QUANTITIES = ("weight_norm", "gradient_norm", NORM_RATIO, "trust_ratio")


class Ratios(NamedTuple):
    """The ratios of a step, first layer first; NaN for a layer that has none, such as one without a
    gradient."""

    step: float
    by_layer: list[float]

    @property
    def numbers(self) -> list[float]:
        """The ratios of the layers that have one."""
        return [ratio for ratio in self.by_layer if not math.isnan(ratio)]


def norm_ratios(records: Iterable[JsonObject]) -> list[Ratios]:
    """The records that have ratios which can be drawn, as many as a chart has across."""
    rows = []
    for record in records:
        step = number(record.get("step"))
        layers = [record[name] for name in record if name.endswith("weight")]
        row = Ratios(step or 0.0, list(map(_drawable, layers)))
        if step is not None and abs(step) < LARGEST and row.numbers:
            rows.append(row)
    return thinned(rows)


def _drawable(value: Any) -> float:
    ratio = number(value) or 0.0
    # a logarithmic axis has no zero
    return ratio if 1 / LARGEST < ratio < LARGEST else math.nan


class NormTable(NamedTuple):
    """All tensors at the last step with norms: a name and its quantities, None where it has
    none."""

    step: float
    rows: list[tuple[str, list[float | None]]]


def norm_table(folder: RunRecords) -> NormTable | None:
    """The norms of the last step; None: the run has recorded none."""
    # each quantity is a record of its own, with a value for each tensor
    last = [next(reversed(folder.records(name)), {}) for name in _QUANTITIES]
    step = number(last[0].get("step"))
    if step is None:
        return None
    names = [name for name in last[0] if name not in ("kind", "time_s", "step")]
    rows = [(name, [number(record.get(name)) for record in last]) for name in names]
    return NormTable(step, rows)
