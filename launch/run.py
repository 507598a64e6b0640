"""One run from config to verdict: data, folder, ranks, result, official checker, RESULT line."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace

from ..compliance.check_log import MISSED, Check
from ..compliance.config_rules import check_config
from ..compliance.official import check_officially
from ..compliance.submission import as_one, judge_path
from ..config.layout import with_ranks
from ..config.load import Loaded
from ..config.manifest import Manifest
from ..config.recorded import load_named
from ..config.schema import Run
from ..data.describe import describe_data
from ..data.prepare import prepare as prepare_data
from ..host.errors import RankFailed, UserError
from ..host.finding import ERROR, WARNING
from ..host.inherited import not_passed_on
from ..host.lock import hold, other_holder
from ..host.progress import Tracker, say, say_aside
from ..host.reading import read_ends
from ..host.stop_signals import StopSignals
from ..logging.places import NoLogs
from ..logging.records import (
    FAILED,
    NOT_RUN,
    SUCCESS,
    ReferenceRate,
    Result,
    Verdict,
    write,
)
from ..logging.run_folder import RunFolder
from ..predict.predictor import precision_of
from ..predict.work import training_flops, utilisation
from ..report.reproduction import compare_with_recorded, repeat_line
from ..train.checkpoint.file import Checkpoint
from ..train.reserve import give_back, reserve
from ..train.seeding import draw_seed
from .ending import (
    Ending,
    RunError,
    StoppedBySignal,
    asked_by,
    rank_failed,
    run_ended,
    run_stopped,
)
from .environment_record import describe_environment
from .failure import Evidence, explain_failure
from .host_limits import Cause, read_limits, with_shortages
from .launch_plan import LaunchPlan, Options, describe_length, plan_launch
from .launchers import mpi_for
from .nodes_left import on_nodes_left
from .resume import begin_attempt, close_attempt
from .run_files import in_brief, new_run_folder, save_config
from .supervisor import run_job


def load_for_launch(config: str, overrides: list[str], ranks: int | None) -> Loaded:
    """The config as the ranks will see it: `--ranks` applied, a fresh seed drawn if it has none."""
    return with_fresh_seed(load_named(config, with_ranks(overrides, ranks)))


def with_fresh_seed(loaded: Loaded) -> Loaded:
    """The config with a seed, drawn if it has none."""
    if loaded.run.seed is None:
        return loaded.with_seed(draw_seed())
    return loaded


def launch(
    loaded: Loaded, track: Tracker, options: Options
) -> tuple[Result, StopSignals]:
    """Plan `loaded` and run it, as `run_plan` does, with a fresh seed if it has none."""
    return run_plan(plan_launch(with_fresh_seed(loaded), options), track)


def run_plan(plan: LaunchPlan, track: Tracker) -> tuple[Result, StopSignals]:
    """Run a plan to its end, or conclude the run that it resumes if nothing else is left; returns
    its result, and the signals since then, of which none changes it: the caller releases them, or
    ends. Raises UserError before the ranks start; RunError: one of them failed; StoppedBySignal: a
    signal ended it."""
    resumed = plan.options.resume
    out = RunFolder(resumed) if resumed else None
    manifest = None
    if not out or not out.is_to_conclude:
        out, manifest = prepare(plan, track)
    with hold(out.lock):
        if manifest:
            run_attempts(plan, out, manifest)
        late = StopSignals().take()
        return conclude(plan.run, out, plan.options), late


def prepare(plan: LaunchPlan, track: Tracker) -> tuple[RunFolder, Manifest]:
    """Refuse what cannot run, then make the run's folder and the image set."""
    plan.refuse()
    manifest = prepare_data(plan.run.data, track, plan.loaded.origins)
    folder = plan.options.resume or plan.options.out or new_run_folder(plan.run)
    return RunFolder(folder), manifest


def run_attempts(plan: LaunchPlan, out: RunFolder, manifest: Manifest) -> None:
    """Start the ranks, and again from the last checkpoint as often as the config allows. The caller
    holds the run. Raises as `run_plan` does."""
    # Before the try: a stop while the last attempt still writes there must not close its log.
    checkpoint = None
    if plan.options.resume:
        checkpoint = begin_attempt(out)
    try:
        begin_run(plan, out, manifest)
        attempt = plan
        restarts = plan.run.system.job.max_restarts
        while error := _failure_of_attempt(attempt, out, checkpoint):
            if not restarts or out.is_hopeless:
                raise end_failed(attempt, out, error)
            restarts -= 1
            say_aside(f"rn50: {error}")
            try:
                attempt, checkpoint = _next_attempt(plan, attempt, out, manifest)
            except UserError as refused:
                error = UserError(*f"no restart: {refused}".split("\n"))
                raise end_failed(attempt, out, error) from None
    except KeyboardInterrupt as stop:
        if out.is_over:
            return
        close_attempt(out)
        ending = run_stopped(
            asked_by(stop), out.path, plan.options.launcher, plan.loaded
        )
        # a second one: the report is not worth a wait
        with suppress(KeyboardInterrupt):
            close_result(out, plan.run, ending)
        raise StoppedBySignal(ending) from None
    except OSError as error:  # such as a full standard output
        why = f"{error.filename or 'launch'}: {error.strerror or error}"
        if out.is_over:
            _warn_after_the_end(why)
            return
        give_back(out.path)
        failure = UserError(str(with_shortages(Cause(why), "", read_limits())))
        raise end_failed(plan, out, failure) from None


def _failure_of_attempt(
    plan: LaunchPlan, out: RunFolder, checkpoint: Checkpoint | None
) -> UserError | None:
    """Run all ranks to their end; why they failed, None where they ended in order."""
    job = plan.job_in(str(out))
    if checkpoint:
        job = job._replace(command=[*job.command, "--resume", str(checkpoint.path)])
    try:
        run_job(job, plan.launcher, out.path, plan.run)
        check_result(out)
    except UserError as error:
        if not out.is_over:
            close_attempt(out)
            return error
        _warn_after_the_end(error)
    return None


def _warn_after_the_end(problem: object) -> None:
    """What happens once the ranks have come to their end changes no result."""
    with suppress(OSError):  # as may be the problem
        say_aside(f"rn50: warning: after the last step: {problem}")


def _next_attempt(
    began: LaunchPlan, failed: LaunchPlan, out: RunFolder, manifest: Manifest
) -> tuple[LaunchPlan, Checkpoint | None]:
    """The attempt after one that failed, on the nodes left. `began`: the first attempt. Raises
    UserError: there is none."""
    loaded, hosts = on_nodes_left(began, out.path)
    if hosts == failed.hosts:
        return failed, begin_attempt(out)
    plan = plan_launch(loaded, began.options, began.launcher, hosts)
    plan.refuse()  # before anything of the last attempt is put aside
    checkpoint = begin_attempt(out)
    begin_run(plan, out, manifest)
    return plan, checkpoint


def begin_run(plan: LaunchPlan, out: RunFolder, manifest: Manifest) -> None:
    """Write what the ranks will read, and print what runs."""
    try:
        reserve(out.path)  # first: a disk may be nearly full
        save_config(plan.loaded, out)
        command = plan.job_in(str(out)).command
        record = describe_environment(plan.environment, plan.launcher, command)
        write(out.environment, replace(record, run=in_brief(plan.run, plan.steps)))
    except OSError as error:
        error.filename = f"{error.filename or out}: cannot write"
        raise
    announce(plan, out, manifest)


def check_result(out: RunFolder) -> None:
    """Raises RankFailed where no result is there: srun has ended with 0 without a start."""
    if not out.result.is_file():
        evidence = Evidence(out.read_failures(), read_ends(out.stderr), 0)
        raise RankFailed(explain_failure(evidence), out.stderr)


def end_failed(plan: LaunchPlan, out: RunFolder, error: UserError) -> RunError:
    """result.json and report of a run of which a rank failed; its log is closed already. Returns
    what to raise."""
    reason = str(error)
    if isinstance(error, RankFailed):
        reason = error.reason
    ending = rank_failed(reason, out.path, plan.options.launcher, plan.loaded)
    close_result(out, plan.run, ending)
    return RunError(f"{error}{ending.what_next}", ending)


def close_result(out: RunFolder, run: Run, ending: Ending) -> None:
    """result.json and report of a run that did not come to its end by itself. What ranks that ended
    in order have written there stays, with the ending beside it. A folder that another driver has
    taken over is left alone."""
    if other_holder(out.lock):
        return
    result = out.read_result() or Result(FAILED, seed=run.seed)
    with suppress(OSError):  # such as a full disk: the reason itself is what counts
        write(out.result, ending.recorded(result))
    if out.log.is_file():
        try_report(out)


def announce(plan: LaunchPlan, out: RunFolder, manifest: Manifest) -> None:
    """Print what is about to run, on what, and which settings the user's environment overrides."""
    run = plan.run
    steps = plan.steps
    say(
        f"{run.name}: {steps.ranks} ranks by {plan.launcher}, global batch "
        f"{steps.global_batch_size}, {describe_length(steps)} of {steps.steps_per_epoch:g} "
        f"steps, target {run.eval.target}, seed {run.seed}, in {out}"
    )
    say(f"data: {describe_data(run.data, manifest)}")
    for finding in check_config(plan.loaded, steps).findings:
        if finding.severity in (ERROR, WARNING):
            say(f"note: config check: {finding.message}")
            break
    for variable, value in plan.environment.user_set.items():
        say(f"kept from your environment: {variable}={value}")
    for line in not_passed_on(plan.environment.removed):
        say(line)
    mpi = mpi_for(plan.launcher)
    if mpi and mpi.first != mpi.right:
        say(f"note: {mpi}")


def conclude(run: Run, out: RunFolder, options: Options) -> Result:
    """Conclude a run whose ranks ended well: checkers, report, the RESULT line, the last line.
    Raises UserError: the ranks left no result."""
    give_back(out.path)
    check = check_run(run, out)
    result = judge(run, out, options, check)
    ending = run_ended(result, out.path, options.launcher)
    result = ending.recorded(result)
    # before the report, which reads it
    try:
        write(out.result, result)
    except OSError as error:  # the run itself is over, and its verdict known
        print(f"rn50: warning: {out.result}: cannot write: {error.strerror}")
    print(f"check: {check.word}: {check.cause} (rn50 log check {out})")
    try_report(out, check)
    if result.repeats:
        print(repeat_line(result.repeats))
    # the first five different ones of ranks
    warnings = re.findall(r"rn50: warning: .*", read_ends(out.stderr))
    for line in list(dict.fromkeys(warnings))[:5]:
        print(line)
    if result.reference:
        reference = run.system.references[run.name]
        print(reference.line(run.name, result.images_per_s or 0.0))
    print(result_line(result, out))
    say(ending.line)
    return result


def check_run(run: Run, out: RunFolder) -> Check:
    """Both checkers on the run's log; a problem of this machine changes no result."""
    log = out.log
    try:
        check = as_one(judge_path(out.path, run.ruleset, official=True))
        if not check.official:  # its own reader could not read it
            check = check._replace(official=check_officially(log, run.ruleset))
    except (OSError, NoLogs) as error:
        reason = getattr(error, "strerror", None) or error
        why = f"cannot check {log}: {reason}"
        _warn_after_the_end(why)
        return Check(log, NOT_RUN, why, run.ruleset, official=Verdict(NOT_RUN))
    return check


def judge(run: Run, out: RunFolder, options: Options, check: Check) -> Result:
    """The result that rank 0 has left, with what is made of it."""
    result = out.read_result()
    if not result or not check.official:
        raise UserError(f"{out.result}: a JSON object expected, as rank 0 leaves it")
    result = replace(
        result, official_checker=check.official, check=Verdict(check.word, check.cause)
    )
    if options.recorded:
        result = replace(
            result, repeats=compare_with_recorded(options.recorded, out.path)
        )
    flops = training_flops(run.model, run.data)
    if flops is not None and result.images_per_s is not None:
        flops_per_s = flops * result.images_per_s
        precision = precision_of(run, run.system)
        mfu = utilisation(flops_per_s, result.ranks or 1, run.system, precision)
        result = replace(result, mfu=mfu)
    reference = run.system.references.get(run.name)
    if reference and result.images_per_s is not None:
        passes = reference.passes(result.images_per_s)
        rate = ReferenceRate(reference.images_per_s, reference.tolerance, passes)
        result = replace(result, reference=rate)
    return result


def try_report(out: RunFolder, *checks: Check) -> None:
    """Write report.html; whatever stands in its way is one line."""
    try:
        from ..report.html import write_report

        write_report(out.path, checks=checks or None)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        say_aside(f"rn50: warning: no report.html: {reason}"[:500])


def result_line(result: Result, out: RunFolder) -> str:
    """The one line that sums up a run."""
    official = result.official_checker or Verdict(NOT_RUN)
    status = result.status
    if result.check and result.check.verdict == MISSED:
        status = MISSED.lower()
    time_s = result.time_to_train_s
    why = ""
    if result.status != SUCCESS:
        time_s = None
        why = f"reason={json.dumps(result.reason)} "
    return (
        f"RESULT {status} time_to_train_s={_or_none(time_s, '.3f')} "
        f"accuracy={_or_none(result.eval_accuracy, '.4f')} target={result.target} "
        f"epochs={result.epochs} ranks={result.ranks} "
        f"images_per_s={_or_none(result.images_per_s, '.1f')} "
        f"init_s={_or_none(result.init_s, '.2f')} "
        f"official_checker={official.verdict}({official.ruleset}) {why}{out}"
    )


def _or_none(value: float | None, shape: str) -> str:
    return "none" if value is None else format(value, shape)
