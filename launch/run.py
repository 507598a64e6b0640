"""One run from config to verdict: data, folder, ranks, result, official checker, RESULT line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..compliance.check_log import Check, check_log
from ..compliance.config_rules import check_config
from ..compliance.official import check_officially
from ..config.atomic import write_file, write_json
from ..config.errors import UserError
from ..config.load import Loaded, load
from ..config.manifest import Manifest
from ..config.plan import Plan, build_plan
from ..config.progress import Tracker
from ..config.reading import read_ends, read_object
from ..config.recorded import load_named
from ..config.schema import Run
from ..data.describe import describe_data
from ..data.prepare import prepare
from ..report.reproduction import compare_with_recorded
from ..scaling.grouping import choose_groups
from ..train.gpu import read_gpus
from ..train.seeding import draw_seed
from .disk_reserve import give_back, reserve
from .ending import (
    Ending,
    Failed,
    Stopped,
    asked_by,
    check_stopped,
    data_stopped,
    rank_failed,
    read_standing,
    run_ended,
    run_stopped,
)
from .engine_environment import Environment
from .environment_record import describe_environment
from .failure import explain_failure, read_failures
from .host_limits import read_limits
from .launchers import LAUNCHERS, build_job, pick_launcher
from .nodes_left import on_nodes_left
from .preflight import idle_gpus_note, refusals, refuse
from .resume import begin_attempt, close_attempt, is_hopeless, with_ranks
from .run_files import new_run_folder
from .run_lock import driven_by_another, hold_run
from .supervisor import RankFailed, run_job
from .verdict import check_note, errors_of, target_note, verdict_lines

_MOST_WARNINGS = 5
RANK = (sys.executable, "-m", "rn50.train")


def load_for_launch(
    config: str, overrides: list[str], ranks: int | None, *, draw: bool = True, own: bool = False
) -> Loaded:
    """The config as the ranks will see it: `--ranks` applied, a fresh seed drawn if it has none.
    `own`: it is that of a job, which the user has submitted."""
    overrides, read = with_ranks(overrides, ranks), load if own else load_named
    loaded = read(config, overrides)
    if loaded.run.seed is None and draw:
        loaded = read(config, [*overrides, f"seed={draw_seed()}"])
    return loaded


def launch(
    loaded: Loaded,
    launcher: str | None,
    track: Tracker,
    *,
    default_launcher: str | None = None,
    out: Path | None = None,
    recorded: Path | None = None,
    resume: Path | None = None,
    program: Sequence[str] = RANK,
    again: str | None = None,
    stopped_by: Callable[[BaseException, Path], str] = lambda stop, _: asked_by(stop),
) -> dict[str, Any]:
    """Run `loaded` to its end; returns the content of result.json.

    Args:
        launcher: asked for by name; the command to go on with names it too.
        default_launcher: where none is asked for; None: what this machine has.
        out: the new run's folder; None: one below `system.results`.
        recorded: the folder of a recorded run to compare with, in a line and in result.json.
        resume: the folder of an interrupted run to go on with, instead of a new one.
        program: what one rank is started with.
        again: the command that starts this run; default: with its config.yaml.
        stopped_by: says what stopped the run in a folder, given the KeyboardInterrupt.

    Raises:
        UserError: before the ranks start.
        Failed: one of them failed.
        Stopped: a signal ended it.
    """
    run = loaded.run
    name = pick_launcher(launcher or default_launcher)
    refuse(refusals(run, (LAUNCHERS[name].controller,)))
    job, environment = build_job(run, name, ())  # its refusals before data or a folder is made
    manifest = _prepare(loaded, track, again or "")
    out = resume or out or new_run_folder(run)
    with hold_run(out):
        # Before the try: a stop while the last attempt still writes there must not close its log.
        found = begin_attempt(out, loaded) if resume else None
        try:
            command = begin_run(loaded, out, environment, name, program, manifest)
            began, restarts = loaded, run.system.job.max_restarts
            hosts: tuple[str, ...] = ()
            while True:
                from_file = ["--resume", str(found.path)] if found else []
                try:
                    run_job(job._replace(command=[*command, *from_file]), name, out, run)
                    check_result(out)
                    break
                except UserError as error:
                    close_attempt(out)
                    line = str(error)
                    reason = error.reason if isinstance(error, RankFailed) else line
                    if restarts and not is_hopeless(out):
                        restarts -= 1
                        print(f"rn50: {line}", file=sys.stderr, flush=True)
                        try:
                            loaded, left = on_nodes_left(began, name, out)
                            run = loaded.run
                            found = begin_attempt(out, loaded)
                            if left != hosts:
                                hosts = left
                                job, environment = build_job(run, name, (), hosts)
                                command = begin_run(
                                    loaded, out, environment, name, program, manifest
                                )
                            continue
                        except UserError as refused:
                            line = reason = f"no restart: {refused}"
                    ending = end_failed(run, out, reason, again, launcher)
                    raise Failed(f"{line}{ending.what_next}", ending) from None
        except KeyboardInterrupt as stop:
            close_attempt(out)
            by = stopped_by(stop, out)
            ending = run_stopped(by, read_standing(out), out, again, launcher)
            with suppress(KeyboardInterrupt):  # a second one: the report is not worth a wait
                close_result(out, run, ending)
            raise Stopped(ending) from None
        try:
            return conclude(run, out, recorded, again=again, launcher=launcher)
        except KeyboardInterrupt as stop:
            raise Stopped(check_stopped(asked_by(stop), out)) from None


def _prepare(loaded: Loaded, track: Tracker, again: str) -> Manifest:
    """The image set, made where it is missing and can be drawn."""
    doing = "checking the image set"

    def noted(task: str) -> Callable[[int, int], None]:
        nonlocal doing
        doing = task
        return track(task)

    try:
        return prepare(loaded.run.data, noted, loaded.origins)
    except KeyboardInterrupt as stop:
        path = loaded.run.data.path
        raise Stopped(data_stopped(asked_by(stop), doing, path, again)) from None


def begin_run(
    loaded: Loaded,
    out: Path,
    environment: Environment,
    launcher: str,
    program: Sequence[str],
    manifest: Manifest,
) -> list[str]:
    """Write what the ranks will read and say what runs; returns the command of a rank."""
    reserve(out)
    save_config(loaded, out)
    command = [*program, str(out / "config.yaml"), "--out", str(out)]
    described = describe_environment(environment, launcher, command)
    write_json(out / "environment.json", described)
    announce(loaded, build_plan(loaded.run), environment, launcher, out, manifest)
    return command


def check_result(out: Path) -> None:
    """Raises RankFailed where no result is there: srun has ended with 0 without a start."""
    if not (out / "result.json").is_file():
        text = read_ends(out / "stderr.log")
        why = explain_failure(read_failures(out), text, 0, limits=read_limits())
        raise RankFailed(why, out / "stderr.log")


def end_failed(
    run: Run, out: Path, reason: str, again: str | None = None, launcher: str | None = None
) -> Ending:
    """result.json and report of a run of which a rank failed; its log is closed already."""
    hopeless = is_hopeless(out)
    ending = rank_failed(reason, read_standing(out), out, again, launcher, hopeless=hopeless)
    close_result(out, run, ending)
    return ending


def close_result(out: Path, run: Run, ending: Ending) -> None:
    """result.json and report of a run that did not come to its end by itself. What ranks that ended
    in order have written there stays, with the ending beside it. A folder that another driver has
    taken over is left alone."""
    if driven_by_another(out) is not None:
        return
    result = read_object(out / "result.json") or {"status": "failed", "seed": run.seed}
    with suppress(OSError):  # such as a full disk: the reason itself is what counts
        write_result(out, result | ending.to_dict())
    try_report(out)


def warnings_in(out: Path) -> list[str]:
    """What ranks warned of in stderr.log, each once; of many the first and how many more."""
    found = list(dict.fromkeys(re.findall(r"rn50: warning: .*", read_ends(out / "stderr.log"))))
    if len(found) > _MOST_WARNINGS:
        more = f"{len(found) - _MOST_WARNINGS} more warnings in {out / 'stderr.log'}"
        found[_MOST_WARNINGS:] = [f"rn50: warning: {more}"]
    return found


def announce(
    loaded: Loaded,
    plan: Plan,
    environment: Environment,
    launcher: str,
    out: Path,
    manifest: Manifest,
) -> None:
    """Print what is about to run, on what, and what the engines read: ours, and the user's own."""
    run = loaded.run
    print(
        f"{run.name}: {plan.ranks} ranks by {launcher}, global batch {plan.global_batch_size}, "
        f"up to {plan.epochs} epochs of {plan.steps_per_epoch:g} steps, target {run.eval.target}, "
        f"seed {run.seed}, in {out}",
        flush=True,
    )
    print(f"data: {describe_data(run.data, manifest)}", flush=True)
    for note in (
        target_note(run),
        check_note(check_config(loaded)),
        idle_gpus_note(run, read_gpus()),
        choose_groups(run).note,
    ):
        if note:
            print(f"note: {note}", flush=True)
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
    write_json(out / "origins.json", origins)


def conclude(
    run: Run,
    out: Path,
    recorded: Path | None = None,
    *,
    again: str | None = None,
    launcher: str | None = None,
) -> dict[str, Any]:
    """After the ranks ended well: checkers, report, the RESULT line, the last line. `again`: the
    command that starts this run; default: with its config.yaml. `launcher`: the one that was asked
    for by name. Returns the content of result.json. Raises UserError: the ranks left none."""
    give_back(out)
    result = read_object(out / "result.json")
    if not result:
        raise UserError(f"{out / 'result.json'}: a JSON object expected, as rank 0 leaves it")
    log = out / "result_0.txt"
    check = check_log(log, run.ruleset, official=True)
    if check.official is None:  # its own reader could not read it
        check = check._replace(official=check_officially(log, run.ruleset))
    official = check.official
    assert official is not None
    result["official_checker"] = official._asdict()
    found = {"verdict": check.verdict, "cause": check.cause, "errors": errors_of(check)}
    result["check"] = found
    repeat = compare_with_recorded(recorded, out) if recorded is not None else None
    if repeat is not None:
        result["repeats"] = repeat._asdict()
    ending = run_ended(
        result,
        read_standing(out),
        out,
        again,
        length=run.schedule.length,
        launcher=launcher,
    )
    result |= ending.to_dict()
    write_result(out, result)
    for line in verdict_lines(run, check, result, out):
        print(line)
    try_report(out, check)
    if repeat is not None:
        print(repeat.line)
    for line in warnings_in(out):
        print(line)
    print(result_line(result, out))
    print(ending.line, flush=True)
    return result


def write_result(out: Path, result: dict[str, Any]) -> None:
    """Write result.json."""
    write_json(out / "result.json", result)


def try_report(out: Path, check: Check | None = None) -> None:
    """Write report.html; whatever stands in its way is one line, the result counts more."""
    try:
        from ..report.write import (
            write_report,  # within: a package that is missing is such an obstacle
        )

        write_report(out, checks=None if check is None else (check,))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"rn50: warning: no report.html: {reason}"[:500], file=sys.stderr, flush=True)


def result_line(result: dict[str, Any], out: Path) -> str:
    """The one line that sums up a run."""
    official, accuracy = result["official_checker"], result["eval_accuracy"]
    why = "" if result["status"] == "success" else f"reason={json.dumps(result['reason'])} "
    return (
        f"RESULT {result['status']} time_to_train_s={result['time_to_train_s']:.3f} "
        f"accuracy={'none' if accuracy is None else format(accuracy, '.4f')} "
        f"target={result['target']} "
        f"epochs={result['epochs']} ranks={result['ranks']} "
        f"images_per_s={result['images_per_s']:.1f} init_s={result['init_s']:.2f} "
        f"official_checker={official['verdict']}({official['ruleset']}) {why}{out}"
    )
