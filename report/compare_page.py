"""The page of `rn50 log compare --html`: a row a run, sorted by a click, in the report's style.

It has the one script that sorts, which its Content-Security-Policy names by its digest: text of a
log that got into the page as a script would not run. It loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ..config.atomic import write_output
from .compare import Comparison
from .compare_runs import Column, shared_parameters
from .compare_view import divergence_lines, name_of
from .html import environment
from .plots import accuracy_plots


def write_page(
    comparison: Comparison,
    columns: Sequence[Column],
    order: Sequence[int],
    sort: str | None,
    path: Path,
) -> None:
    """Write the page where `--html` says. The same input makes the same page."""
    page = render_page(comparison, columns, order, sort)
    write_output(path, page)


def render_page(
    comparison: Comparison, columns: Sequence[Column], order: Sequence[int], sort: str | None
) -> str:
    """The page.

    Args:
        comparison: the runs.
        columns: of the table.
        order: of its rows, by number.
        sort: the column by which they are in that order, as `--sort` has it.
    """
    settings = environment()
    settings.filters["digest"] = _digest
    names = [name_of(subject) for subject in comparison.subjects]
    groups = [(name, len(list(found))) for name, found in groupby(columns, lambda one: one.group)]
    return settings.get_template("compare.html.j2").render(
        title=f"{len(names)} runs compared" if len(names) > 1 else names[0],
        rows=[(number, comparison.letters[number], names[number]) for number in order],
        first=names[0],
        columns=columns,
        groups=groups,
        starts=[sum(count for _, count in groups[:number]) for number in range(len(groups))],
        sorted_by=(sort or "").removeprefix("-"),
        direction="descending" if (sort or "").startswith("-") else "ascending",
        accuracy=accuracy_plots(comparison),
        shared=shared_parameters(comparison),
        sentences=divergence_lines(comparison),
        notes=[note for subject in comparison.subjects for note in subject.notes],
    )


def _digest(script: str) -> str:
    """What a Content-Security-Policy calls a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
