"""Rules on the clock: can it be right, was initialisation in its limit, were caches cleared."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain, printable, shown
from ...logging.events import Event
from ..logged_run import SAME_MS, LoggedRun
from ..rule import (
    ANY_KEY,
    CHECKER,
    CLOSED_POLICY,
    ERROR,
    NOTE,
    POLICY,
    RULES_TEXT,
    Violation,
    rule,
)

_YEAR_2001_MS = 1e12
_SECONDS = (1.2e9, 4.1e9)
"""Unix seconds of 2008 to 2099."""


@rule("MLP501", "init-too-long", ERROR, f"{CHECKER}, common.yaml; {RULES_TEXT} line 489")
def init_limit(run: LoggedRun) -> Iterator[Violation]:
    """Every init_stop comes less than the limit after the first init_start before it: 20 min, from
    1.0.0 on 30, in the open division from 2.0.0 on 240."""
    begins, stops = run.all("init_start"), run.all("init_stop")
    if not begins or not stops:
        return
    took_ms, stop = max(_init_times(begins, stops), key=lambda one: one[0])
    limit_ms = 1000 * benchmark.init_limit_s(run.ruleset, run.division or "closed")
    division = run.first("submission_division")
    if run.at_least("2.0.0") and division is not None and division.order > stop.order:
        what = f"is logged after {stop.place}: the official checker then allows no time for init"
        advice = "log the submission keys first"
        yield Violation.at(division, what, "before init_stop", "after", advice)
    elif took_ms >= limit_ms:
        which = "" if stop is stops[0] else f" to the init_stop of line {stop.line}"
        yield Violation(
            f"initialisation took {took_ms / 1000:.3f} s{which}, must be below "
            f"{limit_ms / 1000:g} s",
            stop.line,
            f"below {limit_ms / 1000:g} s",
            f"{took_ms / 1000:.3f} s",
            "the clock starts when the limit is over",
        )
    elif limit_ms - took_ms <= SAME_MS:
        text = (
            f"initialisation took {took_ms / 1000:.3f} s, {limit_ms - took_ms:g} ms below the limit"
        )
        yield Violation(
            text, stop.line, f"below {limit_ms / 1000:g} s", f"{took_ms / 1000:.3f} s", "", NOTE
        )


def _init_times(begins: list[Event], stops: list[Event]) -> Iterator[tuple[float, Event]]:
    """(milliseconds since the earliest init_start before it, init_stop) of each init_stop."""
    earliest_ms, at = begins[0].time_ms, 0
    for stop in stops:
        while at < len(begins) and begins[at].order < stop.order:
            earliest_ms = min(earliest_ms, begins[at].time_ms)
            at += 1
        yield stop.time_ms - earliest_ms, stop


@rule(
    *("MLP503", "time-goes-back", CLOSED_POLICY),
    f"{RULES_TEXT} line 491: the clock may not be paused",
    keys=(ANY_KEY,),
)
def clock_steady(run: LoggedRun) -> Iterator[Violation]:
    """Stamps do not go back from record to record by a second or more; less is a note."""
    steps = run.log.steps_back
    if run.second_run_line is not None:
        steps = [step for step in steps if step.line < run.second_run_line]
    if not steps:
        return
    worst = max(steps, key=lambda step: step.by_ms)
    ranks = run.duplicate_writers > 1
    if worst.by_ms < SAME_MS and ranks:
        return  # copied-records says it
    if run.run_ms is not None and run.run_ms <= 0:
        return  # run-time-not-positive says it
    count = max(len(steps), run.log.step_back_count if run.second_run_line is None else 0)
    most = plain(round(worst.by_ms / 1000, 3))
    text = (
        f"time goes back {count} x, most by {most} s at line {worst.line} "
        f"({printable(worst.key)[:60]})"
    )
    advice = "one process with one clock writes the log"
    severity = None if worst.by_ms >= SAME_MS else NOTE
    yield Violation(text, worst.line, "stamps that rise", f"{most} s back", advice, severity)


_TIMED = frozenset({"init_start", "init_stop", "run_start", "run_stop", "eval_accuracy"})


@rule("MLP502", "zero-stamp", NOTE, f"{RULES_TEXT} line 491", keys=(ANY_KEY,))
def stamps_there(run: LoggedRun) -> Iterator[Violation]:
    """No record is stamped 0; on init, run and evaluation events that is an error. No init or run
    event is stamped before 2001: policy, in seconds where milliseconds are expected an error."""
    for key in ("run_start", "run_stop", "init_start", "init_stop"):
        early = next((e for e in run.all(key) if 0 < e.time_ms < _YEAR_2001_MS), None)
        if early is None:
            continue
        seconds = _SECONDS[0] <= early.time_ms <= _SECONDS[1]
        stamp = plain(early.time_ms)
        why = ": seconds where milliseconds are expected" if seconds else ""
        what = f"is stamped {stamp}, in 1970{why}"
        advice = "a time in other units is no time of this run"
        bad = ERROR if seconds else POLICY
        yield Violation.at(early, what, "milliseconds since 1970", stamp, advice, bad)
        break
    zero = [e for key in run.logged_keys() for e in run.all(key) if e.time_ms == 0]
    if not zero:
        return
    keys = sorted({event.key for event in zero})
    timed = [key for key in keys if key in _TIMED]
    first = min((e for e in zero if not timed or e.key in timed), key=lambda e: e.order)
    names = ", ".join(printable(key)[:40] for key in (timed or keys)[:6])
    text = f"zero time stamps on {names}"
    severity = ERROR if timed else None
    yield Violation(text, first.line, "the time of the event", "0", "", severity)


@rule("MLP504", "late-run-start", CLOSED_POLICY, f"{RULES_TEXT} lines 489, 491")
def run_starts_in_time(run: LoggedRun) -> Iterator[Violation]:
    """run_start, and not only init_stop, comes within the init limit of the first init_start."""
    begins, start, stop = run.all("init_start"), run.start, run.first("init_stop")
    if not begins or start is None:
        return
    first_ms = min(e.time_ms for e in begins)
    limit_ms = 1000 * benchmark.init_limit_s(run.ruleset, run.division or "closed")
    if stop is not None and stop.time_ms - first_ms >= limit_ms:
        return  # init-too-long says it
    gap_ms = start.time_ms - first_ms
    if first_ms > 0 and gap_ms > limit_ms:
        text = (
            f"run_start is {gap_ms / 1000:.1f} s after init_start, the limit is "
            f"{limit_ms / 1000:g} s"
        )
        expected = f"at most {limit_ms / 1000:g} s"
        advice = "the clock starts when the limit is over, whatever init_stop says"
        yield Violation(text, start.line, expected, f"{gap_ms / 1000:.1f} s", advice)


@rule("MLP505", "run-start-before-init-stop", CLOSED_POLICY, f"{RULES_TEXT} lines 489, 491")
def init_before_run(run: LoggedRun) -> Iterator[Violation]:
    """run_start is not stamped before init_stop: else the init times are those of another time."""
    stop, start = run.first("init_stop"), run.start
    if stop is None or start is None or start.time_ms <= 0 or stop.time_ms <= 0:
        return
    ahead_ms = stop.time_ms - start.time_ms
    if ahead_ms > 0 and start.order > stop.order and ahead_ms >= SAME_MS:
        text = (
            f"run_start is stamped {ahead_ms / 1000:.3f} s before init_stop: "
            "the init limit is not proven"
        )
        expected = "later than init_stop"
        yield Violation(text, start.line, expected, f"{ahead_ms / 1000:.3f} s earlier")


@rule("MLP506", "cache-not-cleared", CLOSED_POLICY, f"{RULES_TEXT} line 220")
def caches_cleared(run: LoggedRun) -> Iterator[Violation]:
    """cache_clear is true; null or a text is a note."""
    for event in run.all("cache_clear"):
        if event.value is True or event.value == 1:
            continue
        severity = None if event.value is False or event.value == 0 else NOTE
        actual = shown(event.value)
        advice = "flush the caches or reboot before the run, and say true"
        yield Violation.at(event, f"is {actual}", "true", actual, advice, severity)
        return


@rule("MLP507", "cache-clear-after-init-start", CLOSED_POLICY, f"{RULES_TEXT} line 220")
def caches_cleared_first(run: LoggedRun) -> Iterator[Violation]:
    """cache_clear is logged before init_start."""
    clear, begin, start = run.first("cache_clear"), run.first("init_start"), run.start
    if clear is None or begin is None or clear.order < begin.order:
        return
    if start is None or clear.order < start.order:
        yield Violation.at(clear, f"is logged after {begin.place}", "before init_start", "after")


@rule("MLP508", "cache-clear-after-run-start", CLOSED_POLICY, f"{RULES_TEXT} line 220")
def caches_cleared_before_the_clock(run: LoggedRun) -> Iterator[Violation]:
    """cache_clear is not logged only after run_start."""
    clear, start = run.first("cache_clear"), run.start
    if clear is not None and start is not None and clear.order > start.order:
        what = f"is logged after {start.place}"
        yield Violation.at(clear, what, "before init_start", "after run_start")


@rule(
    *("MLP509", "resumed-run", POLICY, "key of this harness; the clock may not be paused"),
    keys=("run_resumed",),
)
def resumed(run: LoggedRun) -> Iterator[Violation]:
    """The run was not interrupted; one resumed from a checkpoint logs `run_resumed`."""
    for event in run.all("run_resumed"):
        repeated = number(event.metadata.get("steps_repeated"))
        if repeated is None:
            said = "steps after its checkpoint, if any, were trained twice and logged once"
        elif repeated == 0:
            said = "it had stopped there in order, so no step was trained twice"
        else:
            said = f"{plain(repeated)} or more steps were trained twice and logged once"
        text = (
            f"interrupted and resumed after step {shown(event.value)}: {said}; its clock ran on "
            "meanwhile"
        )
        before, ranks = (number(event.metadata.get(key)) for key in ("ranks_before", "ranks"))
        if before is not None and ranks is not None:
            text += (
                f"; from there on {plain(ranks)} ranks in the place of {plain(before)}, whose sums "
                "round differently"
            )
        if lost := number(event.metadata.get("lost_bytes")):
            text += f"; {plain(lost)} bytes of the log before it are lost"
        expected = "one uninterrupted run"
        actual = f"resumed after step {shown(event.value)}"
        yield Violation(text, event.line, expected, actual, "submit runs that were not interrupted")


@rule(
    *("MLP510", "wall-clock-jump", NOTE, "key of this harness; training_rules.adoc line 491"),
    keys=("wall_clock_jump",),
)
def clock_jump(run: LoggedRun) -> Iterator[Violation]:
    """The host's wall clock did not jump during the run, which would log `wall_clock_jump`."""
    for event in run.all("wall_clock_jump"):
        text = (
            f"the host's wall clock jumped by {shown(event.value)} s; the stamps follow the "
            "monotonic clock and did not"
        )
        expected = "a wall clock that runs evenly"
        advice = "let NTP set the hosts' clocks before a run"
        yield Violation(text, event.line, expected, f"a jump by {shown(event.value)} s", advice)
