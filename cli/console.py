"""What the commands share: arguments, tables, progress.

No framework loads here, and rich's bars (40 ms) only where one is drawn.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config.choices import LAUNCHERS
from ..config.names import list_presets, list_systems, nearest_name
from ..host.atomic import check_output, is_stdout
from ..host.errors import UserError
from ..host.exit_codes import EXIT_BAD
from ..host.finding import clock_time, printable
from ..host.progress import Advance
from ..host.progress import say as say
from ..host.progress import say_aside as say_aside
from ..host.reading import JsonObject
from .tables import print_table as print_table
from .usage import Group

if TYPE_CHECKING:
    from rich.progress import Progress

_BAR_EVERY_S = 0.2
_LINE_EVERY_S = 10.0
_LINE_EVERY = 0.05
"""A share of the time so far: a search of a day prints some hundred lines, not 8,640."""

TYPER_OPTIONS: JsonObject = {
    "cls": Group,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
}


def option(help: str, *names: str, **more: Any) -> Any:
    """An option of a command; without a name it has the parameter's."""
    return typer.Option(*names, help=help, **more)


def argument(help: str, **more: Any) -> Any:
    """An argument of a command."""
    return typer.Argument(help=help, **more)


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Complete, for a shell, the names that begin with what is typed."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


complete_preset = completing(list_presets)
complete_system = completing(list_systems)


def complete_key(incomplete: str) -> list[str]:
    """Complete, for a shell, the keys of a config that begin with what is typed, and `=`."""
    from ..config.reference import all_keys  # pydantic: 0.2 s

    # neither sections nor entries of a list, which no override sets
    keys = (key.path for key in all_keys() if key.values and "[]" not in key.path)
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def choices(names: Collection[str]) -> JsonObject:
    """The arguments of an option with these values: shown by --help, offered by completion, and
    refused with the nearest of them."""

    def check(context: typer.Context, option: typer.CallbackParam, value: Any) -> Any:
        """Refuse a value that is none of the names."""
        # one word, several of an option that may be repeated, or None
        values = [value] if isinstance(value, str) else value or ()
        for name in values:
            # where a shell completes a word, it is not finished and may be no name yet
            if name not in names and not context.resilient_parsing:
                expected = f"--{option.name}: {', '.join(names)} expected"
                raise UserError(f"{expected}, found {name}{nearest_name(name, names)}")
        return value

    return {
        "metavar": "|".join(names),
        "autocompletion": completing(lambda: names),
        "callback": check,
    }


def print_version(is_asked: bool) -> None:
    """The callback of `--version`."""
    if is_asked:
        from .. import __version__

        print(f"rn50 {__version__}")
        raise typer.Exit


Config = Annotated[
    str,
    argument(
        "A preset's name (`rn50 config list`) or a YAML file.",
        autocompletion=complete_preset,
    ),
]
ConfigToResume = Annotated[
    str | None,
    argument(
        "A preset or a YAML file; default: quick, or the config to resume.",
        autocompletion=complete_preset,
    ),
]
Overrides = Annotated[
    list[str] | None,
    argument(
        "`key.path=value`, such as `batch.per_rank=16`.",
        show_default=False,
        autocompletion=complete_key,
    ),
]


def _check_output_file(context: typer.Context, path: Path | None) -> Path | None:
    """Refuse, before the command begins, what cannot be written; `-` has the standard output."""
    if path is not None and not context.resilient_parsing:
        check_output(path)
        if is_stdout(path):
            context.with_resource(redirect_stdout(sys.stderr))  # tables, messages
    return path


def output_file(what: str, *names: str) -> Any:
    """An option that names a file for `write_output`; its default is None."""
    sentence = f"{what}; `-`: standard output."
    return option(sentence, *names, metavar="FILE", callback=_check_output_file)


Json = Annotated[bool, option("Print JSON for programs.", "--json")]
Ranks = Annotated[
    int | None,
    option("Ranks on this machine, instead of the config's nodes and ranks.", min=1),
]


Nodes = Annotated[int | None, option("Nodes, instead of the config's.", min=1)]


def machine_option(help: str) -> Any:
    """`--system MACHINE`, a name or a YAML file."""
    return option(help, "--system", metavar="MACHINE", autocompletion=complete_system)


SystemName = Annotated[
    str | None,
    machine_option(
        "Run the config's ranks on it: a name in `config/system/` or a YAML file."
    ),
]
Runs = Annotated[
    int, option("Runs one after the other, a fresh seed each.", min=1, max=100)
]
Launcher = Annotated[
    str | None,
    option(
        "Default: srun in a Slurm job, else that of Horovod's MPI, else gloo.",
        **choices(LAUNCHERS),
    ),
]


def on_machine(overrides: Sequence[str], name: str | None) -> list[str]:
    """The overrides that put a config on the machine that `--system` names, with its number of
    ranks unless they say how many nodes or ranks there are; None: the config's own machine."""
    if name is None:
        return list(overrides)
    return [*overrides, f"system={json.dumps(name)}"]


def on_nodes(overrides: list[str] | None, nodes: int | None) -> list[str]:
    """The overrides with `--nodes`, where it is given."""
    if nodes is None:
        return overrides or []
    return [*(overrides or []), f"system.nodes={nodes}"]


def named_config(config: str | None) -> str | None:
    """The config that a first argument names; None: it is none, or an override."""
    return config if config and "=" not in config else None


def aside(as_json: bool) -> AbstractContextManager[Any]:
    """A context within which all that is printed goes beside the JSON, if that is wanted."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def split_config(config: str, overrides: list[str] | None) -> tuple[str, list[str]]:
    """A first argument that is an override means the default preset."""
    if "=" in config:
        return "quick", [config, *(overrides or [])]
    return config, overrides or []


class Estimate:
    """How far the work is, in words.

    Its time left is by the mean rate up to the last piece, so that it falls steadily
    until the next one."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()
        self._last_s = self._begun_s
        self._first: int | None = None  # work of an earlier attempt is not our rate
        self._done = 0
        self._total = 0
        self._detail = ""

    def note(self, done: int, total: int, detail: str) -> None:
        """`done` of `total` pieces are done."""
        if self._first is None:
            self._first = done
        if done != self._done:
            self._last_s = time.monotonic()
        self._done = done
        self._total = total
        self._detail = detail

    def __str__(self) -> str:
        now_s = time.monotonic()
        pieces = self._done - (self._first or 0)
        parts = []
        if self._total > 1:
            parts.append(f"{self._done:,} of {self._total:,}")
        if self._detail:
            parts.append(self._detail)
        if pieces > 0:
            # the first pieces may be done within a tick of the clock
            rate = pieces / max(self._last_s - self._begun_s, 1e-9)
            left_s = self._last_s + (self._total - self._done) / rate - now_s
            parts += [pace(rate), f"{clock_time(max(left_s, 0.0))} left"]
        else:
            parts.append(f"for {clock_time(now_s - self._begun_s)}")
        return printable(", ".join(parts))


def track(name: str, *, ticks: bool = False) -> Advance:
    """Show on stderr how far a long work is: a bar on a terminal, else a line now and then. Returns
    the callback for (done, total).

    Args:
        name: what the work does.
        ticks: the bar moves between two calls too, by a thread: for work that does not fork.
    """
    say_aside(f"{name} ...")
    estimate = Estimate()
    bar = None
    if sys.stderr.isatty():
        bar = _bar(name, estimate, ticks=ticks)
    begun_s = shown_s = time.monotonic()

    def advance(done: int, total: int, detail: str = "") -> None:
        """Note how far the work is, and show it where that is due."""
        nonlocal shown_s
        estimate.note(done, total, detail)
        now_s = time.monotonic()
        if bar is not None and done == total:
            bar.stop()
        every_s = max(_LINE_EVERY_S, _LINE_EVERY * (now_s - begun_s))
        # with `ticks` a thread draws at its own rate, and needs the newest figure alone
        if bar is not None:
            every_s = 0.0 if ticks else _BAR_EVERY_S
        if done == total or now_s < shown_s + every_s:
            return
        shown_s = now_s
        if bar is None:
            say_aside(f"{name}: {estimate}")
        else:
            bar_total = total if total > 1 else None  # None: the bar only moves
            bar.update(bar.task_ids[0], completed=done, total=bar_total)
            bar.start()
            bar.refresh()

    return advance


def _bar(name: str, estimate: Estimate, *, ticks: bool) -> Progress:
    """A bar below what is printed, which it does not wrap, and gone when it is stopped. The words
    of its `estimate` are made anew whenever it is drawn."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[estimate]}", markup=False),
        console=Console(stderr=True, soft_wrap=True),
        auto_refresh=ticks,
        refresh_per_second=2,
        transient=True,
        # what is printed meanwhile goes above the bar; a file must not get its codes
        redirect_stdout=sys.stdout.isatty(),
    )
    bar.add_task(printable(name), estimate=estimate)
    atexit.register(bar.stop)  # after an error too: it hides the cursor
    return bar


def pace(per_s: float) -> str:
    """A rate of pieces of work, by the piece where one takes seconds."""
    if per_s < 1:
        return f"{1 / per_s:,.0f} s each"
    return f"{per_s:,.0f}/s"


def exit_bad_if(condition: object) -> None:
    """End the command with EXIT_BAD where its subject is not good."""
    if condition:
        raise typer.Exit(EXIT_BAD)


def print_json(content: Any, **options: Any) -> None:
    """What `--json` prints."""
    print(json.dumps(content, indent=1, **options))


def with_unit(value: float | None, unit: str, digits: int) -> str:
    """A figure for people; `-`: it is not known."""
    return "-" if value is None else f"{value:.{digits}f} {unit}".rstrip()
