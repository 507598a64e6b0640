"""What the commands share: arguments, tables, progress bars.

No framework loads here, and rich (40 ms) only where it draws: checking a log takes 30 ms.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from ..config.errors import UserError
from ..data.atomic import check_output, is_stdout

EXIT_BAD = 1
EXIT_USAGE = 2
EXIT_STOPPED = 130

TYPER_OPTIONS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "markdown",
    "pretty_exceptions_enable": False,
    "add_completion": False,
}

Config = Annotated[str, typer.Argument(help="A preset's name (`rn50 config list`) or a YAML file.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045 (Typer reads this at run time)
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
    Optional[int],  # noqa: UP045
    typer.Option(min=1, help="Ranks on this machine, instead of the config's nodes and ranks."),
]
Launcher = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="`mpirun`, `gloo` or `srun`; default: srun in a Slurm job, else mpirun if there is."
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

    def __enter__(self) -> Callable[[str], Callable[[int, int], None]]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
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
                return Text(f"{speed:,.0f}/s" if speed else "")

        console = Console(stderr=True)
        self._is_terminal = console.is_terminal
        self._bars = Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
            *(Rate(), TimeRemainingColumn()),
            console=console,
            disable=not self._is_terminal,
        )
        self._started = False
        return self._track

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._bars.stop()

    def _track(self, name: str) -> Callable[[int, int], None]:
        print(f"{name} ...", file=sys.stderr, flush=True)
        self._bars.start()
        self._started = True
        task = self._bars.add_task(name, total=None)
        begun_s = told_s = time.monotonic()
        before: int | None = None

        def advance(done: int, total: int) -> None:
            nonlocal told_s, before
            self._bars.update(task, completed=done, total=total)
            if done == total:
                self._bars.stop()
            now_s = time.monotonic()
            before = done if before is None else before  # of an earlier attempt: not our rate
            if not self._is_terminal and now_s >= told_s + REPORT_S and before < done < total:
                told_s = now_s
                rate = (done - before) / (now_s - begun_s)
                left = f"{rate:,.0f}/s, {(total - done) / rate / 60:.1f} min left"
                print(f"{name}: {done:,} of {total:,}, {left}", file=sys.stderr, flush=True)

        return advance


def print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A plain table; on a pipe as wide as it needs to be, so that nothing is cut."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)
    table = Table(box=None, pad_edge=False)
    for title in header:
        table.add_column(escape(title), overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def yaml_value(value: Any) -> str:
    """A value as one would write it in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def with_unit(value: float | None, unit: str, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f} {unit}".rstrip()
