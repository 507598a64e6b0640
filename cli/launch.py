"""`rn50 launch`: one timed run of a config on this machine or allocation."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.layout import with_ranks
from ..host.errors import UserError
from ..host.exit_codes import EXIT_BAD, EXIT_USAGE
from ..launch.ending import RunError, StoppedBySignal
from .console import (
    ConfigToResume,
    Json,
    Launcher,
    Nodes,
    Overrides,
    Ranks,
    Runs,
    SystemName,
    aside,
    exit_bad_if,
    named_config,
    on_machine,
    on_nodes,
    option,
    print_json,
    split_config,
    track,
)

if TYPE_CHECKING:
    from ..config.load import Loaded
    from ..launch.job import Request
    from ..launch.launch_plan import Options


def launch(
    config: ConfigToResume = None,
    overrides: Overrides = None,
    ranks: Ranks = None,
    nodes: Nodes = None,
    launcher: Launcher = None,
    system: SystemName = None,
    resume: Annotated[
        str | None, option("Continue an interrupted run: its folder, or `latest`.")
    ] = None,
    runs: Runs = 1,
    job: Annotated[
        Path | None,
        option(
            "For job scripts: run or continue in this folder, output in its job.log."
        ),
    ] = None,
    requeue: Annotated[
        str | None,
        option(
            "For job scripts: what puts the job back into its queue after SIGUSR1.",
            metavar="COMMAND",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        option("Print what would run and what it needs; start nothing.", "--dry-run"),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a config on this machine or allocation: data, ranks, log, official checker.

    The last line gives the reason for the end and the command to continue with, as do `reason` and
    `next` in result.json. If CONFIG is the `config.yaml` of a recorded run, a line (`repeats` in
    result.json) says whether this run repeated it bit for bit. --json prints result.json and
    nothing else. Several runs share a folder with the layout of a submission.

    Exit 0: target reached, and `rn50 log check` and the official checker pass the log; 1: not; 2:
    bad input or a failed rank; 130: stopped by a signal. With --runs or --job: 0: so did all runs;
    1: not; 2: bad input; 3: a failed rank; 143: stopped by a signal.

    Example: `rn50 launch quick --ranks 2 --launcher gloo seed=1`

    Example: `rn50 launch dgxa100_8 --dry-run`

    Example: `rn50 launch --resume latest`
    """
    if ranks is not None and nodes is not None:
        raise UserError("--ranks is for one machine: omit --nodes")
    name, texts = split_config(config or "quick", on_nodes(overrides, nodes))
    settings = with_ranks(on_machine(texts, system), ranks)
    # a dry run of several is that of one, as all are alike
    if (runs > 1 or job is not None) and not dry_run:
        if resume is not None or as_json:
            raise UserError("--runs and --job exclude --resume and --json")
        from ..launch.job import Request

        request = Request(name, tuple(settings), runs, launcher, requeue)
        raise typer.Exit(_run_job(request, job))
    if requeue is not None:
        raise UserError("--requeue needs --job")
    from ..config.recorded import load_named
    from ..launch.launch_plan import Options
    from ..launch.resume import load_resumed
    from ..report.reproduction import find_recorded

    if resume is None:
        loaded = load_named(name, settings)
        options = Options(launcher, recorded=find_recorded(name))
    elif system is None:
        folder, loaded = load_resumed(resume, named_config(config), texts, ranks)
        options = Options(launcher, resume=folder)
    else:
        raise UserError("--system is for a new run; with --resume give system=NAME")
    if dry_run:
        _say_what_would_run(loaded, options, as_json=as_json)
    else:
        _run(loaded, options, as_json=as_json)


def _run(loaded: Loaded, options: Options, *, as_json: bool) -> None:
    """One run; exit 1 where it is not a good one."""
    from ..launch.run import launch as run_launch
    from ..logging.records import to_dict
    from ..logging.run_folder import RunFolder

    try:
        with aside(as_json):
            result, _ = run_launch(loaded, track, options)
    except (RunError, StoppedBySignal) as error:
        # programs get what the run came to; people the line that the error is
        left_result = RunFolder(error.ending.folder or Path()).read_result()
        if as_json and left_result:
            print_json(to_dict(left_result))
        raise
    if as_json:
        print_json(to_dict(result))
    exit_bad_if(not result.is_good)


def _run_job(request: Request, folder: Path | None) -> int:
    """All runs in one folder; returns the exit code, which its file exit_code has too."""
    from ..config.recorded import JOB, load_named
    from ..launch.job import put_back, run_all
    from ..launch.job_folder import open_job
    from ..launch.run_files import new_run_folder
    from ..logging.run_folder import JobFolder
    from .log import log_score

    # Whether the folder's own config may decide so much, `submit` has asked the user.
    if folder is None or Path(request.config) != JobFolder(folder).config:
        loaded = load_named(request.config, request.overrides, JOB)
        request = request._replace(loaded=loaded)
    with open_job(folder or new_run_folder(loaded.run), log=folder is not None) as job:
        outcome = run_all(job, request, track)
        if request.runs > 1 and outcome.exit_code <= EXIT_BAD:
            # the runs' own verdict counts
            with contextlib.suppress(typer.Exit, UserError):
                log_score([job.path])
    if request.requeue and outcome.requeue:
        return put_back(request.requeue)
    return outcome.exit_code


def _say_what_would_run(loaded: Loaded, options: Options, *, as_json: bool) -> None:
    from ..launch.dry_run import describe_launch
    from ..launch.launch_plan import plan_launch

    rows = describe_launch(plan_launch(loaded, options))
    if as_json:
        print_json(rows)
    else:
        print(f"{rows['name']}: dry run, nothing is started")
        command = shlex.join(rows["command"]) or "none"
        for name, value in (rows | {"command": command}).items():
            if name not in ("name", "problems"):
                print(f"  {name:12}  {value}")
        # errors go to another stream, and belong below
        sys.stdout.flush()
    for problem in rows["problems"]:
        print(f"rn50: error: {problem}", file=sys.stderr)
    if rows["problems"]:
        raise typer.Exit(EXIT_USAGE)
