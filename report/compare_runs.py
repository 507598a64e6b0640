"""A comparison with a row a run: columns for what differs, ratios to the first run, sorted."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from ..config.errors import UserError
from ..config.schema import PLACES
from .compare import CLOCKS, MISSING, Clock, Comparison, Row, decimals
from .run_folder import Subject

ROWS_FROM = 4
"""Runs from which on each is a row: as columns they would not fit a window."""
RESULTS = "results"
_RATIOS = {
    "time_to_train_s": ("time_to_train_ratio", "time / A"),
    "images_per_s": ("images_per_s_ratio", "images/s / A"),
}
"""Clocks with a column for their ratio to the first run's: its key and title."""
_RESULTS = ("time_to_train_s", "images_per_s", "best_accuracy", "target", "epochs_to_target")
_VERDICTS = ("log check", "run_stop")


class Column(NamedTuple):
    """One column; `cells` are shown, `values` sorted by and given in JSON (None: not known)."""

    group: str
    key: str
    """What `--sort` calls it."""
    title: str
    cells: tuple[str, ...]
    values: tuple[float | str | None, ...]

    @property
    def places(self) -> tuple[int | None, ...]:
        """The place of each row by rising value, numbers before texts; the same for equal ones."""
        keys: list[Any] = [v if v is None else (isinstance(v, str), v) for v in self.values]
        rising = sorted({key for key in keys if key is not None})
        return tuple(None if key is None else rising.index(key) for key in keys)

    @property
    def is_number(self) -> bool:
        """Whether all that is known are numbers."""
        return not any(isinstance(value, str) for value in self.values)


def columns_of(comparison: Comparison) -> list[Column]:
    """Results first, then what differs: hyper-parameters, config, submission; last other clocks."""
    clocks = {clock.key: clock for clock in CLOCKS}
    results: list[Column] = []
    others: list[Column] = []
    for key in dict.fromkeys((*_RESULTS, *clocks)):
        group, into = (RESULTS, results) if key in _RESULTS else ("clocks", others)
        column = _clock_column(group, clocks[key], comparison.subjects)
        known = {value for value in column.values if value is not None}
        if known and (key != "target" or len(known) > 1):
            into.append(column)
            into += [_ratio_column(column, comparison.subjects)] if key in _RATIOS else []
    logged = {(row.name, row.cells) for row in comparison.parameters}
    texts = [
        _text_column(RESULTS if row.name in _VERDICTS else group, row)
        for group, rows in (
            ("submission", comparison.submissions),
            ("hyper-parameters", comparison.parameters),
            ("config", comparison.config),
        )
        for row in rows
        if (row.differs or row.name == _VERDICTS[0])
        and not (group == "config" and _is_said(row, logged))
    ]
    results.append(_parting_column(comparison))
    groups = (RESULTS, "hyper-parameters", "config", "submission", "clocks")
    last = ("epochs_to_target", "parts_at_epoch")  # a page has room for the verdict before them
    return sorted(
        (*results, *texts, *others),
        key=lambda column: (groups.index(column.group), column.key in last),
    )


def _is_said(row: Row, logged: Collection[tuple[str, tuple[str, ...]]]) -> bool:
    """Whether a value of the config changes no result, or is in the log under the same name."""
    return row.name.startswith(PLACES) or (row.name.rpartition(".")[2], row.cells) in logged


def shared_parameters(comparison: Comparison) -> list[tuple[str, str]]:
    """(name, value) of each hyper-parameter that is the same in all logs that have it."""
    return [
        (row.name, known[0])
        for row in comparison.parameters
        if not row.differs and (known := [cell for cell in row.cells if cell != MISSING])
    ]


def order_of(columns: Sequence[Column], sort: str | None, count: int) -> list[int]:
    """The rows by `--sort COLUMN`, or -COLUMN for falling values; what has no value comes last.
    Raises UserError: there is no such column."""
    if sort is None:
        return list(range(count))
    name = sort.removeprefix("-")
    column = next((column for column in columns if column.key == name), None)
    if column is None:
        keys = ", ".join(dict.fromkeys(column.key for column in columns))
        raise UserError(f"--sort: one of {keys} expected, found {name}")
    places = column.places
    known = [number for number in range(count) if places[number] is not None]
    known.sort(key=lambda number: places[number] or 0, reverse=sort.startswith("-"))
    return [*known, *(number for number in range(count) if places[number] is None)]


def _clock_column(group: str, clock: Clock, subjects: Iterable[Subject]) -> Column:
    """The median of each subject's runs, all with the same number of decimals."""
    values = [median(known) if (known := clock.of(one)) else None for one in subjects]
    least = min((abs(v) for v in values if v is not None), default=0.0)
    digits, unit = decimals(least), clock.unit
    cells = [
        MISSING if v is None else f"{v:,.{digits}f}" if unit else _plain(clock, v) for v in values
    ]
    title = clock.name.partition(" (")[0] + (f", {unit}" if unit else "")
    return Column(group, clock.key, title, tuple(cells), tuple(values))


def _plain(clock: Clock, value: float) -> str:
    return f"{value:.5f}" if clock.key == "best_accuracy" else f"{value:.6g}"


def _ratio_column(column: Column, subjects: Sequence[Subject]) -> Column:
    """To the first row's value; of times only where all runs of both reached their target."""
    is_time = column.key == "time_to_train_s"
    fair = [not is_time or all(run.reached for run in one.runs) for one in subjects]
    first = column.values[0] if fair[0] else None
    values = [
        value / first if isinstance(value, float) and isinstance(first, float) and first else None
        for value in (v if ok else None for v, ok in zip(column.values, fair, strict=True))
    ]
    cells = [MISSING if v is None else f"{v:.2f}" if v < 100 else f"{v:,.0f}" for v in values]
    key, title = _RATIOS[column.key]
    return Column(column.group, key, title, tuple(cells), tuple(values))


def _parting_column(comparison: Comparison) -> Column:
    """Where each curve of accuracies leaves the first one's by more than the spread."""
    epochs: list[float | None] = [None]
    cells = [MISSING]
    for found in comparison.divergences:
        epochs.append(found.parting.epoch if found.parting else None)
        agrees = "agrees" if found.compared else MISSING
        cells.append(f"{found.parting.epoch:g}" if found.parting else agrees)
    title = "parts from A, epoch"
    return Column(RESULTS, "parts_at_epoch", title, tuple(cells), tuple(epochs))


def _text_column(group: str, row: Row) -> Column:
    key = row.name.partition(" (")[0].replace(" ", "_")
    return Column(group, key, row.name, row.cells, tuple(map(_value, row.cells)))


def _value(cell: str) -> float | str | None:
    """What a cell is sorted by: its number where it is one."""
    if cell == MISSING:
        return None
    if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", cell, re.ASCII | re.IGNORECASE):
        try:
            return value if math.isfinite(value := float(cell)) else cell
        except ValueError:  # such as a version, 4.1.0
            return cell
    return cell
