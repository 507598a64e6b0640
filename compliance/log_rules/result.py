"""Rules on the result: did the run reach the target, and does the log say so without doubt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain, printable, shown
from ...logging.look_alike import looks_like, spelled_out
from ..logged_run import (
    SAME_MS,
    Evaluation,
    LoggedRun,
    as_setting,
    reaches_target,
)
from ..rule import ANY_KEY, CHECKER, ERROR, NOTE, POLICY, RULES_TEXT, Violation, rule

_TARGET = f"in [{benchmark.TARGET_ACCURACY}, {plain(benchmark.HIGHEST_ACCURACY)})"


def _at(evaluation: Evaluation) -> str:
    if evaluation.epoch is None:
        return f"line {evaluation.line}"
    return f"epoch {plain(evaluation.epoch)}"


@rule("MLP301", "run-time-not-positive", ERROR, "a clock that cannot be right", keys=(ANY_KEY,))
def clock_forward(run: LoggedRun) -> Iterator[Violation]:
    """run_stop is stamped later than run_start."""
    run_ms, stop = run.run_ms, run.stop
    if run_ms is None or stop is None or run_ms > 0:
        return
    if run_ms == 0:
        text = f"run time 0 s: run_start and {stop.place} have one stamp"
        yield Violation(text, stop.line, "above 0", "0")
    else:
        what = f"is {-run_ms / 1000:g} s before run_start"
        yield Violation.at(stop, what, "later than run_start", f"{run_ms / 1000:g} s")


@rule(
    *("MLP304", "target-not-reached", ERROR),
    f"{RULES_TEXT} lines 441, 491; {CHECKER}, closed_resnet.yaml",
)
def converged(run: LoggedRun) -> Iterator[Violation]:
    """The target was reached: an eval_accuracy in [0.759, 1) (open from 1.0.0 on: one below 1)."""
    numbers = [
        event.value for event in run.all("eval_accuracy") if isinstance(event.value, int | float)
    ]
    if not numbers:
        return  # missing-accuracy says it
    unread = "missing-accuracy" if len(numbers) < len(run.all("eval_accuracy")) else ""
    if not run.needs_target:
        if not any(value < benchmark.HIGHEST_ACCURACY for value in numbers):
            yield Violation(
                f"no eval_accuracy is a fraction below 1: {shown(numbers[0])}",
                run.all("eval_accuracy")[0].line,
                "below 1",
                shown(numbers[0]),
                caused_by=unread,
            )
        return
    if any(reaches_target(value) for value in numbers):
        return
    if run.stop is None or "eval_accuracy" in run.log.lost_keys:
        return  # a consequence of the run not ending, or of the record that was torn
    severity = POLICY if run.ruleset == "0.6.0" else None  # its checker has no threshold
    best = run.best
    status = run.status
    said = ""
    if isinstance(status, str):
        said = f"; run_stop says {printable(status)[:40]}"
    last = run.all("eval_accuracy")[-1].line
    odd = _odd_accuracy(run)
    if odd is not None:
        yield Violation(
            f"{odd}{said}", last, _TARGET, shown(numbers[-1]), "log a fraction", severity, unread
        )
    elif best is not None:
        text = (
            f"did not converge: best {plain(best.accuracy)} at {_at(best)}, "
            f"target {benchmark.TARGET_ACCURACY}"
        )
        if round(best.accuracy, 3) >= benchmark.TARGET_ACCURACY:
            text += " (rounds to it but is below)"
        text += said
        advice = "one such run in five is allowed"
        yield Violation(text, best.line, _TARGET, plain(best.accuracy), advice, severity, unread)


def _odd_accuracy(run: LoggedRun) -> str | None:
    """Accuracies that are no fractions: NaN, percent, exactly one."""
    for event in reversed(run.all("eval_accuracy")):
        value = event.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        place = f"eval_accuracy (line {event.line})"
        if not math.isfinite(value):
            return f"{place} is {'NaN' if math.isnan(value) else 'infinite'}: training diverged"
        if value == benchmark.HIGHEST_ACCURACY:
            return f"{place}: {plain(value)} is outside [{benchmark.TARGET_ACCURACY}, 1)"
        if value > benchmark.HIGHEST_ACCURACY:
            percent = "looks like percent, expected a fraction" if value <= 100 else "no accuracy"
            return f"{place}: {plain(value)} {percent}"
        if run.best is not None:
            return None
    return None


@rule("MLP302", "target-outside-run", ERROR, f"{RULES_TEXT} lines 441, 491")
def target_on_the_clock(run: LoggedRun) -> Iterator[Violation]:
    """The target was reached between run_start and run_stop."""
    if not run.needs_target or run.ruleset == "0.6.0" or run.evaluations_at_target:
        return
    outside = [e for e in run.evaluations if reaches_target(e.accuracy)]
    if not outside or run.start is None or run.stop is None:
        return
    late = outside[0].order > run.stop.order
    side, event = ("after", run.stop) if late else ("before", run.start)
    yield Violation(
        f"{plain(outside[0].accuracy)} ({_at(outside[0])}, line {outside[0].line}) is logged "
        f"{side} {event.place}",
        outside[0].line,
        "the target between run_start and run_stop",
        f"{side} {event.key}",
        "the clock may stop only once the target is reached",
    )


@rule("MLP303", "target-off-the-clock", ERROR, f"{RULES_TEXT} lines 441, 491")
def target_stamped_on_the_clock(run: LoggedRun) -> Iterator[Violation]:
    """An evaluation at target is stamped between run_start and run_stop, to a second or 1 % of the
    run, whichever is less."""
    start, stop = run.start, run.stop
    if not run.needs_target or start is None or stop is None or (run.run_ms or 0) <= 0:
        return
    stamped = [e for e in run.evaluations_at_target if e.time_ms != 0]
    begin_ms, end_ms = start.time_ms - run.slack_ms, stop.time_ms + run.slack_ms
    if not stamped or start.time_ms <= 0 or any(begin_ms <= e.time_ms <= end_ms for e in stamped):
        return
    one = stamped[0]
    late = one.time_ms > end_ms
    event = stop if late else start
    away_s = abs(one.time_ms - event.time_ms) / 1000
    side = f"{away_s:.3f} s {'after' if late else 'before'}"
    text = f"{plain(one.accuracy)} ({_at(one)}, line {one.line}) is stamped {side} {event.place}"
    where = f"{side} {event.key}"
    advice = "the clock may stop only once the target is reached"
    yield Violation(text, one.line, "a stamp between run_start and run_stop", where, advice)


@rule(
    *("MLP305", "run-not-successful", ERROR),
    f"{RULES_TEXT} lines 441, 509; {CHECKER}, 0.6.0 common.yaml",
)
def success(run: LoggedRun) -> Iterator[Violation]:
    """The status of run_stop is success, spelled so."""
    for event in run.all("run_stop"):
        if "status" not in event.metadata or event.metadata["status"] == "success":
            continue
        status = event.metadata["status"]
        text = printable(status)[:40] if isinstance(status, str) else shown(status)
        hint = ""
        if isinstance(status, str) and looks_like(status, ("success",)):
            lower = status.lower() == "success"
            hint = ": must be lower case" if lower else ", which looks like success and is not"
            text = text if lower else spelled_out(status)
        advice = "one run of five may fail; it counts as the slowest"
        yield Violation.at(event, f"says {text}{hint}", "success", text, advice)
        return


@rule("MLP308", "contradicting-status", NOTE, "v1.0 and v1.1 Graphcore logs")
def status_value(run: LoggedRun) -> Iterator[Violation]:
    """The value of run_stop does not contradict its status."""
    event = run.stop
    if event is not None and isinstance(event.value, dict):
        said = event.value.get("success")
        if isinstance(said, bool) and said != (run.status == "success"):
            yield Violation(
                f"run_stop (line {event.line}): value says success {str(said).lower()}, "
                f"status says {shown(run.status)}; only the status counts",
                event.line,
            )


@rule("MLP306", "ranks-disagree", ERROR, f"{RULES_TEXT} line 443: one accuracy of the whole system")
def ranks_agree(run: LoggedRun) -> Iterator[Violation]:
    """Several accuracies of one evaluation agree about the target; where all do, it is a note."""
    groups: dict[float, list[Evaluation]] = defaultdict(list)
    for evaluation in run.timed_evaluations:
        if evaluation.epoch is not None:
            groups[evaluation.epoch].append(evaluation)
    for epoch, group in ((n, one) for n, all_ in groups.items() for one in _at_once(all_)):
        low, high = min(e.accuracy for e in group), max(e.accuracy for e in group)
        if low == high:
            continue
        good = sum(reaches_target(e.accuracy) for e in group)
        text = f"epoch {plain(epoch)} has {len(group)} accuracies {plain(low)}-{plain(high)}"
        split = 0 < good < len(group)
        if split:
            text += f", only {good} at target"
        expected = "one accuracy over all images"
        advice = "sum the counts of all ranks and log them once"
        severity = None if split and run.needs_target else NOTE
        yield Violation(text, group[0].line, expected, f"{len(group)}", advice, severity)


def _at_once(evaluations: list[Evaluation]) -> Iterator[list[Evaluation]]:
    """Evaluations that lie within a second, of their earliest."""
    group: list[Evaluation] = []
    for one in sorted(evaluations, key=lambda e: e.time_ms):
        if group and one.time_ms - group[0].time_ms > SAME_MS:
            yield group
            group = []
        group.append(one)
    yield group


@rule("MLP307", "trained-past-target", NOTE, f"{RULES_TEXT} line 491")
def stops_at_target(run: LoggedRun) -> Iterator[Violation]:
    """Training ends with the first evaluation that reaches the target."""
    passing = run.evaluations_at_target
    if not passing or not run.needs_target:
        return
    later = [e for e in run.timed_evaluations if e.order > passing[0].order]
    later = [e for e in later if e.epoch != passing[0].epoch]
    if later:
        text = (
            f"target reached at {_at(passing[0])}, training went on to {_at(later[-1])}: "
            "time overstated, RCP test made easier"
        )
        expected = "run_stop at the first evaluation at target"
        yield Violation(text, passing[0].line, expected, f"{len(later)} more")


@rule("MLP309", "unpaired-events", NOTE, "intervals of a successful run")
def pairs(run: LoggedRun) -> Iterator[Violation]:
    """In a successful run starts and stops of blocks, epochs and evaluations pair up."""
    if not run.converged:
        return
    for kind in ("block", "epoch", "eval"):
        start, stop = f"{kind}_start", f"{kind}_stop"
        if run.log.unkept.get(start) or run.log.unkept.get(stop):
            continue
        starts, stops = run.all(start), run.all(stop)
        if starts and stops and len(starts) != len(stops):
            text = f"{len(starts)} {start} against {len(stops)} {stop}"
            yield Violation(text, starts[-1].line, "pairs", f"{len(starts)} and {len(stops)}")


@rule(
    *("MLP310", "indivisible-batch", NOTE),
    f"{RULES_TEXT}: batch = batch per accelerator x accelerators x accumulation",
    keys=("global_batch_size", "gradient_accumulation_steps"),
)
def batch_divides(run: LoggedRun) -> Iterator[Violation]:
    """The batch is a multiple of the accumulation steps. A batch or a number of steps that is no
    integer, steps below 1 and a batch above the set of ImageNet are policy: no run has them."""
    batch, event = run.batch, run.first("global_batch_size")
    if batch is None or event is None:
        return
    if batch > benchmark.IMAGENET_TRAIN_SAMPLES:
        most = f"up to {benchmark.IMAGENET_TRAIN_SAMPLES:,}"
        yield as_setting(event).violation(most, "all images of an epoch", severity=POLICY)
    if not batch.is_integer():
        yield as_setting(event).violation("an integer", severity=POLICY)
    steps_event = run.first("gradient_accumulation_steps")
    steps = number(steps_event.value) if steps_event is not None else None
    if steps_event is None or steps is None or steps <= 0:
        return
    if not steps.is_integer():
        yield as_setting(steps_event).violation("an integer from 1 on", severity=POLICY)
    elif batch % steps and batch.is_integer():
        why = f"global_batch_size is {plain(batch)}"
        yield as_setting(steps_event).violation("an integer that divides the batch", why)
