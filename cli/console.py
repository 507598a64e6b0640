"""What the commands share: arguments, tables, progress bars.

No framework loads here, and rich (40 ms) only where it draws: checking a log takes 30 ms.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ..config.atomic import check_output, is_stdout
from ..config.choices import LAUNCHERS
from ..config.errors import UserError
from ..config.finding import printable
from ..config.progress import Advance

if TYPE_CHECKING:
    from rich.table import Table

EXIT_BAD = 1
EXIT_USAGE = 2
EXIT_STOPPED = 130

TYPER_OPTIONS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,
    "add_completion": False,
}


def choices(names: Iterable[str]) -> dict[str, Any]:
    """Of an option with these values: shown by --help, offered by a shell's completion.

    What is not among them is refused where it is used, in one line.
    """
    return {
        "metavar": "|".join(names),
        "autocompletion": lambda incomplete: [n for n in names if n.startswith(incomplete)],
    }


def complete_preset(incomplete: str) -> list[str]:
    """For a shell's completion; it offers files where no preset begins so."""
    from ..config.names import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


def complete_system(incomplete: str) -> list[str]:
    """The machines of `config/system/`, for a shell's completion."""
    from ..config.names import list_systems

    return [name for name in list_systems() if name.startswith(incomplete)]


def complete_key(incomplete: str) -> list[str]:
    """The keys of a config, for a shell's completion."""
    from ..config.reference import all_keys

    return [path for path in all_keys() if path.startswith(incomplete)]


def print_version(wanted: bool) -> None:
    """The callback of `--version`."""
    if wanted:
        from .. import __version__

        print(f"rn50 {__version__}")
        raise typer.Exit


Config = Annotated[
    str,
    typer.Argument(
        help="A preset's name (`rn50 config list`) or a YAML file.", autocompletion=complete_preset
    ),
]
ConfigToResume = Annotated[
    str | None,
    typer.Argument(
        help="A preset or a YAML file; default: quick, or the config to resume.",
        autocompletion=complete_preset,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="`key.path=value`, such as `batch.per_rank=16`.", show_default=False),
]


def _claim_stdout(context: typer.Context, option: str) -> None:
    """Only one option of a command may have the standard output to itself."""
    other = context.meta.setdefault("rn50.stdout", option)
    if other != option:
        raise UserError(
            f"{option}: a file expected, as {other} has the standard output, found that as well"
        )


def _json_alone(context: typer.Context, wanted: bool) -> bool:
    if wanted and not context.resilient_parsing:
        _claim_stdout(context, "--json")
    return wanted


def _check_output_file(
    context: typer.Context, parameter: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Before the command begins: refuse what cannot be written; `-` has the standard output."""
    if path is not None and not context.resilient_parsing:
        check_output(path)
        if is_stdout(path):
            _claim_stdout(context, parameter.opts[0])
            context.with_resource(redirect_stdout(sys.stderr))  # tables, messages
    return path


def output_file(what: str, *names: str) -> Any:
    """An option that names a file for `write_output`; its default is None.

    Args:
        what: its help, a clause without a full stop.
        names: of the option, if not the argument's.
    """
    return typer.Option(
        *names,
        help=f"{what}; `-`: standard output.",
        metavar="FILE",
        callback=_check_output_file,
    )


Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs.", callback=_json_alone)
]
Ranks = Annotated[
    int | None,
    typer.Option(min=1, help="Ranks on this machine, instead of the config's nodes and ranks."),
]


def machine_option(help: str) -> Any:
    """`--system MACHINE`, a name or a YAML file."""
    return typer.Option("--system", metavar="MACHINE", help=help, autocompletion=complete_system)


SystemName = Annotated[
    str | None,
    machine_option("Run the config's ranks on it: a name in `config/system/` or a YAML file."),
]
Runs = Annotated[
    int, typer.Option(min=1, max=100, help="Runs one after the other, a fresh seed each.")
]
Launcher = Annotated[
    str | None,
    typer.Option(
        help="Default: srun in a Slurm job, else that of Horovod's MPI, else gloo.",
        **choices(LAUNCHERS),
    ),
]


def split_config(config: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """A first argument that is an override means the default preset."""
    if "=" in config:
        return "quick", [config, *(overrides or [])]
    return config, overrides or []


REPORT_S = 30.0
"""Between two lines of progress where no terminal shows a bar: the log of a job."""


class Tracking:
    """Progress on stderr: `track(name)` gives the callback (done, total) of a named task.

    A bar with rate and time left on a terminal; elsewhere a line now and then.
    """

    def __enter__(self) -> Callable[[str], Advance]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Rate(ProgressColumn):
            def render(self, task: Task) -> Text:
                speed = task.finished_speed or task.speed
                return Text(pace(speed) if speed else "")

        text = partial(TextColumn, markup=False)  # brackets of a name are no style
        console = Console(stderr=True)
        self._is_terminal = console.is_terminal
        self._bars = Progress(
            *(text("{task.description}"), BarColumn(), text("{task.fields[count]}")),
            *(Rate(), TimeRemainingColumn(), text("{task.fields[detail]}")),
            console=console,
            disable=not self._is_terminal,
        )
        self._started = False
        return self._track

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._bars.stop()

    def _track(self, name: str) -> Advance:
        name = printable(name)
        print(f"{name} ...", file=sys.stderr, flush=True)
        self._bars.start()
        self._started = True
        task = self._bars.add_task(name, total=None, count="", detail="")
        begun_s = told_s = time.monotonic()
        before: float | None = None

        def advance(done: int, total: int, detail: str = "", begun: float = 0.0) -> None:
            nonlocal told_s, before
            detail = printable(detail)
            worked = done + begun
            count = f"{done:,}/{total:,}"
            self._bars.update(task, completed=worked, total=total, count=count, detail=detail)
            if done == total:
                self._bars.stop()
            now_s = time.monotonic()
            before = worked if before is None else before  # of an earlier attempt: not our rate
            if self._is_terminal or now_s < told_s + REPORT_S or done >= total:
                return
            told = [detail] if detail else []
            if worked > before:
                rate = (worked - before) / (now_s - begun_s)
                told += [pace(rate), f"{(total - worked) / rate / 60:.1f} min left"]
            if told:
                told_s = now_s
                count = f"{done:,} of {total:,}"
                print(f"{name}: {count}, {', '.join(told)}", file=sys.stderr, flush=True)

        return advance


def pace(per_s: float) -> str:
    """A rate of pieces of work, by the piece where one takes seconds."""
    return f"{per_s:,.0f}/s" if per_s >= 1 else f"{1 / per_s:,.0f} s each"


def print_json(content: Any, **options: Any) -> None:
    """What `--json` prints."""
    print(json.dumps(content, indent=1, **options))


def say(line: str, *, to: TextIO | None = None) -> None:
    """Print one line; a name in it can neither begin another nor steer the terminal."""
    print(printable(line), file=to, flush=True)


FREE_CELLS = 12
"""What a free column keeps at least: a long number is broken once, not into letters."""
GAP = "  "


PAGE_CELLS = 120
"""Width of a page of text on a pipe."""


def page_cells() -> int:
    """Width of the terminal, or of a page on a pipe."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else PAGE_CELLS


def print_table(
    header: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    free: Collection[int] = (),
    right: Collection[int] = (),
    paged: bool = False,
) -> None:
    """A plain table, on a pipe as wide as it needs to be.

    A terminal's width folds text between words, so that a key or a `file:line` stays whole; where
    even that is too wide, each row is a block of lines.

    Args:
        header: a title for each column, "" for none; it may have several lines.
        rows: cells as text; nothing in them obeys a terminal's orders.
        free: columns, such as values, whose words may be broken where there is no room.
        right: columns that end at the right.
        paged: on a pipe no wider than a page.
    """
    from rich.cells import cell_len
    from rich.console import Console

    rows = [tuple(map(printable, row)) for row in rows]
    columns = list(zip(header, *rows, strict=True))
    widths = [
        max(cell_len(line) for cell in cells for line in cell.split("\n")) for cells in columns
    ]
    console = Console()
    if console.is_terminal or paged:
        page = page_cells()
        least = [
            max((cell_len(word) for cell in cells for word in cell.split()), default=0)
            for cells in columns
        ]
        for number in free:
            least[number] = min(least[number], FREE_CELLS)
        fitting = fit_columns(widths, least, page - len(GAP) * (len(columns) - 1))
        if fitting is None:
            titles = [title.replace("\n", " ") for title in header]
            print("\n".join(stack_rows(titles, rows, page)))
            return
        widths = fitting
    table = plain_table(header, rows, widths, right)
    wide = Console(width=max(sum(widths) + len(GAP) * len(widths), 1))
    if console.is_terminal:
        wide.print(table)
        return
    with wide.capture() as shown:
        wide.print(table)
    print("\n".join(line.rstrip() for line in shown.get().splitlines()))


def plain_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    right: Collection[int] = (),
) -> Table:
    """A table without lines; nothing in its cells is read as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=any(header), show_edge=False, padding=(0, 0))
    for number, (title, width) in enumerate(zip(header, widths, strict=True)):
        justify: Any = "right" if number in right else "left"
        table.add_column(Text(title), width=width, overflow="fold", justify=justify)
        if number + 1 < len(widths):
            table.add_column(width=len(GAP))
    for row in rows:
        table.add_row(*[cell for text in row for cell in (Text(text), "")][:-1])
    return table


def fit_columns(natural: Sequence[int], least: Sequence[int], available: int) -> list[int] | None:
    """Widths of columns that fit into `available`: the widest give way first. None: too narrow.

    Args:
        natural: width of the longest cell of each column.
        least: what each column needs.
    """
    for most in range(max(natural, default=0), -1, -1):
        widths = [max(low, min(wide, most)) for wide, low in zip(natural, least, strict=True)]
        if sum(widths) <= available:
            return widths
    return None


def stack_rows(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A table for a narrow terminal: a row's first cell on a line, the others below."""
    import textwrap

    lines = []
    for row in rows:
        cells = [(title, cell) for title, cell in zip(header, row, strict=True) if cell]
        lines.append(cells[0][1] if cells else "")
        for title, cell in cells[1:]:
            text = f"{title}: {cell}" if title else cell
            lines += textwrap.wrap(
                *(text, max(width, FREE_CELLS)),
                initial_indent=GAP,
                subsequent_indent=GAP * 2,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def with_unit(value: float | None, unit: str, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} {unit}".rstrip()
