"""Rules on the clock and the result: did the run converge, on a clock that can be right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from ..config import benchmark
from ..config.finding import number, plain, printable, shown
from .case import SAME_MS, Evaluation, reaches_target
from .rule import CHECKER, ERROR, NOTE, POLICY, RULES_TEXT, Case, Found, between, rule

_TARGET = f"in [{benchmark.TARGET_ACCURACY}, {plain(benchmark.HIGHEST_ACCURACY)})"
_FROM_070 = between("0.7.0")


def _at(evaluation: Evaluation) -> str:
    if evaluation.epoch is None:
        return f"line {evaluation.line}"
    return f"epoch {plain(evaluation.epoch)}"


@rule("R02", ERROR, f"{RULES_TEXT} lines 441, 491; {CHECKER}, closed_resnet.yaml")
def converged(case: Case) -> Iterator[Found]:
    """The target was reached: an eval_accuracy in [0.759, 1) (open from 1.0.0 on: one below 1)."""
    numbers = [
        event.value
        for event in case.all("eval_accuracy")
        if isinstance(event.value, int | float) and not isinstance(event.value, bool)
    ]
    if not numbers or len(numbers) < len(case.all("eval_accuracy")):
        return  # EVAL_ACCURACY says it
    if not case.needs_target:
        if not any(value < benchmark.HIGHEST_ACCURACY for value in numbers):
            yield Found(
                f"no eval_accuracy is a fraction below 1: {shown(numbers[0])}",
                case.all("eval_accuracy")[0].line,
                "below 1",
                shown(numbers[0]),
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
        yield Found(f"{odd}{said}", last, _TARGET, shown(numbers[-1]), "log a fraction", severity)
    elif best is not None:
        text = (
            f"did not converge: best {plain(best.accuracy)} at {_at(best)}, "
            f"target {benchmark.TARGET_ACCURACY}"
        )
        if round(best.accuracy, 3) >= benchmark.TARGET_ACCURACY:
            text += " (rounds to it but is below)"
        text += said
        advice = "one such run in five is allowed"
        yield Found(text, best.line, _TARGET, plain(best.accuracy), advice, severity)


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
    late = outside[0].line > case.stop.line
    event = case.stop if late else case.start
    yield Found(
        f"{plain(outside[0].accuracy)} ({_at(outside[0])}, line {outside[0].line}) is logged "
        f"{'after' if late else 'before'} {event.key} (line {event.line})",
        outside[0].line,
        "the target between run_start and run_stop",
        f"{'after run_stop' if late else 'before run_start'}",
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


@rule("R22", ERROR, "a clock that cannot be right")
def clock_forward(case: Case) -> Iterator[Found]:
    """run_stop is stamped later than run_start, and the run takes no longer than a year."""
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
        yield Found(
            f"run_stop (line {stop}) is {-run_ms / 1000:g} s before run_start",
            stop,
            "later than run_start",
            f"{run_ms / 1000:g} s",
        )


@rule("RANKS_DISAGREE", ERROR, f"{RULES_TEXT} line 443: one accuracy of the whole system")
def ranks_agree(case: Case) -> Iterator[Found]:
    """Several accuracies of one evaluation agree about the target; where all do, it is a note."""
    groups: dict[float, list[Evaluation]] = defaultdict(list)
    for evaluation in case.on_the_clock:
        if evaluation.epoch is not None:
            groups[evaluation.epoch].append(evaluation)
    for epoch, group in groups.items():
        if len(group) < 2 or group[-1].time_ms - group[0].time_ms > SAME_MS:
            continue
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


@rule("R03", NOTE, f"{RULES_TEXT} line 491")
def stops_at_target(case: Case) -> Iterator[Found]:
    """Training ends with the first evaluation that reaches the target."""
    passing = case.passing
    if not passing or not case.needs_target:
        return
    later = [e for e in case.on_the_clock if e.line > passing[0].line]
    later = [e for e in later if e.epoch != passing[0].epoch]
    if later:
        yield Found(
            f"target reached at {_at(passing[0])}, training went on to {_at(later[-1])}: "
            "time overstated, RCP test made easier",
            passing[0].line,
            "run_stop at the first evaluation at target",
            f"{len(later)} more",
        )


@rule("INIT_LIMIT", ERROR, f"{CHECKER}, common.yaml; {RULES_TEXT} line 489")
def init_limit(case: Case) -> Iterator[Found]:
    """init_stop comes less than the limit after the first init_start: 20 min, from 1.0.0 on 30, in
    the open division from 2.0.0 on 240."""
    begins, stop = case.all("init_start"), case.first("init_stop")
    if not begins or stop is None:
        return
    took_ms = stop.time_ms - min(e.time_ms for e in begins if e.line < stop.line or e == begins[0])
    limit_ms = 1000 * benchmark.init_limit_s(case.ruleset, case.division or "closed")
    division = case.first("submission_division")
    if case.at_least("2.0.0") and division is not None and division.line > stop.line:
        yield Found(
            f"submission_division (line {division.line}) is logged after init_stop "
            f"(line {stop.line}): the official checker then allows no time for init",
            division.line,
            "before init_stop",
            "after",
            "log the submission keys first",
        )
    elif took_ms >= limit_ms:
        yield Found(
            f"initialisation took {took_ms / 1000:.3f} s, must be below {limit_ms / 1000:g} s",
            stop.line,
            f"below {limit_ms / 1000:g} s",
            f"{took_ms / 1000:.3f} s",
            "the clock starts when the limit is over",
        )
    elif limit_ms - took_ms <= SAME_MS:
        yield Found(
            f"initialisation took {took_ms / 1000:.3f} s, "
            f"{limit_ms - took_ms:g} ms below the limit",
            stop.line,
            f"below {limit_ms / 1000:g} s",
            f"{took_ms / 1000:.3f} s",
            "",
            NOTE,
        )


@rule("R13", POLICY, f"{RULES_TEXT} line 491: the clock may not be paused", in_open=NOTE)
def clock_steady(case: Case) -> Iterator[Found]:
    """Stamps do not go back from record to record by a second or more; less is a note."""
    steps = case.log.steps_back
    if case.second_run_line is not None:
        steps = [step for step in steps if step.line < case.second_run_line]
    if not steps:
        return
    worst = max(steps, key=lambda step: step.by_ms)
    ranks = case.copies > 1
    if worst.by_ms < SAME_MS and ranks:
        return  # COPIES says it
    if case.run_ms is not None and case.run_ms <= 0:
        return  # R22 says it
    count = max(len(steps), case.log.step_back_count if case.second_run_line is None else 0)
    most = plain(round(worst.by_ms / 1000, 3))
    yield Found(
        f"time goes back {count} x, most by {most} s at line {worst.line} "
        f"({printable(worst.key)[:60]})",
        worst.line,
        "stamps that rise",
        f"{most} s back",
        "one process with one clock writes the log",
        None if worst.by_ms >= SAME_MS else NOTE,
    )


_TIMED = frozenset({"init_start", "init_stop", "run_start", "run_stop", "eval_accuracy"})


@rule("R14", NOTE, f"{RULES_TEXT} line 491")
def stamps_there(case: Case) -> Iterator[Found]:
    """No record is stamped 0; on init, run and evaluation events that is an error."""
    zero = [e for key in case.logged_keys() for e in case.all(key) if e.time_ms == 0]
    if not zero:
        return
    keys = sorted({event.key for event in zero})
    timed = [key for key in keys if key in _TIMED]
    severity = ERROR if timed else None
    first = min((e for e in zero if not timed or e.key in timed), key=lambda e: e.line)
    names = ", ".join(printable(key)[:40] for key in (timed or keys)[:6])
    yield Found(
        f"zero time stamps on {names}",
        first.line,
        "the time of the event",
        "0",
        "",
        severity,
    )


@rule("R15", POLICY, f"{RULES_TEXT} lines 489, 491", in_open=NOTE)
def run_starts_in_time(case: Case) -> Iterator[Found]:
    """run_start comes within the init limit of the first init_start, not init_stop alone."""
    begins, start, stop = case.all("init_start"), case.start, case.first("init_stop")
    if not begins or start is None:
        return
    first_ms = min(e.time_ms for e in begins)
    limit_ms = 1000 * benchmark.init_limit_s(case.ruleset, case.division or "closed")
    if stop is not None and stop.time_ms - first_ms >= limit_ms:
        return  # INIT_LIMIT says it
    gap_ms = start.time_ms - first_ms
    if first_ms > 0 and gap_ms > limit_ms:
        yield Found(
            f"run_start is {gap_ms / 1000:.1f} s after init_start, the limit is "
            f"{limit_ms / 1000:g} s",
            start.line,
            f"at most {limit_ms / 1000:g} s",
            f"{gap_ms / 1000:.1f} s",
            "the clock starts when the limit is over, whatever init_stop says",
        )


@rule("R15b", POLICY, f"{RULES_TEXT} lines 489, 491", in_open=NOTE)
def init_before_run(case: Case) -> Iterator[Found]:
    """run_start is not stamped before init_stop: else the init times are those of another time."""
    stop, start = case.first("init_stop"), case.start
    if stop is None or start is None or start.time_ms <= 0 or stop.time_ms <= 0:
        return
    ahead_ms = stop.time_ms - start.time_ms
    if ahead_ms > 0 and start.line > stop.line and ahead_ms >= SAME_MS:
        yield Found(
            f"run_start is stamped {ahead_ms / 1000:.3f} s before init_stop: "
            "the init limit is not proven",
            start.line,
            "later than init_stop",
            f"{ahead_ms / 1000:.3f} s earlier",
        )


@rule("R16", POLICY, f"{RULES_TEXT} line 220", in_open=NOTE)
def caches_cleared(case: Case) -> Iterator[Found]:
    """cache_clear says true; null or a text is a note."""
    for event in case.all("cache_clear"):
        if event.value is True or event.value == 1:
            continue
        denied = event.value is False or event.value == 0
        yield Found(
            f"cache_clear (line {event.line}) is {shown(event.value)}",
            event.line,
            "true",
            shown(event.value),
            "flush the caches or reboot before the run, and say true",
            None if denied else NOTE,
        )
        return


@rule("R16b", POLICY, f"{RULES_TEXT} line 220", in_open=NOTE)
def caches_cleared_first(case: Case) -> Iterator[Found]:
    """cache_clear is logged before init_start."""
    clear, begin, start = case.first("cache_clear"), case.first("init_start"), case.start
    if clear is None or begin is None or clear.line < begin.line:
        return
    if start is None or clear.line < start.line:
        yield Found(
            f"cache_clear (line {clear.line}) is logged after init_start (line {begin.line})",
            clear.line,
            "before init_start",
            "after",
        )


@rule("R16c", POLICY, f"{RULES_TEXT} line 220", in_open=NOTE)
def caches_cleared_before_the_clock(case: Case) -> Iterator[Found]:
    """cache_clear is not logged after run_start alone."""
    clear, start = case.first("cache_clear"), case.start
    if clear is not None and start is not None and clear.line > start.line:
        yield Found(
            f"cache_clear (line {clear.line}) is logged after run_start (line {start.line})",
            clear.line,
            "before init_start",
            "after run_start",
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
    """The batch and the accumulation steps are integers, the batch a multiple of the steps."""
    batch, event = case.batch, case.first("global_batch_size")
    if batch is None or event is None:
        return
    if not batch.is_integer():
        yield Found(
            f"global_batch_size {plain(batch)} is not an integer", event.line, "an integer", ""
        )
        return
    steps_event = case.first("gradient_accumulation_steps")
    steps = number(steps_event.value) if steps_event is not None else None
    if steps_event is None or steps is None or steps <= 0:
        return
    if not steps.is_integer() or batch % steps:
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
    converged,
    success,
    ranks_agree,
    init_limit,
    stamps_there,
    clock_steady,
    run_starts_in_time,
    init_before_run,
    caches_cleared,
    caches_cleared_first,
    caches_cleared_before_the_clock,
    stops_at_target,
    status_value,
    pairs,
    batch_divides,
)
