"""Tables for any terminal, and for none: every cell is shown whole.

On a pipe a row is a line. On a terminal sentences are folded between words; columns that have no
room stand in blocks below the first, each with the rows' names; where not even one has room beside
the names, a row is a list of its cells. No word is broken and nothing is left out.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len

from ..host.finding import printable

_LEAST_CELLS = 20
"""The least width of a table, where COLUMNS holds a smaller number."""
_LEAST_FOLDED = 16
"""Width of a column of sentences."""
_LEAST_COLUMNS = 2.5
"""The fewest columns that blocks have in the mean; else a row is rather a list."""


class _Column(NamedTuple):
    cells: list[str]
    """The title comes first."""
    is_right: bool
    folds: bool
    """Whether its cells are sentences."""

    @property
    def width(self) -> int:
        """The width of the widest cell, with the title."""
        return max(map(cell_len, self.cells))

    @property
    def least_width(self) -> int:
        """The least width of the column with its title, or all of it, folded between words."""
        title, *cells = self.cells
        if not self.folds:
            return max(map(cell_len, [*title.split(), *cells, ""]))
        longest = max(map(cell_len, " ".join(self.cells).split(" ")))
        return max(longest, min(_LEAST_FOLDED, self.width))


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    free: Collection[int] = (),
    right: Collection[int] = (),
) -> None:
    """Print what `table_lines` makes for the standard output.

    Args:
        header: the titles.
        rows: the cells.
        free: columns of sentences, which may be folded.
        right: columns that end at the right.
    """
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
    for number, texts in enumerate(zip(header, *rows, strict=True)):
        printable_cells = list(map(printable, texts))
        columns.append(_Column(printable_cells, number in right, number in free))
    if cells is None or _widths(columns, cells):
        return _block(columns, cells)
    blocks = _split(columns, cells)
    lines = []
    for block in blocks:
        lines += [*_block(block, cells), ""]
    note = f"({cells} characters have no room for all columns side by side; a pipe has)"
    return [*(lines or _lists(columns, cells)), *fold(note, cells)]


def _widths(columns: Sequence[_Column], cells: int | None) -> list[int]:
    """The width of each column; empty: they have no room side by side."""
    widths = [column.width for column in columns]
    slack = [column.width - column.least_width for column in columns]
    while cells is not None and sum(widths) + 2 * len(widths) - 2 > cells:
        # a cell less for the column that can spare most, until all fit or none can
        number = slack.index(max(slack))
        if not slack[number]:
            return []
        slack[number] -= 1
        widths[number] -= 1
    return widths


def _split(columns: Sequence[_Column], cells: int) -> list[list[_Column]]:
    """The columns in blocks, each behind the first column; empty: hardly one has room beside it."""
    lead, *remaining = columns
    blocks = [[lead]]
    for column in remaining:
        if not _widths([*blocks[-1], column], cells):
            blocks.append([lead])
        # even where it has no room beside the names: then the blocks are given up below
        blocks[-1].append(column)
    is_readable = len(blocks) <= len(columns) / _LEAST_COLUMNS
    return (
        blocks if is_readable and all(_widths(block, cells) for block in blocks) else []
    )


def _block(columns: Sequence[_Column], cells: int | None) -> list[str]:
    widths = _widths(columns, cells)
    lines = []
    for number, row in enumerate(
        zip(*(column.cells for column in columns), strict=True)
    ):
        if number == 0 and not any(row):
            continue
        for parts in zip_longest(*map(fold, row, widths), fillvalue=""):
            line = ""
            for column, width, part in zip(columns, widths, parts, strict=True):
                # cells, not characters: one of Chinese takes two
                blanks = " " * (width - cell_len(part))
                line += blanks + part if column.is_right else part + blanks
                line += "  "
            lines.append(line.rstrip())
    return lines


def _lists(columns: Sequence[_Column], cells: int) -> list[str]:
    """The cells of each row below its name, behind their titles."""
    titles, *rows = zip(*(column.cells for column in columns), strict=True)
    indent = 2 + max(map(cell_len, titles[1:]))
    lines = []
    for row in rows:
        lines += fold(f"{titles[0]} {row[0]}".strip(), cells)
        for title, cell in zip(titles[1:], row[1:], strict=True):
            if cell:
                lines += definition(f"  {title}", cell, indent, cells)
    return lines


def definition(term: str, meaning: str, indent: int, cells: int) -> Iterator[str]:
    """Lines of a term with its meaning beside it, or below it where it is longer than `indent`.

    Args:
        term: what stands in front.
        meaning: what it means, folded.
        indent: the width that terms have, before two blanks.
        cells: the width of a line.
    """
    room = cells - indent - 2
    if room < _LEAST_FOLDED:
        indent = 2
        room = cells - 4
    parts = fold(meaning, room)
    if cell_len(term) > indent:
        yield from fold(term, cells)
    else:
        yield f"{term}{' ' * (indent + 2 - cell_len(term))}{parts.pop(0)}"
    for part in parts:
        yield " " * (indent + 2) + part


def fold(sentence: str, cells: int) -> list[str]:
    """The text in lines of at most so many cells, but for longer words."""
    if cell_len(sentence) <= cells:
        return [sentence]
    lines = [""]
    for piece in sentence.split():
        line = f"{lines[-1]} {piece}".lstrip()
        if cell_len(line) <= cells or not lines[-1]:
            lines[-1] = line
        else:
            lines.append(piece)
    return lines
