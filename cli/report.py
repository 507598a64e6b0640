"""`rn50 log compare` and `rn50 log report`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.atomic import is_stdout, write_output
from .console import Json, output_file, print_json, print_table, say
from .log import log_app

if TYPE_CHECKING:
    from ..report.compare import Comparison

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
    by: Annotated[
        str | None,
        typer.Option(
            help="Group the runs by this key of their configs, or column: mean and range of each.",
            metavar="KEY",
        ),
    ] = None,
    html: Annotated[Path | None, output_file("Write a page with a row a run, to be sorted")] = None,
    as_json: Json = False,
) -> None:
    """Compare logs, runs or submissions, each with the first.

    Each is a row: results, what differs (hyper-parameters, config,
    submission), the clocks, and the first evaluation at which two curves differ by more than the
    run-to-run spread. What is the same in all follows below the tables.

    Example: `rn50 log compare results/quick/20261121T110041Z results/quick/20261121T110158Z`

    Example: `rn50 log compare results/quick --sort time_to_train_s --html runs.html`

    Example: `rn50 log compare results/lrstudy --by optimizer.base_lr --html study.html`
    """
    from ..report.compare import compare, order_of, read_all, to_json
    from ..report.groups import group_by, group_table

    comparison = compare(read_all(paths))
    order = order_of(comparison.columns, sort, len(comparison.subjects))
    groups = group_by(comparison, by) if by is not None else []
    if html is not None:
        from ..report.html import render_comparison

        write_output(html, render_comparison(comparison, order, sort, groups, by))
    if as_json:
        found = {"groups": [group.to_dict() for group in groups]} if groups else {}
        print_json(to_json(comparison, order) | found, allow_nan=False)
        return
    if by is not None:
        print_table(*group_table(groups, by))
        print()
    _print_rows(comparison, order)
    for note in (note for subject in comparison.subjects for note in subject.notes):
        say(f"rn50: note: {note}", to=sys.stderr)
    if comparison.sentences:
        print()
    for line in comparison.sentences:
        say(line)


_MOST_COLUMNS = 10
"""Of a table, so that a terminal of 80 characters has room for each."""


def _print_rows(comparison: Comparison, order: Sequence[int]) -> None:
    """Tables by group, a row a run: the results with the runs' names, then what differs."""
    lead = {"": comparison.letters, "run": comparison.names}
    for group, found in groupby(comparison.table, key=lambda column: column.group):
        columns = list(found)
        if len(lead) == 1:
            print(f"\n{group}")
        for first in range(0, len(columns), _MOST_COLUMNS):
            shown = columns[first : first + _MOST_COLUMNS]
            cells = list(zip(*lead.values(), *(one.cells for one in shown), strict=True))
            print_table(
                (*lead, *(one.title for one in shown)),
                [cells[row] for row in order],
                right=[at for at, one in enumerate(shown, len(lead)) if one.is_number],
            )
            lead = {"": comparison.letters}
    shared = [*((one.title, one.cells[0]) for one in comparison.alike), *comparison.shared]
    if shared:
        print()
        say(f"the same in all: {', '.join(map(' '.join, shared))}")


@log_app.command("report")
def log_report(
    path: Annotated[
        Path, typer.Argument(help="A log, the folder of a run, or a submission's directory.")
    ],
    out: Annotated[
        Path | None, output_file("The file; default: report.html in the folder, for a log here")
    ] = None,
) -> None:
    """Write a self-contained page on a run: verdicts, curves, clocks, schedule, config.

    Example: `rn50 log report results/quick/20261121T110041Z --out report.html`

    Example: `rn50 log report results/quick/20261121T110041Z --out - | gzip >report.html.gz`
    """
    from ..report.write import write_report

    written = write_report(path, out)
    if not is_stdout(written):
        say(str(written))
