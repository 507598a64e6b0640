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
    from ..report.compare import Comparison
    from ..report.compare_runs import Column

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
            help="A row a run, by this column, such as time_to_train_s; -COLUMN: falling.",
            metavar="COLUMN",
        ),
    ] = None,
    html: Annotated[Path | None, output_file("Write a page with a row a run, to be sorted")] = None,
    plot: Annotated[Path | None, output_file("Draw accuracy by epoch and by time as SVG")] = None,
    as_json: Json = False,
) -> None:
    """Compare logs, runs or submissions side by side, each with the first.

    Hyper-parameters with differences marked `*`, clocks, accuracy by epoch and seconds, and the
    first evaluation at which two curves differ by more than the run-to-run spread. From four runs
    on (or with `--sort`) each is a row, with what differs and the ratios to the first.

    Example: `rn50 log compare results/quick/20261121T110041Z results/quick/20261121T110158Z`

    Example: `rn50 log compare results/quick results/smoke --plot curves.svg`

    Example: `rn50 log compare results/quick --sort time_to_train_s --html runs.html`
    """
    from ..report.compare import compare, read_all
    from ..report.compare_runs import ROWS_FROM, columns_of, order_of
    from ..report.compare_view import divergence_lines, to_json

    comparison = compare(read_all(paths))
    columns = columns_of(comparison)
    order = order_of(columns, sort, len(comparison.subjects))
    if plot is not None:
        from ..report.plots import write_plot

        write_plot(comparison, plot)
    if html is not None:
        from ..report.compare_page import write_page

        write_page(comparison, columns, order, sort, html)
    if as_json:
        print_json(to_json(comparison, columns, order), allow_nan=False)
        return
    in_rows = sort is not None or len(order) >= ROWS_FROM
    lines = list(comparison.same_files) if in_rows else divergence_lines(comparison)
    if in_rows:
        _print_rows(comparison, columns, order)
    else:
        _print_columns(comparison)
    for note in (note for subject in comparison.subjects for note in subject.notes):
        say(f"rn50: note: {note}", to=sys.stderr)
    if lines:
        print()
        for line in lines:
            say(line)


def _print_columns(comparison: Comparison) -> None:
    """A column a run."""
    from ..report.compare_view import name_of

    letters = comparison.letters
    named = zip(letters, comparison.subjects, strict=True)
    print_table(("", "run"), [(letter, name_of(subject)) for letter, subject in named], free=(1,))
    tables = (
        ("submission", comparison.submissions),
        ("hyper-parameters", comparison.parameters),
        ("config", comparison.config),
        ("clocks", comparison.times),
        ("accuracy", comparison.curve),
    )
    for title, rows in tables:
        if rows:
            print()
            marked = [("*" if row.differs else "", row.name, *row.cells) for row in rows]
            values = range(2, 2 + len(letters))
            print_table(("", title, *letters), marked, free=values)


NAME_CELLS = 34
"""Of a run's name or a value in a row; a longer one is folded."""


def _print_rows(comparison: Comparison, columns: Sequence[Column], order: Sequence[int]) -> None:
    """A row a run, in tables of a page's width: the results with the names, then what differs."""
    from ..report.compare_runs import RESULTS, shared_parameters
    from ..report.compare_view import name_of

    page, letter_cells = page_cells(), 2 + max(map(len, comparison.letters))
    leads = {RESULTS: [comparison.letters, tuple(map(name_of, comparison.subjects))]}
    for group, found in groupby(columns, key=lambda column: column.group):
        lead = leads.get(group, [comparison.letters])
        taken = sum(min(NAME_CELLS, max(map(len, cells))) + 2 for cells in lead)
        if group != RESULTS:
            print(f"\n{group}")
        for number, block in enumerate(_blocks(found, page - taken, page - letter_cells)):
            if number:
                print()
            titles = ["", "run"][: len(lead)] + [fold_title(one) for one in block]
            most = max(title.count("\n") for title in titles)
            cells = list(zip(*lead, *(one.cells for one in block), strict=True))
            numbers = range(len(lead), len(titles))
            print_table(
                tuple("\n" * (most - title.count("\n")) + title for title in titles),
                [cells[row] for row in order],
                free=range(1, len(titles)),
                right=[at for at, one in zip(numbers, block, strict=True) if one.is_number],
                paged=True,
            )
            lead = lead[:1]
    if same := shared_parameters(comparison):
        print()
        print(textwrap.fill("the same in all: " + ", ".join(map(" ".join, same)), page))


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
