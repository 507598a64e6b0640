"""Tables for any terminal, and for none: every cell is shown whole.

On a pipe a row is a line. On a terminal sentences are folded between words; columns that have no
room stand in blocks below the first, each with the rows' names; where not even one has room beside
the names, a row is a list of its cells. No word is broken and nothing is left out.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from ..config.finding import printable

_GAP = "  "
_LEAST_CELLS = 20
"""Of a terminal; COLUMNS may say anything."""
_LEAST_FOLDED = 16
"""Width of a column of sentences."""
_FEW_COLUMNS = 4
"""Rows of so few cells are lists rather than blocks."""


class _Column(NamedTuple):
    title: str
    cells: tuple[str, ...]
    is_right: bool = False
    folds: bool = False
    """Whether its cells are sentences."""

    @property
    def width(self) -> int:
        return max(map(width_of, (self.title, *self.cells)))

    @property
    def least_width(self) -> int:
        """With its title, or all of it, folded between words."""
        parts = [*self.title.split(), ""]
        for cell in self.cells:
            parts += cell.split() if self.folds else [cell]
        least = max(map(width_of, parts))
        return max(least, min(_LEAST_FOLDED, self.width)) if self.folds else least


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    free: Collection[int] = (),
    right: Collection[int] = (),
) -> None:
    """Print what `table_lines` makes for the standard output."""
    print("\n".join(table_lines(header, rows, terminal_cells(), free, right)))


def terminal_cells() -> int | None:
    """The width of the terminal that standard output is; None: it is none."""
    return line_cells() if sys.stdout.isatty() else None


def line_cells() -> int:
    """The width of a line of help; where there is no terminal, 80."""
    return max(_LEAST_CELLS, shutil.get_terminal_size().columns)


def table_lines(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    cells: int | None,
    free: Collection[int] = (),
    right: Collection[int] = (),
) -> list[str]:
    """The lines of a table that is at most `cells` wide, but for longer words; None: of any width.

    Args:
        header: the titles; empty ones have no line.
        rows: the cells; the first names its row.
        free: columns of sentences, which may be folded.
        right: columns that end at the right.
    """
    columns = []
    for number, title in enumerate(header):
        texts = tuple(printable(row[number]) for row in rows)
        columns.append(
            _Column(printable(title), texts, number in right, number in free)
        )
    widths = _fit(columns, cells)
    if widths is not None:
        return _block(columns, widths)
    lines = []
    if len(columns) > _FEW_COLUMNS:
        for block in _split(columns, cells):
            lines += [*_block(block, _fit(block, cells) or ()), ""]
    cells = cells or 0
    note = f"({cells} characters have no room for all columns side by side; a pipe has)"
    return [*(lines or _records(columns, cells)), *fold(note, cells)]


def _fit(columns: Sequence[_Column], cells: int | None) -> list[int] | None:
    """The width of each column; None: they have no room side by side."""
    widths = [column.width for column in columns]
    if cells is None:
        return widths
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - cells
    slack = [
        width - column.least_width
        for width, column in zip(widths, columns, strict=True)
    ]
    # the widest first, so that a short title is not folded for a long sentence
    for number in sorted(range(len(slack)), key=slack.__getitem__, reverse=True):
        taken = max(0, min(excess, slack[number]))
        widths[number] -= taken
        excess -= taken
    return None if excess > 0 else widths


def _split(
    columns: Sequence[_Column],
    cells: int | None,
) -> list[list[_Column]]:
    """The columns in blocks, each behind the first column; empty: one has no room beside it."""
    lead, *left = columns
    blocks = [[lead]]
    while left:
        block = [*blocks[-1], left[0]]
        if _fit(block, cells) is not None:
            blocks[-1] = block
            del left[0]
        elif len(blocks[-1]) == 1:
            return []
        else:
            blocks.append([lead])
    return blocks


def _block(columns: Sequence[_Column], widths: Sequence[int]) -> list[str]:
    rows = list(zip(*(column.cells for column in columns), strict=True))
    titles = tuple(column.title for column in columns)
    if any(titles):
        rows.insert(0, titles)
    lines = []
    for row in rows:
        folded = map(fold, row, widths)
        for parts in zip_longest(*folded, fillvalue=""):
            padded = []
            for column, width, part in zip(columns, widths, parts, strict=True):
                blanks = " " * (width - width_of(part))
                padded.append(blanks + part if column.is_right else part + blanks)
            lines.append(_GAP.join(padded).rstrip())
    return lines


def _records(columns: Sequence[_Column], cells: int) -> list[str]:
    lead, *others = columns
    indent = len(_GAP) + max(width_of(column.title) for column in others)
    lines = []
    for number, name in enumerate(lead.cells):
        lines += fold(f"{lead.title} {name}".strip(), cells)
        for column in others:
            cell = column.cells[number]
            if cell:
                lines += definition(_GAP + column.title, cell, indent, cells)
    return lines


def definition(term: str, meaning: str, indent: int, cells: int) -> Iterator[str]:
    """Lines of a term with its meaning beside it, or below it where it is longer than `indent`."""
    room = cells - indent - len(_GAP)
    if room < _LEAST_FOLDED:
        indent = len(_GAP)
        room = cells - 2 * indent
    parts = fold(meaning, room)
    blanks = " " * indent + _GAP
    if width_of(term) > indent:
        yield from fold(term, cells)
    else:
        first = term + blanks[width_of(term) :] + parts.pop(0)
        yield first.rstrip()
    for part in parts:
        yield blanks + part


def fold(text: str, cells: int) -> list[str]:
    """The text in lines of at most so many cells, but for longer words."""
    if width_of(text) <= cells:
        return [text]
    lines = [""]
    for part in text.split():
        line = f"{lines[-1]} {part}".lstrip()
        if width_of(line) <= cells or not lines[-1]:
            lines[-1] = line
        else:
            lines.append(part)
    return lines


def width_of(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))
