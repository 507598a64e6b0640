"""One run from config to verdict: data, folder, ranks, result, official checker, RESULT line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config.errors import UserError
from ..config.load import Loaded, load
from ..config.plan import Plan, build_plan
from ..config.schema import Run
from ..data.atomic import write_file
from ..data.prepare import Tracker, prepare
from ..logging.check import Check, check_log
from ..logging.official import check_officially
from ..train.environment import Environment
from ..train.support import check_supported
from .attempts import begin_attempt, close_attempt, is_hopeless
from .launcher import build_job, new_run_folder, pick_launcher, run_job
from .record import describe_environment
from .repeat import compare_with_recorded

_MOST_WARNINGS = 5
RANK = (sys.executable, "-m", "rn50.train")


def load_for_launch(config: str, overrides: list[str], ranks: int | None) -> Loaded:
    """The config as the ranks will see it: `--ranks` applied, a fresh seed drawn if it has none.

    The rules ask for seeds from the clock or from urandom, never a constant.
    """
    if ranks is not None:
        overrides = [*overrides, "system.nodes=1", f"system.ranks_per_node={ranks}"]
    loaded = load(config, overrides)
    if loaded.run.seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
        loaded = load(config, [*overrides, f"seed={seed}"])
    return loaded


def launch(
    loaded: Loaded,
    launcher: str | None,
    track: Tracker,
    *,
    recorded: Path | None = None,
    resume: Path | None = None,
    max_restarts: int = 0,
    program: Sequence[str] = RANK,
) -> dict[str, Any]:
    """Run `loaded` to its end; returns the content of result.json.

    Args:
        recorded: the folder of a recorded run to compare with, in a line and in result.json.
        resume: the folder of an interrupted run to go on with, instead of a new one.
        max_restarts: how often to go on from the newest checkpoint after a failed rank.
        program: what one rank is started with.

    Raises:
        UserError: before the ranks start, or when one of them failed.
    """
    run = loaded.run
    plan = build_plan(run)
    check_supported(run)
    name = pick_launcher(launcher)
    build_job(run, name, ())  # what the engines refuse is refused before data is made
    prepare(run.data, track, loaded.origins)
    out = resume or new_run_folder(run)
    found = begin_attempt(out, loaded) if resume else None
    save_config(loaded, out)
    command = [*program, str(out / "config.yaml"), "--out", str(out)]
    job, environment = build_job(run, name, command)
    described = describe_environment(environment, name, command)
    write_file(out / "environment.json", json.dumps(described, indent=1) + "\n")
    announce(run, plan, environment, name, out)
    while True:
        from_file = ["--resume", str(found.path)] if found else []
        try:
            run_job(job._replace(command=[*command, *from_file]), name, out, run)
            break
        except (UserError, KeyboardInterrupt) as error:
            close_attempt(out)
            if isinstance(error, KeyboardInterrupt) or is_hopeless(out) or not max_restarts:
                reason = str(error) or "interrupted"
                asked = isinstance(error, KeyboardInterrupt)
                if not (asked and (out / "result.json").is_file()):  # else ranks ended in order
                    with suppress(OSError):  # the reason itself is what counts
                        write_result(out, {"status": "failed", "reason": reason, "seed": run.seed})
                try_report(out)
                raise
            max_restarts -= 1
            print(f"rn50: {error}", file=sys.stderr, flush=True)
            found = begin_attempt(out, loaded)
    return conclude(run, out, recorded)


def warnings_in(out: Path) -> list[str]:
    """What ranks warned of in stderr.log, each once; of many the first and how many more."""
    try:
        text = (out / "stderr.log").read_text(errors="replace")
    except OSError:
        return []
    found = list(dict.fromkeys(re.findall(r"rn50: warning: .*", text)))
    if len(found) > _MOST_WARNINGS:
        more = f"{len(found) - _MOST_WARNINGS} more warnings in {out / 'stderr.log'}"
        found[_MOST_WARNINGS:] = [f"rn50: warning: {more}"]
    return found


def announce(run: Run, plan: Plan, environment: Environment, launcher: str, out: Path) -> None:
    """Print what is about to run, and what the engines read: ours, and what the user's wins."""
    print(
        f"{run.name}: {plan.ranks} ranks by {launcher}, global batch {plan.global_batch_size}, "
        f"up to {plan.epochs} epochs of {plan.steps_per_epoch:g} steps, target {run.eval.target}, "
        f"seed {run.seed}, in {out}",
        flush=True,
    )
    if environment.algorithm.reason:
        print(f"comm.algorithm auto: {environment.algorithm.reason}", flush=True)
    settings = " ".join(f"{name}={value}" for name, value in sorted(environment.settings.items()))
    print(f"environment: {settings}", flush=True)
    for variable, value in environment.kept.items():
        print(f"kept from your environment: {variable}={value}", flush=True)


def save_config(loaded: Loaded, out: Path) -> None:
    """Write config.yaml, which runs the same again, and origins.json."""
    write_file(out / "config.yaml", loaded.to_yaml())
    origins = {path: str(origin) for path, _, origin in loaded.leaves()}
    write_file(out / "origins.json", json.dumps(origins, indent=1) + "\n")


def conclude(run: Run, out: Path, recorded: Path | None = None) -> dict[str, Any]:
    """After the ranks ended well: checkers, report, the RESULT line; the content of result.json."""
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    log = out / "result_0.txt"
    check = check_log(log, run.ruleset, official=True)
    official = check.official or check_officially(log, run.ruleset)
    result["official_checker"] = official._asdict()
    result["check"] = {"verdict": check.verdict, "cause": check.cause}
    repeat = compare_with_recorded(recorded, out) if recorded is not None else None
    if repeat is not None:
        result["repeats"] = repeat._asdict()
    write_result(out, result)
    for message in official.messages:
        print(f"official checker: {message}")
    print(f"check: {check.verdict}: {check.cause} (rn50 log check {out})")
    try_report(out, check)
    if repeat is not None:
        print(repeat.line)
    for line in warnings_in(out):
        print(line)
    print(result_line(result, out), flush=True)
    return result


def write_result(out: Path, result: dict[str, Any]) -> None:
    """Write result.json."""
    write_file(out / "result.json", json.dumps(result, indent=1) + "\n")


def try_report(out: Path, check: Check | None = None) -> None:
    """Write report.html; whatever stands in its way is one line, the result counts more."""
    try:
        from .report import write_report  # within: a package that is missing is such an obstacle

        write_report(out, checks=None if check is None else (check,))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"rn50: warning: no report.html: {reason}"[:500], file=sys.stderr, flush=True)


def result_line(result: dict[str, Any], out: Path) -> str:
    """The one line that sums up a run."""
    official = result["official_checker"]
    return (
        f"RESULT {result['status']} time_to_train_s={result['time_to_train_s']:.3f} "
        f"accuracy={result['eval_accuracy'] or 0:.4f} target={result['target']} "
        f"epochs={result['epochs']} ranks={result['ranks']} "
        f"images_per_s={result['images_per_s']:.1f} init_s={result['init_s']:.2f} "
        f"official_checker={official['verdict']}({official['ruleset']}) {out}"
    )
