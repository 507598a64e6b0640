"""`rn50 runs`: the runs of this machine and of jobs in a queue, as a list and live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated

from ..host.errors import UserError
from ..host.finding import clock_time, printable
from ..logging.places import require
from ..report.runs import OPEN, QUEUED, RUNNING, STATUSES, UNKNOWN, RunRow, read_runs
from .console import Json, argument, choices, option, print_json, print_table, say_aside
from .tables import table_lines, terminal_cells

RESULTS = Path("results")
_LOOK_S = 1.0
"""The time between two looks at what the ranks have written."""
_QUEUED_LOOK_S = 5.0
"""The time between two questions to a scheduler, which has many who ask."""
Look = Callable[[Path, str | None, str | None], tuple[str, str]]
"""launch/submit.py's look_at at a job: its folder, scheduler and id give its status and why."""


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _time(row: RunRow) -> str:
    """The time, in brackets where the target was not reached: that is no time to train."""
    if row.time_to_train_s is None and row.elapsed_s is not None:
        return f"({row.elapsed_s:.1f})"
    return _figure(row.time_to_train_s, ".1f")


def _progress(row: RunRow) -> str:
    """How far a run is that has not ended: epoch, loss, time left; what a job waits for."""
    progress = row.progress
    if row.status in (QUEUED, UNKNOWN):
        return row.reason or ""
    if row.status != RUNNING:
        return ""
    if progress is None or progress.step == 0:
        return "start-up"
    line = f"epoch {progress.epoch:.2f}/{progress.epochs}"
    if progress.loss is not None:
        line += f", loss {progress.loss:.3g}"
    if progress.left_s is not None:
        line += f", {clock_time(progress.left_s)} left"
    return line


_COLUMNS: dict[str, Callable[[RunRow], str]] = {
    "status": lambda row: row.status,
    "progress": _progress,
    "time (s)": _time,
    "top-1": lambda row: _figure(row.eval_accuracy, ".4f"),
    "verdict": lambda row: row.verdict or "",
    "resume": lambda row: "yes" if row.resumable else "",
    "target": lambda row: _figure(row.target, "g"),
    "images/s": lambda row: _figure(row.images_per_s, ",.1f"),
    "ranks": lambda row: _figure(row.ranks, "d"),
}
"""The columns in the order in which a narrow terminal shows them, block below block."""


def runs(
    folders: Annotated[
        list[Path] | None,
        argument(
            "Folders of runs or above runs; default: results.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        list[str] | None,
        option("Only runs of this status; may be repeated.", **choices(STATUSES)),
    ] = None,
    name: Annotated[
        str | None, option("Only runs of this preset or name; `*` stands for anything.")
    ] = None,
    newest: Annotated[int | None, option("Only so many, the newest.", min=1)] = None,
    watch: Annotated[
        bool,
        option("Show progress live, until no run is running or queued.", "--watch"),
    ] = False,
    as_json: Json = False,
) -> None:
    """List runs, the newest first: status, time to train, accuracy, rate, verdict.

    Finds runs of this machine and of jobs in a queue, below `results` or the given folders. Times
    in brackets are of runs that did not reach their target. `resume` is `yes` where
    `rn50 launch --resume FOLDER` can resume a run; docs/how_it_works.md has the statuses.

    Example: `rn50 runs --newest 10`

    Example: `rn50 runs results/quick --status failed --status killed --json`

    Example: `rn50 runs --watch`
    """
    from ..launch.submit import look_at

    if watch and as_json:
        raise UserError("--watch and --json: one of them expected, found both")
    for folder in folders or ():
        require(folder)
        if not folder.is_dir():
            raise UserError(f"{folder}: a folder expected, found a file")
    roots = folders or [RESULTS]
    below = roots[0] if len(roots) == 1 else Path()

    # a scheduler is asked once for each job, and again only where `_watch` forgets
    state_of = cache(look_at)

    def look() -> list[RunRow]:
        """The rows as they are now, chosen and cut as asked."""
        rows = _with_jobs(read_runs(roots), state_of)
        if status:
            rows = [row for row in rows if row.status in status]
        if name is not None:
            rows = [row for row in rows if fnmatchcase(row.name or "", name)]
        return rows[:newest]

    if watch:
        _watch(look, below, state_of.cache_clear)
    elif as_json:
        print_json([row.to_dict() for row in look()], default=str)
    elif rows := look():
        print_table(*_table(rows, below))
    else:
        say_aside(f"no runs below {', '.join(map(str, roots))}")


def _with_jobs(rows: Sequence[RunRow], look_at: Look) -> list[RunRow]:
    """The rows, each with a status: a job in which no run has begun has none yet. A job that goes
    on although none of its runs does has a row of its own."""
    listed_jobs = {row.job_folder for row in rows if row.status in OPEN}
    with_jobs = []
    for row in rows:
        job = row.job_folder
        is_covered = False
        if job is not None and job not in listed_jobs:
            listed_jobs.add(job)
            status, reason = look_at(job, row.scheduler, row.job)
            if status in OPEN or not row.status:
                # what the row of its newest run says of all
                row_of_job = RunRow(
                    folder=job,
                    status=status,
                    name=row.name,
                    started=row.started,
                    target=row.target,
                    ranks=row.ranks,
                    reason=reason,
                    scheduler=row.scheduler,
                    job=row.job,
                    job_folder=job,
                )
                with_jobs.append(row_of_job)
                is_covered = row.folder == job
        if not is_covered:
            with_jobs.append(row)
    return with_jobs


def _below(folder: Path, top: Path) -> str:
    """The name of a run in a table; all of its path where it is `top` itself or lies elsewhere."""
    if folder != top and folder.is_relative_to(top):
        folder = folder.relative_to(top)
    return printable(str(folder))


def _table(
    rows: Sequence[RunRow], below: Path
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and cells; a column that is empty in all rows is left out."""
    names = [_below(row.folder, below) for row in rows]
    title = f"run in {below}"
    # a folder of the command line has no column widened
    if len(title) > max(map(len, names), default=0):
        title = "run"
    columns = {title: names}
    for title, cell in _COLUMNS.items():
        cells = list(map(cell, rows))
        if any(cells):
            columns[title] = cells
    return tuple(columns), list(zip(*columns.values(), strict=True))


def _watch(
    look: Callable[[], list[RunRow]], below: Path, forget: Callable[[], object]
) -> None:
    """Show the table, open runs first, until nothing is running or queued; without a terminal its
    end alone. `forget`: what schedulers have said of jobs, before they are asked again."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    screen = Console()
    is_live = sys.stdout.isatty() and not screen.is_dumb_terminal
    live = Live(console=screen, auto_refresh=False)
    asked_s = time.monotonic()
    with live if is_live else nullcontext():
        while True:
            if time.monotonic() >= asked_s + _QUEUED_LOOK_S:
                asked_s = time.monotonic()
                forget()
            rows = sorted(look(), key=lambda row: row.status not in OPEN)
            is_over = not any(row.status in OPEN for row in rows)
            lines = ["no runs"]
            if rows:
                lines = table_lines(*_table(rows, below), terminal_cells())
            hidden = len(lines) + 1 - screen.size.height
            # rich cannot take back what has scrolled out; the last table is shown whole
            if hidden > 0 and not is_over:
                lines[-hidden - 1 :] = [f"({hidden + 1} more lines: rn50 runs)"]
            if is_live:
                live.update(Text("\n".join(lines)), refresh=True)
            if is_over:
                break
            running = any(row.status == RUNNING for row in rows)
            time.sleep(_LOOK_S if running else _QUEUED_LOOK_S)
    if not is_live:
        print("\n".join(lines))
