"""The runs of a comparison by a value: `rn50 log compare --by KEY`, such as the seeds of each
learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ..config.errors import UserError
from .compare import FIGURES, Comparison, config_values
from .run_summary import MISSING, show

_FORMS = {"time_to_train_s": ",.1f", "best_accuracy": ".4f", "epochs_to_target": ".4g"}
"""How the figures of a group are shown, by their key."""


class Group(NamedTuple):
    """Runs with the same value, by the numbers of their rows; `spreads`: mean, least and most of
    each figure, over the runs that have it. A time to train is that of a run that reached its
    target."""

    value: str
    rows: tuple[int, ...]
    reached: int
    runs: int
    spreads: dict[str, tuple[float, float, float]]


def group_by(comparison: Comparison, key: str) -> list[Group]:
    """The groups by rising value. `key`: of a config, or a column's. Raises UserError: none has
    it."""
    rows: dict[Any, list[int]] = {}
    for row, value in enumerate(_values(comparison, key)):
        rows.setdefault(value, []).append(row)
    if list(rows) == [None]:
        raise UserError(f"--by: a key of the runs' configs or a column expected, found {key}")
    rising = sorted(rows, key=lambda one: (one is None, isinstance(one, str), one))
    return [_group(comparison, value, rows[value]) for value in rising]


def _group(comparison: Comparison, value: Any, rows: Sequence[int]) -> Group:
    runs = [run for row in rows for run in comparison.subjects[row].runs]
    reached = [run for run in runs if run.reached]
    spreads = {}
    for key in _FORMS:
        of = reached if key == "time_to_train_s" else runs
        found = [number for run in of if (number := FIGURES[key].read(run)) is not None]
        if found:
            spreads[key] = (fmean(found), min(found), max(found))
    name = MISSING if value is None else show(value)
    return Group(name, tuple(rows), len(reached), len(runs), spreads)


def group_table(groups: Sequence[Group], key: str) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a row a group."""
    titles = [f"{FIGURES[figure].title}, mean (range)" for figure in _FORMS]
    rows = [
        [
            group.value,
            f"{group.reached} of {group.runs}",
            *(_cell(group, figure) for figure in _FORMS),
        ]
        for group in groups
    ]
    return [key, "reached", *titles], rows


def _cell(group: Group, figure: str) -> str:
    if figure not in group.spreads:
        return MISSING
    mean, least, most = (format(value, _FORMS[figure]) for value in group.spreads[figure])
    return f"{mean} {FIGURES[figure].unit}".rstrip() + f" ({least} to {most})"


def _values(comparison: Comparison, key: str) -> list[Any]:
    """The value of each row; None where it has none."""
    values = [config_values(subject).get(key) for subject in comparison.subjects]
    if any(value is not None for value in values):
        return [show(value) if isinstance(value, (list, dict)) else value for value in values]
    column = next((one for one in comparison.columns if one.key == key), None)
    return list(column.values) if column else values
