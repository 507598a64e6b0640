"""Help in any terminal, and what is wrong with a command line as one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.cells import cell_len
from typer.core import TyperGroup

from ..config.errors import UserError
from .tables import definition, fold, line_cells

_CONTEXT = TyperGroup.context_class
_MOST_CELLS = 100
"""Of a line of prose."""
_WIDEST_TERM = 30


class Help(_CONTEXT.formatter_class):  # type: ignore[misc,name-defined]
    """Lays help out in lines of the terminal's width; no word is broken or left out."""

    def __init__(self, **_: object) -> None:
        super().__init__(width=10_000)  # a list's first sentences stay whole
        self._cells = min(line_cells(), _MOST_CELLS)

    def _write_lines(self, lines: Iterable[str]) -> None:
        indent = " " * self.current_indent
        self.buffer += [f"{indent}{line}".rstrip() + "\n" for line in lines]

    def _fold(self, text: str) -> list[str]:
        return fold(" ".join(text.split()), self._cells - self.current_indent)

    def write_usage(self, prog: str, args: str = "", **_: object) -> None:
        self._write_lines(self._fold(f"Usage: {prog} {args}"))

    def write_text(self, text: str) -> None:
        for number, paragraph in enumerate(text.split("\n\n")):
            if number:
                self.write_paragraph()
            self._write_lines(self._fold(paragraph))

    def write_dl(self, rows: Sequence[tuple[str, str]], *_: int, **__: int) -> None:
        indent = min(_WIDEST_TERM, max(cell_len(term) for term, _ in rows))
        cells = self._cells - self.current_indent
        for term, meaning in rows:
            if cell_len(term) > cells:
                term = term.replace("|", " | ")  # between which it is folded
            self._write_lines(definition(term, meaning, indent, cells))


_CONTEXT.formatter_class = Help


class Group(TyperGroup):
    """Commands; alone it prints its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])


@contextmanager
def refusing() -> Iterator[None]:
    """What Typer refuses becomes a UserError, which names the command."""
    try:
        yield
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "rn50"
        raise UserError(f"{path}: {error.format_message()}") from None
