"""Rules on the result: did the run reach the target, and does the log say so without doubt."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain, printable, shown
from ..clock_fault import clock_fault
from ..logged_run import SAME_MS, Evaluation, reaches_target
from ..rule import CHECKER, ERROR, NOTE, POLICY, RULES_TEXT, Case, Found, rule

_TARGET = f"in [{benchmark.TARGET_ACCURACY}, {plain(benchmark.HIGHEST_ACCURACY)})"


def _at(evaluation: Evaluation) -> str:
    if evaluation.epoch is None:
        return f"line {evaluation.line}"
    return f"epoch {plain(evaluation.epoch)}"


@rule("R22", ERROR, "a clock that cannot be right")
def clock_forward(case: Case) -> Iterator[Found]:
    """run_stop is stamped later than run_start."""
    run_ms = case.run_ms
    if run_ms is None or case.stop is None or run_ms > 0:
        return
    stop = case.stop.line
    if run_ms == 0:
        yield Found(
            f"run time 0 s: run_start and run_stop (line {stop}) have one stamp",
            stop,
            "above 0",
            "0",
        )
    else:
        why = clock_fault(case)
        yield Found(
            f"run_stop (line {stop}) is {-run_ms / 1000:g} s before run_start"
            + (f": {why}" if why else ""),
            stop,
            "later than run_start",
            f"{run_ms / 1000:g} s",
        )


@rule("R02", ERROR, f"{RULES_TEXT} lines 441, 491; {CHECKER}, closed_resnet.yaml")
def converged(case: Case) -> Iterator[Found]:
    """The target was reached: an eval_accuracy in [0.759, 1) (open from 1.0.0 on: one below 1)."""
    numbers = [
        event.value for event in case.all("eval_accuracy") if isinstance(event.value, int | float)
    ]
    if not numbers:
        return  # EVAL_ACCURACY says it
    unread = "EVAL_ACCURACY" if len(numbers) < len(case.all("eval_accuracy")) else ""
    if not case.needs_target:
        if not any(value < benchmark.HIGHEST_ACCURACY for value in numbers):
            yield Found(
                f"no eval_accuracy is a fraction below 1: {shown(numbers[0])}",
                case.all("eval_accuracy")[0].line,
                "below 1",
                shown(numbers[0]),
                caused_by=unread,
            )
        return
    if any(reaches_target(value) for value in numbers):
        return
    if case.stop is None or "eval_accuracy" in case.log.lost_keys:
        return  # a consequence of the run not ending, or of the record that was torn
    severity = POLICY if case.ruleset == "0.6.0" else None  # its checker has no threshold
    best = case.best
    status = case.status
    said = ""
    if isinstance(status, str):
        said = f"; run_stop says {printable(status)[:40]}"
    last = case.all("eval_accuracy")[-1].line
    odd = _odd_accuracy(case)
    if odd is not None:
        yield Found(
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
        yield Found(text, best.line, _TARGET, plain(best.accuracy), advice, severity, unread)


def _odd_accuracy(case: Case) -> str | None:
    """Accuracies that are no fractions: NaN, percent, exactly one."""
    for event in reversed(case.all("eval_accuracy")):
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
        if case.best is not None:
            return None
    return None


@rule("R02b", ERROR, f"{RULES_TEXT} lines 441, 491")
def target_on_the_clock(case: Case) -> Iterator[Found]:
    """The target was reached between run_start and run_stop."""
    if not case.needs_target or case.ruleset == "0.6.0" or case.passing:
        return
    outside = [e for e in case.evaluations if reaches_target(e.accuracy)]
    if not outside or case.start is None or case.stop is None:
        return
    late = outside[0].order > case.stop.order
    event = case.stop if late else case.start
    yield Found(
        f"{plain(outside[0].accuracy)} ({_at(outside[0])}, line {outside[0].line}) is logged "
        f"{'after' if late else 'before'} {event.key} (line {event.line})",
        outside[0].line,
        "the target between run_start and run_stop",
        f"{'after run_stop' if late else 'before run_start'}",
        "the clock may stop only once the target is reached",
    )


@rule("OFF_THE_CLOCK", ERROR, f"{RULES_TEXT} lines 441, 491")
def target_stamped_on_the_clock(case: Case) -> Iterator[Found]:
    """An evaluation at target is stamped between run_start and run_stop, to a second or 1 % of the
    run, whichever is less."""
    start, stop = case.start, case.stop
    if not case.needs_target or start is None or stop is None or (case.run_ms or 0) <= 0:
        return
    stamped = [e for e in case.passing if e.time_ms != 0]
    begin_ms, end_ms = start.time_ms - case.slack_ms, stop.time_ms + case.slack_ms
    if not stamped or start.time_ms <= 0 or any(begin_ms <= e.time_ms <= end_ms for e in stamped):
        return
    one = stamped[0]
    late = one.time_ms > end_ms
    event = stop if late else start
    away_s = abs(one.time_ms - event.time_ms) / 1000
    where = f"{away_s:.3f} s {'after' if late else 'before'} {event.key}"
    yield Found(
        f"{plain(one.accuracy)} ({_at(one)}, line {one.line}) is stamped {where} "
        f"(line {event.line})",
        one.line,
        "a stamp between run_start and run_stop",
        where,
        "the clock may stop only once the target is reached",
    )


@rule("R01", ERROR, f"{RULES_TEXT} lines 441, 509; {CHECKER}, 0.6.0 common.yaml")
def success(case: Case) -> Iterator[Found]:
    """run_stop says success, in these letters."""
    for event in case.all("run_stop"):
        if "status" not in event.metadata or event.metadata["status"] == "success":
            continue
        status = event.metadata["status"]
        text = printable(status)[:40] if isinstance(status, str) else shown(status)
        hint = ""
        if isinstance(status, str) and status.strip().lower() == "success":
            hint = ": must be lower case"
        yield Found(
            f"run_stop (line {event.line}) says {text}{hint}",
            event.line,
            "success",
            text,
            "one run of five may fail; it counts as the slowest",
        )
        return


@rule("STATUS_VALUE", NOTE, "v1.0 and v1.1 Graphcore logs")
def status_value(case: Case) -> Iterator[Found]:
    """The value of run_stop does not contradict its status."""
    event = case.stop
    if event is not None and isinstance(event.value, dict):
        said = event.value.get("success")
        if isinstance(said, bool) and said != (case.status == "success"):
            yield Found(
                f"run_stop (line {event.line}): value says success {str(said).lower()}, "
                f"status says {shown(case.status)}; only the status counts",
                event.line,
            )


@rule("RANKS_DISAGREE", ERROR, f"{RULES_TEXT} line 443: one accuracy of the whole system")
def ranks_agree(case: Case) -> Iterator[Found]:
    """Several accuracies of one evaluation agree about the target; where all do, it is a note."""
    groups: dict[float, list[Evaluation]] = defaultdict(list)
    for evaluation in case.on_the_clock:
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
        yield Found(
            text,
            group[0].line,
            "one accuracy over all images",
            f"{len(group)}",
            "sum the counts of all ranks and log them once",
            None if split and case.needs_target else NOTE,
        )


def _at_once(evaluations: list[Evaluation]) -> Iterator[list[Evaluation]]:
    """Evaluations that lie within a second, of their earliest."""
    group: list[Evaluation] = []
    for one in sorted(evaluations, key=lambda e: e.time_ms):
        if group and one.time_ms - group[0].time_ms > SAME_MS:
            yield group
            group = []
        group.append(one)
    yield group


@rule("R03", NOTE, f"{RULES_TEXT} line 491")
def stops_at_target(case: Case) -> Iterator[Found]:
    """Training ends with the first evaluation that reaches the target."""
    passing = case.passing
    if not passing or not case.needs_target:
        return
    later = [e for e in case.on_the_clock if e.order > passing[0].order]
    later = [e for e in later if e.epoch != passing[0].epoch]
    if later:
        yield Found(
            f"target reached at {_at(passing[0])}, training went on to {_at(later[-1])}: "
            "time overstated, RCP test made easier",
            passing[0].line,
            "run_stop at the first evaluation at target",
            f"{len(later)} more",
        )


@rule("R18", NOTE, "intervals of a successful run")
def pairs(case: Case) -> Iterator[Found]:
    """In a successful run starts and stops of blocks, epochs and evaluations pair up."""
    if not case.converged:
        return
    for kind in ("block", "epoch", "eval"):
        start, stop = f"{kind}_start", f"{kind}_stop"
        if case.log.unkept.get(start) or case.log.unkept.get(stop):
            continue
        starts, stops = case.all(start), case.all(stop)
        if starts and stops and len(starts) != len(stops):
            yield Found(
                f"{len(starts)} {start} against {len(stops)} {stop}",
                starts[-1].line,
                "pairs",
                f"{len(starts)} and {len(stops)}",
            )


@rule("R19", NOTE, f"{RULES_TEXT}: batch = batch per accelerator x accelerators x accumulation")
def batch_divides(case: Case) -> Iterator[Found]:
    """The batch is a multiple of the accumulation steps. A batch or a number of steps that is no
    integer, steps below 1 and a batch above the set of ImageNet are policy: no run has them."""
    batch, event = case.batch, case.first("global_batch_size")
    if batch is None or event is None:
        return
    if batch > benchmark.IMAGENET_TRAIN_SAMPLES:
        most = f"up to {benchmark.IMAGENET_TRAIN_SAMPLES:,}"
        yield Found(
            f"global_batch_size {plain(batch)} is more than all images of an epoch",
            event.line,
            most,
            plain(batch),
            "",
            POLICY,
        )
    if not batch.is_integer():
        yield Found(
            f"global_batch_size {plain(batch)} is not an integer",
            event.line,
            "an integer",
            plain(batch),
            "",
            POLICY,
        )
    steps_event = case.first("gradient_accumulation_steps")
    steps = number(steps_event.value) if steps_event is not None else None
    if steps_event is None or steps is None or steps <= 0:
        return
    if not steps.is_integer():
        yield Found(
            f"gradient_accumulation_steps {plain(steps)} is not an integer",
            steps_event.line,
            "an integer from 1 on",
            plain(steps),
            "",
            POLICY,
        )
    elif batch % steps and batch.is_integer():
        yield Found(
            f"global_batch_size {plain(batch)} is no multiple of "
            f"gradient_accumulation_steps {plain(steps)}",
            steps_event.line,
            "an integer that divides the batch",
            plain(steps),
        )


RULES = (
    clock_forward,
    target_on_the_clock,
    target_stamped_on_the_clock,
    converged,
    success,
    ranks_agree,
    stops_at_target,
    status_value,
    pairs,
    batch_divides,
)
