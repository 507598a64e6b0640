"""`rn50 doctor`: whether this machine has what a run needs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from .console import EXIT_BAD, Json, print_json, print_table


def doctor(
    hosts: Annotated[
        list[str] | None,
        typer.Argument(help="Hosts whose names have to resolve.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look at this machine and try MXNet and DALI on its CPU and on each GPU: a row each.

    Exit code 1 if a row failed; without a GPU its rows say so and are no failure.

    Example: `rn50 doctor node2 node3`
    """
    from ..launch.doctor import FAILED, examine

    rows = list(examine(hosts or []))
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(("check", "outcome", "found"), rows)
        counts = Counter(row.outcome for row in rows).items()
        print(", ".join(f"{count} {outcome}" for outcome, count in counts))
    if any(row.outcome == FAILED for row in rows):
        raise typer.Exit(EXIT_BAD)
