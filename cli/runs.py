"""`rn50 runs`: the runs of this machine and of jobs in a queue, as a list and live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.errors import UserError
from ..config.finding import clock_time, number, printable
from ..report.runs import OPEN, RUNNING, STATUSES, Progress, RunRow, read_runs
from .console import GAP, Json, choices, plain_table, print_json, print_table, say

if TYPE_CHECKING:
    from rich.console import RenderableType

RESULTS = Path("results")
_FIGURES = 12
"""Characters of a number that a table shows in full."""
_LOOK_S = 1.0
"""Between two looks at what the ranks have written."""

_BESIDE_NAMES = 56
"""Columns of a live table that progress, epoch (12.34/100), loss, top-1, images/s and left take."""

Cell = Callable[[RunRow], str]


def _figure(value: float | None, form: str) -> str:
    if number(value) is None:
        return ""
    text = format(value, form)
    return text if len(text) <= _FIGURES else f"{value:.3g}"  # 1e308 has 309 digits


def _status(row: RunRow) -> str:
    at = row.progress
    return f"{row.status} {100 * at.step // at.steps}%" if at is not None else row.status


def _time(row: RunRow) -> str:
    """In brackets where the target was not reached: that is no time to train."""
    if row.time_to_train_s is not None:
        return _figure(row.time_to_train_s, ".1f")
    return "" if row.elapsed_s is None else f"({_figure(row.elapsed_s, '.1f')})"


_COLUMNS: dict[str, Cell] = {
    "preset": lambda row: row.name or "",
    "started (UTC)": lambda row: (row.started or "")[:16].replace("T", " "),
    "time (s)": _time,
    "top-1": lambda row: _figure(row.eval_accuracy, ".4f"),
    "target": lambda row: _figure(row.target, "g"),
    "images/s": lambda row: _figure(row.images_per_s, ",.1f"),
    "ranks": lambda row: _figure(row.ranks, "d"),
    "verdict": lambda row: row.verdict or "",
    "resume": lambda row: "yes" if row.resumable else "",
}
_LEFT_OUT_FIRST = ("preset", "started (UTC)", "ranks", "images/s", "target", "verdict")
"""On a narrow terminal; the name of a run's folder has preset and time."""


def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of runs or above runs; default: results.",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only runs of this status; may be repeated.", **choices(STATUSES)),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Only runs of this preset or name; `*` stands for anything.")
    ] = None,
    newest: Annotated[int | None, typer.Option(min=1, help="Only so many, the newest.")] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show progress live, until no run is running or queued."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List runs, the newest first: status, time to train, accuracy, rate, verdict.

    Finds runs of this machine and of jobs in a queue, below `results` or the given folders. Times
    in brackets are of runs that did not reach their target. `resume` says whether
    `rn50 launch --resume FOLDER` can go on with a run; docs/how_it_works.md has the statuses.

    Example: `rn50 runs --newest 10`

    Example: `rn50 runs results/quick --status failed --status killed --json`

    Example: `rn50 runs --watch`
    """
    if watch and as_json:
        raise UserError("--watch: no --json expected beside it")
    for wanted in set(status or ()) - set(STATUSES):
        raise UserError(f"--status: {', '.join(STATUSES)} expected, found {wanted}")
    for folder in folders or ():
        if not folder.is_dir():
            raise UserError(f"{folder}: a folder expected, found none")
    places = folders or [RESULTS]
    below = places[0] if len(places) == 1 else Path()
    known: dict[Path, RunRow] = {}

    def look() -> list[RunRow]:
        rows = list(_with_jobs(read_runs(places, known)))
        known.update((row.folder, row) for row in rows)
        fitting = [
            row
            for row in rows
            if (not status or row.status in status)
            and (name is None or fnmatchcase(row.name or "", name))
        ]
        return fitting[:newest]

    if watch:
        _watch(look, below)
    elif as_json:
        print_json([row.to_dict() for row in look()])
    elif rows := look():
        print_table(*_table(rows, _terminal_width(), below), free=(1,))
    else:
        say(f"no runs below {', '.join(map(str, places))}", to=sys.stderr)


def _with_jobs(rows: Sequence[RunRow]) -> Iterator[RunRow]:
    """The rows, each with a status: those of jobs in which no run has begun have none yet."""
    from ..launch.submit import look_at

    for row in rows:
        if row.status:
            yield row
        else:
            status, reason = look_at(row.job_folder or row.folder, row.scheduler, row.job)
            yield row._replace(status=status, reason=reason)


def _terminal_width() -> int | None:
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


def _below(folder: Path, top: Path) -> str:
    """The name of a run in a table; all of its path where it is `top` itself or lies elsewhere."""
    name = folder.relative_to(top) if folder.is_relative_to(top) else folder
    return printable(str(folder if name == Path() else name))


def _title(below: Path, names: Sequence[str]) -> str:
    title = printable(f"run in {below}")
    return title if below.name and len(title) <= max(map(len, names)) else "run"


def _table(
    rows: Sequence[RunRow], width: int | None, below: Path
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and cells; of so many columns as fit into `width`."""
    names = [_below(row.folder, below) for row in rows]
    cells = {"status": [_status(row) for row in rows], _title(below, names): names}
    cells |= {title: [cell(row) for row in rows] for title, cell in _COLUMNS.items()}
    widths = {title: max(map(len, (title, *texts))) for title, texts in cells.items()}
    for title in _LEFT_OUT_FIRST:
        if width is None or sum(widths.values()) + len(GAP) * (len(widths) - 1) <= width:
            break
        del cells[title], widths[title]
    return tuple(cells), list(zip(*cells.values(), strict=True))


def _watch(look: Callable[[], list[RunRow]], below: Path) -> None:
    """Show what runs until nothing does; without a terminal a line where a run has come on."""
    from rich.live import Live

    if _terminal_width() is None:
        _watch_lines(look)
        return
    with Live(auto_refresh=False) as live:
        while _still(rows := look()):
            live.update(_picture(rows, below, *live.console.size), refresh=True)
            time.sleep(_LOOK_S)
        live.update(_picture(rows, below, *live.console.size), refresh=True)


def _still(rows: Sequence[RunRow]) -> bool:
    """Whether more is to come."""
    return any(row.status in OPEN for row in rows)


def _watch_lines(look: Callable[[], list[RunRow]]) -> None:
    said: dict[Path, str] = {}
    while True:
        rows = look()
        for row in rows:
            line = f"{row.folder}: {_place(row)}"
            if said.get(row.folder) != line and (row.status in OPEN or row.folder in said):
                said[row.folder] = line
                say(line)
        if not _still(rows):
            return
        time.sleep(_LOOK_S)


def _place(row: RunRow) -> str:
    """How far a run is, or what became of it, in words."""
    at = row.progress
    if row.status != RUNNING:
        return f"{row.status}, {row.reason}"
    if at is None or at.step == 0:
        return f"{row.status}, in start-up"
    known = (
        ("epoch {} of {}", (f"{at.epoch:.2f}", at.epochs)),
        ("loss {}", (_figure(at.loss, ".4f"),)),
        ("top-1 {}", (_figure(row.eval_accuracy, ".4f"),)),
        ("{} images/s", (_figure(row.images_per_s, ",.1f"),)),
        ("at most {} left", (_clock(at.left_s),)),
    )
    return ", ".join(words.format(*values) for words, values in known if values[0])


def _clock(seconds: float | None) -> str:
    return "" if seconds is None else clock_time(seconds)


def _picture(rows: Sequence[RunRow], below: Path, width: int, height: int) -> RenderableType:
    """What is shown live: open runs with their progress, below them as many ended ones as fit."""
    from rich.console import Group

    at_work = [row for row in rows if row.status in OPEN]
    ended = [row for row in rows if row.status not in OPEN]
    room = max(height - len(at_work) - 5, 3)
    parts: list[RenderableType] = [_bars(at_work, below, width)] if at_work else []
    if ended:
        header, cells = _table(ended[:room], width, below)
        parts += [""] * bool(at_work) + [plain_table(header, cells)]
    if len(ended) > room:
        parts.append(f"and {len(ended) - room} more")
    return Group(*parts)


def _bars(rows: Sequence[RunRow], below: Path, width: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, len(GAP), 0, 0), pad_edge=False, expand=True)
    names = [_below(row.folder, below) for row in rows]
    room = max(width - _BESIDE_NAMES, 12)  # Rich would leave out the last column
    table.add_column(Text(_title(below, names)), overflow="fold", max_width=room)
    table.add_column("progress", ratio=1, min_width=6)
    for title in ("epoch", "loss", "top-1", "images/s", "left"):
        table.add_column(title, no_wrap=True)
    for name, row in zip(names, rows, strict=True):
        at = row.progress or Progress(0, 1, 0.0, 0, None, None)
        waiting = "start-up" if row.status == RUNNING else row.status
        table.add_row(
            Text(name),
            ProgressBar(total=at.steps, completed=at.step),
            f"{at.epoch:.2f}/{at.epochs}" if at.step else waiting,
            _figure(at.loss, ".4f"),
            _figure(row.eval_accuracy, ".4f"),
            _figure(row.images_per_s, ",.1f"),
            _clock(at.left_s),
        )
    return table
