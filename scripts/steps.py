"""What a job script calls around the ranks: `python -m rn50.scripts.steps begin|end`.

    begin OUT --scheduler NAME --seed N --data FOLDER -- CONFIG [KEY=VALUE ...]
                            config, environment, data check, the machine's description
    end OUT CODE STOPPED    checkers, report, RESULT line

`end` exits with 0 where the run reached its target and passes, 1 where not, 3 where a rank failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..config.load import load
from ..config.plan import build_plan
from ..data.atomic import write_file
from ..data.dataset import check_before_run
from ..train.environment import backend_of, engine_environment
from ..train.gpu import read_gpus
from . import watch
from .attempts import close_attempt, is_hopeless
from .ending import rank_failed, read_standing, same_again
from .failure import explain_failure, read_failures
from .job_script import system_id
from .launch import announce, conclude, save_config, try_report, write_result
from .preflight import refusals, refuse
from .record import describe_environment, installed_packages
from .schedulers import is_watched
from .system_page import describe_system, read_machine
from .verdict import is_good

EXIT_MISSED = 1
EXIT_USAGE = 2
EXIT_FAILED = 3


def begin(config: str, overrides: list[str], out: Path, scheduler: str) -> None:
    """Make `out` with what the ranks will read and what a reader of the results will want.

    Raises:
        UserError: the config, the data or the engines refuse, or `out` is there already.
    """
    loaded = load(config, overrides)
    run, plan = loaded.run, build_plan(loaded.run)
    refuse(refusals(run, ("mpi",)))
    environment = engine_environment(run, backend_of(run, "mpi"), os.environ)
    manifest = check_before_run(run.data, loaded.origins)
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{out}: cannot create: {error.strerror}") from None
    save_config(loaded, out)
    command = ("-m", "rn50.train", str(out / "config.yaml"), "--out", str(out))
    described = describe_environment(environment, scheduler, command)
    write_file(out / "environment.json", json.dumps(described, indent=1) + "\n")
    systems = out.parent / "systems"
    systems.mkdir(exist_ok=True)
    described = describe_system(run, read_machine(), installed_packages(), read_gpus())
    write_file(systems / f"{system_id(run)}.json", json.dumps(described, indent=2) + "\n")
    announce(loaded, plan, environment, scheduler, out, manifest)


def end(out: Path, code: int, stopped: bool) -> int:
    """Judge the run in `out`, whose launcher ended with `code`; returns the exit code.

    A launcher's 0 is not believed where no result.json is there: srun has said it of no start.
    """
    run = load(out / "config.yaml").run
    if code != 0 or not (out / "result.json").is_file():
        log = out / "stderr.log"
        text = log.read_text(errors="replace") if log.is_file() else ""
        reason = explain_failure(read_failures(out), text, code)
        if stopped:
            reason = "stopped from outside: cancelled, or out of its time"
        close_attempt(out)
        hopeless = not stopped and is_hopeless(out)
        ending = rank_failed(reason, read_standing(out), out, same_again(out), hopeless=hopeless)
        result: dict[str, Any] = {"status": "failed", "seed": run.seed}
        if stopped and (out / "result.json").is_file():  # the ranks ended in order
            result = json.loads((out / "result.json").read_text())
        write_result(out, result | ending.to_dict())
        try_report(out)
        if stopped or code != watch.EXIT_FAILED or not is_watched(run):  # else it was said
            print(f"rn50: error: {reason}; details: {log}", file=sys.stderr, flush=True)
        print(f"{out}{ending.what_next}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    result = conclude(run, out)
    return 0 if is_good(result) else EXIT_MISSED


def main(arguments: list[str] | None = None) -> int:
    """The two commands; user errors are one line each."""
    parser = argparse.ArgumentParser(prog="python -m rn50.scripts.steps", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("begin")
    first.add_argument("out", type=Path)
    first.add_argument("--scheduler", required=True)
    first.add_argument("--seed", type=int, required=True)
    first.add_argument("--data", required=True)
    first.add_argument("config")
    first.add_argument("overrides", nargs="*")
    last = commands.add_parser("end")
    last.add_argument("out", type=Path)
    last.add_argument("code", type=int)
    last.add_argument("stopped", help="empty: not")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "end":
            return end(chosen.out, chosen.code, bool(chosen.stopped))
        own = [f"seed={chosen.seed}", f"data.path={json.dumps(chosen.data)}"]
        begin(chosen.config, [*chosen.overrides, *own], chosen.out, chosen.scheduler)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"rn50: error: {line}", file=sys.stderr)
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
