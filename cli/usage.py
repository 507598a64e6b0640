"""Help in any terminal."""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len
from typer.core import TyperGroup

from .tables import definition, fold, line_cells

_CONTEXT = TyperGroup.context_class
_MOST_CELLS = 100
"""The longest line of prose, in cells of a terminal."""


class Help(_CONTEXT.formatter_class):  # type: ignore[misc,name-defined]
    """Folds each line of help to the terminal's width, the rest below the start of its meaning; no
    word is broken or left out."""

    def __init__(self, **_: object) -> None:
        super().__init__(width=10_000)  # its own folding would break words

    def getvalue(self) -> str:
        """The help, its lines folded."""
        cells = min(line_cells(), _MOST_CELLS)
        lines: list[str] = []
        for line in super().getvalue().splitlines():
            # a term is two blanks from the left, and its meaning two or more from it
            (start,) = re.findall(r"^(?: {2}\S+(?: \S+)*  +| *)", line)
            if cell_len(line) > cells and len(start) == 2:
                line = line.replace("|", " | ")  # between which a choice is folded
            if start:
                meaning = line.removeprefix(start)
                lines += definition(start.rstrip(), meaning, len(start) - 2, cells)
            else:
                lines += fold(line, cells)
        return "\n".join(lines) + "\n"


# Typer asks the context's class, so that this holds for all commands.
_CONTEXT.formatter_class = Help


class Group(TyperGroup):
    """Commands; alone it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take no arguments for `--help`."""
        return super().parse_args(ctx, args or ["--help"])
