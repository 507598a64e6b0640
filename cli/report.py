"""`rn50 log compare` and `rn50 log report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..config.atomic import is_stdout
from .console import Json, machine_option, output_file, print_json, print_table, say
from .log import log_app

Paths = Annotated[
    list[Path],
    typer.Argument(help="Logs, folders of runs, or directories of submissions.", metavar="PATH..."),
]


@log_app.command("compare")
def log_compare(
    paths: Paths,
    plot: Annotated[Path | None, output_file("Draw accuracy by epoch and by time as SVG")] = None,
    as_json: Json = False,
) -> None:
    """Compare logs, runs or submissions side by side, each with the first.

    Hyper-parameters with differences marked `*`, clocks, accuracy by epoch and seconds, and the
    first evaluation at which two curves differ by more than the run-to-run spread.

    Example: `rn50 log compare results/quick/20261121T110041Z results/quick/20261121T110158Z`

    Example: `rn50 log compare results/quick results/smoke --plot curves.svg`
    """
    from ..report.compare import compare, read_all
    from ..report.compare_view import divergence_lines, name_of, to_json

    comparison = compare(read_all(paths))
    if plot is not None:
        from ..report.plots import write_plot

        write_plot(comparison, plot)
    if as_json:
        print_json(to_json(comparison), allow_nan=False)
        return
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
    for note in (note for subject in comparison.subjects for note in subject.notes):
        say(f"rn50: note: {note}", to=sys.stderr)
    if lines := divergence_lines(comparison):
        print()
        for line in lines:
            say(line)


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
