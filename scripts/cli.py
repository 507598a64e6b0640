"""The `rn50` command. Frameworks load inside the commands that need them, never here."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperGroup

from ..config.errors import UserError
from . import cli_report  # noqa: F401 (adds its commands to log_app)
from .cli_bench import bench_app
from .cli_data import data_app
from .cli_log import log_app
from .cli_predict import predict
from .cli_submit import submit
from .cli_sweep import sweep
from .console import (
    EXIT_BAD,
    EXIT_STOPPED,
    EXIT_USAGE,
    TYPER_OPTIONS,
    Config,
    Json,
    Launcher,
    Overrides,
    Ranks,
    Tracking,
    print_table,
    split_config,
    yaml_value,
)
from .ending import Stopped, asked_by, command_stopped


class Commands(TyperGroup):
    """Takes Ctrl-C past Typer, which would end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise _Interrupted(stop) from None


app = typer.Typer(
    help="Train ResNet-50 against the clock, MLPerf style, and prove it.",
    cls=Commands,
    **TYPER_OPTIONS,
)
config_app = typer.Typer(help="Look at configs and check them.", **TYPER_OPTIONS)
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(log_app, name="log")
app.add_typer(bench_app, name="bench")
app.command("predict")(predict)
app.command("submit")(submit)
app.command("sweep")(sweep)


class _Interrupted(Exception):
    def __init__(self, stop: KeyboardInterrupt) -> None:
        super().__init__()
        self.stop = stop


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> None:
    """Entry point: user errors are one line each on stderr and exit code 2, never a traceback.

    Ctrl-C and SIGTERM are one line too, which says how to go on, and exit code 130.
    """
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        app()
    except UserError as error:
        for line in str(error).splitlines():
            print(f"rn50: error: {line}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except OSError as error:
        print(f"rn50: error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    except _Interrupted as interrupted:
        _end_stopped(interrupted.stop)
    except KeyboardInterrupt as stop:  # while the arguments were read
        _end_stopped(stop)


def _end_stopped(stop: KeyboardInterrupt) -> NoReturn:
    if isinstance(stop, Stopped):
        ending = stop.ending
    else:
        ending = command_stopped(asked_by(stop), sys.argv[1:])
    print(f"rn50: {ending.line}", file=sys.stderr)
    sys.exit(EXIT_STOPPED)


@app.command()
def launch(
    config: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="A preset or a YAML file; default: quick, or the config to resume."),
    ] = None,
    overrides: Overrides = None,
    ranks: Ranks = None,
    launcher: Launcher = None,
    resume: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Go on with an interrupted run: its folder, or `latest`."),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Go on by itself so often after a failed rank.")
    ] = 0,
) -> None:
    """Run a config on this machine or allocation: data, ranks, log, official checker.

    A `config.yaml` beside a log is a recorded run: a line says whether this one repeated its
    accuracy curve, and `repeats` in result.json.

    Exit 0: target reached and the official checker passes; 1: not; 2: bad input or a failed rank;
    130: stopped by a signal.

    Example: `rn50 launch quick --ranks 2 --launcher gloo seed=1`

    Example: `rn50 launch --resume latest`
    """
    from .attempts import load_resumed
    from .launch import launch as run_launch
    from .launch import load_for_launch
    from .repeat import find_recorded
    from .verdict import is_good

    name, texts = split_config(config or "quick", overrides)
    folder = None
    if resume is None:
        loaded = load_for_launch(name, texts, ranks)
        recorded = find_recorded(name)
    else:
        own = config is not None and "=" not in config
        folder, loaded = load_resumed(resume, name if own else None, texts, ranks)
        recorded = None
    with Tracking() as track:
        result = run_launch(
            loaded,
            launcher,
            track,
            recorded=recorded,
            resume=folder,
            max_restarts=max_restarts,
            again=shlex.join(["rn50", *sys.argv[1:]]) if folder is None else None,
        )
    raise typer.Exit(0 if is_good(result) else EXIT_BAD)


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for the run's files; default: a new one below `results/`."),
    ] = None,
) -> None:
    """Train as one rank: what launchers start. By hand it is a run on one rank.

    Example: `rn50 train smoke system.ranks_per_node=1`
    """
    from ..config.load import load
    from ..train.__main__ import run_rank
    from .launcher import new_run_folder

    run = load(config, overrides or []).run
    folder = out or new_run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    run_rank(config, overrides or [], folder)


@config_app.command("show")
def config_show(config: Config, overrides: Overrides = None, as_json: Json = False) -> None:
    """Every value of a config and where it comes from: file and line, command line, default.

    Example: `rn50 config show abci_2048_open batch.per_rank=40`
    """
    from ..config.load import load
    from ..config.plan import build_plan

    loaded = load(config, overrides or [])
    plan = build_plan(loaded.run)
    if as_json:
        print(json.dumps({"config": loaded.to_dict(), "sha256": loaded.sha256}, indent=1))
        return
    rows = [(path, yaml_value(value), str(origin)) for path, value, origin in loaded.leaves()]
    print_table(("key", "value", "from"), rows)
    print(
        f"\n{plan.ranks} ranks, global batch {plan.global_batch_size}, "
        f"{plan.steps_per_epoch:g} steps an epoch, {plan.epochs} epochs = {plan.total_steps} "
        f"steps, warm-up {plan.warmup_steps}, decay {plan.decay_steps}, evaluations after epochs "
        f"{', '.join(map(str, plan.eval_epochs))}\nsha256 {loaded.sha256}"
    )


@config_app.command("check")
def config_check(
    config: Config,
    overrides: Overrides = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Policy findings fail too: exit 1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Hold a config to the closed division before it runs; an open one is told its choices.

    Exit 0: PASS or POLICY; 1: FAIL, with `--strict` POLICY too.

    Example: `rn50 config check abci_2048_closed_32k batch.per_rank=42`
    """
    from ..config.check import check_config
    from ..config.load import load

    result = check_config(load(config, overrides or []))
    if as_json:
        print(json.dumps(result.to_dict(), indent=1))
    else:
        print(f"{result.verdict} {config}: {result.cause} (ruleset {result.ruleset})")
        for finding in result.findings:
            print(f"  {finding.severity:6} {finding.id}: {finding.message}")
        print_table(("", ""), [(key, yaml_value(value)) for key, value in result.facts.items()])
    if result.verdict == "FAIL" or (strict and result.verdict == "POLICY"):
        raise typer.Exit(EXIT_BAD)


@config_app.command("list")
def config_list(as_json: Json = False) -> None:
    """The presets, and what each is for."""
    from ..config.names import PRESETS, list_presets

    rows = []
    for name in list_presets():
        first = (PRESETS / f"{name}.yaml").read_text().splitlines()[0]
        rows.append((name, first.lstrip("# ")))
    if as_json:
        print(json.dumps(dict(rows), indent=1))
        return
    print_table(("preset", "what"), rows)


@config_app.command("diff")
def config_diff(
    left: Config, right: Annotated[str, typer.Argument(help="The other config.")]
) -> None:
    """The values in which two configs differ. Exit 1 if there are any.

    Example: `rn50 config diff dgx1_8 abci_2048_open`
    """
    from ..config.leaves import flatten
    from ..config.load import load

    one = dict(flatten(load(left).to_dict()))
    other = dict(flatten(load(right).to_dict()))
    keys = sorted(key for key in one | other if one.get(key) != other.get(key))
    rows = [(key, yaml_value(one.get(key, "-")), yaml_value(other.get(key, "-"))) for key in keys]
    if not rows:
        print("no difference")
        return
    print_table(("key", left, right), rows)
    raise typer.Exit(EXIT_BAD)
