"""`rn50 log compare` and `rn50 log report`."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.atomic import is_stdout
from .console import Json, machine_option, output_file, page_cells, print_json, print_table, say
from .log import log_app

if TYPE_CHECKING:
    from ..report.compare import Column, Comparison

Paths = Annotated[
    list[Path],
    typer.Argument(help="Logs, folders of runs, or directories of submissions.", metavar="PATH..."),
]


@log_app.command("compare")
def log_compare(
    paths: Paths,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Sort the rows by this column, such as time_to_train_s; -COLUMN: falling.",
            metavar="COLUMN",
        ),
    ] = None,
    html: Annotated[Path | None, output_file("Write a page with a row a run, to be sorted")] = None,
    as_json: Json = False,
) -> None:
    """Compare logs, runs or submissions, each with the first.

    Each is a row: results with their ratios to the first, what differs (hyper-parameters, config,
    submission), the clocks, and the first evaluation at which two curves differ by more than the
    run-to-run spread. What is the same in all follows below the tables.

    Example: `rn50 log compare results/quick/20261121T110041Z results/quick/20261121T110158Z`

    Example: `rn50 log compare results/quick --sort time_to_train_s --html runs.html`
    """
    from ..report.compare import compare, order_of, read_all, to_json

    comparison = compare(read_all(paths))
    order = order_of(comparison.table, sort, len(comparison.subjects))
    if html is not None:
        from ..config.atomic import write_output
        from ..report.html import render_comparison

        write_output(html, render_comparison(comparison, order, sort))
    if as_json:
        print_json(to_json(comparison, order), allow_nan=False)
        return
    _print_rows(comparison, order)
    for note in (note for subject in comparison.subjects for note in subject.notes):
        say(f"rn50: note: {note}", to=sys.stderr)
    if comparison.sentences:
        print()
    for line in comparison.sentences:
        say(line)


NAME_CELLS = 34
"""Of a run's name or a value in a row; a longer one is folded."""


def _print_rows(comparison: Comparison, order: Sequence[int]) -> None:
    """A row a run, in tables of a page's width: the results with the names, then what differs."""
    page, letters = page_cells(), comparison.letters
    letter_cells = 2 + max(map(len, letters))
    lead = [letters, comparison.names]
    for group, found in groupby(comparison.table, key=lambda column: column.group):
        taken = sum(min(NAME_CELLS, max(map(len, cells))) + 2 for cells in lead)
        if len(lead) < 2:
            print(f"\n{group}")
        for number, block in enumerate(_blocks(found, page - taken, page - letter_cells)):
            if number:
                print()
            titles = ["", "run"][: len(lead)] + [fold_title(one) for one in block]
            most = max(title.count("\n") for title in titles)
            cells = list(zip(*lead, *(one.cells for one in block), strict=True))
            print_table(
                tuple("\n" * (most - title.count("\n")) + title for title in titles),
                [cells[row] for row in order],
                free=range(1, len(titles)),
                right=[at for at, one in enumerate(block, len(lead)) if one.is_number],
            )
            lead = [letters]
    if comparison.shared:
        print()
        shared = ", ".join(map(" ".join, comparison.shared))
        print(textwrap.fill(f"the same in all: {shared}", page))


def _blocks(columns: Iterable[Column], left: int, width: int) -> Iterator[list[Column]]:
    """Columns that fit into one table, and those that follow; the first has `left` cells."""
    block: list[Column] = []
    for column in columns:
        longest = max(map(len, (*column.cells, *fold_title(column).split("\n"))))
        needed = 2 + min(longest, NAME_CELLS)
        if block and needed > left:
            yield block
            block, left = [], width
        block.append(column)
        left -= needed
    if block:
        yield block


def fold_title(column: Column) -> str:
    """A column's title in lines hardly longer than its cells."""
    width = max(9, *map(len, column.cells))
    lines = [""]
    for part in re.findall(r"[^\s_.]*[\s_.]?", column.title):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.strip() for line in lines)


@log_app.command("report")
def log_report(
    path: Annotated[
        Path, typer.Argument(help="A log, the folder of a run, or a submission's directory.")
    ],
    others: Annotated[
        list[Path] | None,
        typer.Option("--compare", help="A log or folder to compare with; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, output_file("The file; default: report.html in the folder, for a log here")
    ] = None,
    system: Annotated[
        str | None,
        machine_option(
            "Predict the recipe on this machine (`config/system/`); default: on its own."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="Accelerators of the prediction; default: the run's ranks."),
    ] = None,
) -> None:
    """Write a self-contained page on a run: verdicts, curves, clocks, schedule, config.

    Example: `rn50 log report results/quick/20261121T110041Z --out report.html`

    Example: `rn50 log report results/quick/20261121T110041Z --out - | gzip >report.html.gz`

    Example: `rn50 log report result_0.txt --system dgxa100 --gpus 64`
    """
    from ..report.write import write_report

    written = write_report(path, out, others or (), system, gpus)
    if not is_stdout(written):
        say(str(written))
