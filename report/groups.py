"""The runs of a comparison by a value: `rn50 log compare --by KEY`, such as the seeds of each
learning rate."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from ..config.errors import UserError
from ..config.leaves import flatten
from .compare import FIGURES, Comparison
from .run_folder import Subject
from .run_summary import MISSING, show

_SHOWN = ("time_to_train_s", "best_accuracy", "epochs_to_target")


class Spread(NamedTuple):
    """Mean and range of a figure over the runs that have it."""

    mean: float
    least: float
    most: float


class Group(NamedTuple):
    """Runs with the same value, by the numbers of their rows; `spreads` by the figure's key. A time
    to train is that of a run that reached its target."""

    value: str
    rows: tuple[int, ...]
    reached: int
    runs: int
    spreads: dict[str, Spread]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        spreads = {key: spread._asdict() for key, spread in self.spreads.items()}
        return self._asdict() | {"rows": list(self.rows), "spreads": spreads}


def group_by(comparison: Comparison, key: str) -> list[Group]:
    """The groups by rising value. `key`: of a config, or a column's. Raises UserError: none has
    it."""
    rows: dict[Any, list[int]] = {}
    for row, value in enumerate(_values(comparison, key)):
        rows.setdefault(value, []).append(row)
    if list(rows) == [None]:
        known = [key for one in comparison.subjects for key in _config(one)]
        known += [column.key for column in comparison.columns]
        near = difflib.get_close_matches(key, known, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise UserError(f"--by: a key of the runs' configs or a column expected, found {key}{hint}")
    rising = sorted(rows, key=lambda one: (one is None, isinstance(one, str), one))
    return [_group(comparison, value, rows[value]) for value in rising]


def _group(comparison: Comparison, value: Any, rows: Sequence[int]) -> Group:
    runs = [run for row in rows for run in comparison.subjects[row].runs]
    reached = [run for run in runs if run.reached]
    spreads = {}
    for key in _SHOWN:
        of = reached if key == "time_to_train_s" else runs
        found = [number for run in of if (number := FIGURES[key].read(run)) is not None]
        if found:
            spreads[key] = Spread(fmean(found), min(found), max(found))
    name = MISSING if value is None else show(value)
    return Group(name, tuple(rows), len(reached), len(runs), spreads)


def group_table(groups: Sequence[Group], key: str) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a row a group."""
    titles = [FIGURES[figure].title for figure in _SHOWN]
    header = [key, "runs", "reached", *(f"{title}, mean (range)" for title in titles)]
    rows = []
    for group in groups:
        cells = [_cell(figure, group.spreads.get(figure)) for figure in _SHOWN]
        rows.append([group.value, str(len(group.rows)), f"{group.reached} of {group.runs}", *cells])
    return header, rows


def _cell(key: str, spread: Spread | None) -> str:
    if spread is None:
        return MISSING
    form = {"time_to_train_s": ",.1f", "best_accuracy": ".4f"}.get(key, ".4g")
    mean, least, most = (format(value, form) for value in spread)
    between = least if least == most else f"{least} to {most}"
    return f"{mean} {FIGURES[key].unit}".rstrip() + f" ({between})"


def _values(comparison: Comparison, key: str) -> list[Any]:
    """The value of each row; None where it has none."""
    values = [_config(subject).get(key) for subject in comparison.subjects]
    if any(value is not None for value in values):
        return [show(value) if isinstance(value, (list, dict)) else value for value in values]
    column = next((one for one in comparison.columns if one.key == key), None)
    return list(column.values) if column else values


def _config(subject: Subject) -> dict[str, Any]:
    config = subject.folder.config if subject.folder else None
    return dict(flatten(config.to_dict())) if config else {}
