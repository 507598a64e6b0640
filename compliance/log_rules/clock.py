"""Rules on the clock: can it be right, was initialisation in its limit, were caches cleared."""

from collections.abc import Iterator
from itertools import accumulate, pairwise

from ...config import benchmark
from ...host.finding import ERROR, NOTE, POLICY, plain, shown
from ...logging.events import Event
from ..logged_run import SAME_MS, LoggedRun, copies
from ..rule import (
    CHECKER,
    CLOCK,
    CLOSED_POLICY,
    RULES_TEXT,
    Violations,
    against,
    only_if,
    rule,
)


@rule(
    "MLP501",
    "init-too-long",
    ERROR,
    f"{CHECKER}, common.yaml; {RULES_TEXT} line 489",
    follows_from=CLOCK,
)
def init_limit(run: LoggedRun) -> Violations:
    """Every init_stop comes less than the limit after the first init_start before it: 20 min, from
    1.0.0 on 30, in the open division from 2.0.0 on 240."""
    times = list(_init_times(run))
    if not times:
        return
    # each of them has to keep the limit, so the longest is judged
    took_ms, stop = max(times, key=lambda time: time[0])
    limit_ms = _limit_ms(run)
    division = run.first("submission_division")
    if run.at_least("2.0.0") and division and division.order > stop.order:
        yield against(
            division,
            f"is logged after {stop.place}",
            "it before init_stop",
            "the official checker then allows no time for initialisation",
        )
    elif took_ms >= limit_ms:
        yield against(
            f"initialisation up to {stop.place} took",
            f"{took_ms / 1000:.3f} s",
            f"less than {limit_ms / 1000:g} s",
            line=stop.line,
            advice="the clock starts when the limit is over",
        )


def _limit_ms(run: LoggedRun) -> float:
    return 1000 * benchmark.init_limit_s(run.ruleset, run.division or "closed")


def _init_times(run: LoggedRun) -> Iterator[tuple[float, Event]]:
    """(milliseconds since the earliest init_start before it, init_stop) of each init_stop."""
    begins = run.all("init_start")
    if not begins:
        return
    earliest_ms = begins[0].time_ms
    index = 0
    for stop in run.all("init_stop"):
        # both in file order: the starts up to this stop, each looked at once
        while index < len(begins) and begins[index].order < stop.order:
            earliest_ms = min(earliest_ms, begins[index].time_ms)
            index += 1
        yield stop.time_ms - earliest_ms, stop


@rule("MLP502", "zero-stamp", NOTE, f"{RULES_TEXT} line 491")
def stamps_there(run: LoggedRun) -> Violations:
    """No record is stamped 0; on init, run and evaluation events that is an error."""
    timed = {"init_start", "init_stop", "run_start", "run_stop", "eval_accuracy"}
    zero = [event for event in run.events if event.time_ms == 0]
    zero.sort(key=lambda event: event.key not in timed)
    for event in zero[:1]:
        yield against(
            event, "is stamped 0", "a time", severity=only_if(event.key in timed, ERROR)
        )


@rule(
    "MLP503",
    "time-goes-back",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 491: the clock may not be paused",
    follows_from=CLOCK,
)
def clock_steady(run: LoggedRun) -> Violations:
    """Stamps do not go back from record to record, by a second or more in all; less is a note. (Of
    copied records the largest step counts: several writers are not in order. Before run_start,
    where each starts by itself, they may be apart by the time that initialisation may take.)"""
    if run.run_ms is not None and run.run_ms <= 0:
        return  # run-time-not-positive says it
    stamped = [event for event in run.events if event.time_ms > 0]
    early = [event for event in stamped if run.start and event.order < run.start.order]
    early_ms, first = _largest_step(early)
    # several ranks write before run_start, each from its own start on
    if copies(early) > 1 and early_ms < _limit_ms(run):
        stamped = stamped[len(early) :]
    else:
        early_ms = 0.0
    by_ms, worst = _largest_step(stamped)
    if run.duplicate_writers < 2:
        steps = (
            earlier.time_ms - later.time_ms for earlier, later in pairwise(stamped)
        )
        by_ms = sum(step for step in steps if step > 0)
    elif by_ms < SAME_MS:
        return  # copied-records says it
    if by_ms <= 0 and early_ms < SAME_MS:
        by_ms, worst = early_ms, first
    if not worst or by_ms <= 0:
        return
    yield against(
        f"time goes back, most at {worst.place}:",
        f"{plain(round(by_ms / 1000, 3))} s",
        "stamps that rise",
        line=worst.line,
        severity=only_if(by_ms < SAME_MS, NOTE),
    )


def _largest_step(events: list[Event]) -> tuple[float, Event | None]:
    """How far a stamp lies before an earlier one, at most, and the record that has it."""
    latest_ms = accumulate((event.time_ms for event in events), max)
    behind = [
        (late_ms - event.time_ms, event)
        for late_ms, event in zip(latest_ms, events, strict=True)
    ]
    return max(behind, key=lambda step: step[0], default=(0.0, None))


@rule(
    "MLP504",
    "late-run-start",
    CLOSED_POLICY,
    f"{RULES_TEXT} lines 489, 491",
    follows_from=CLOCK,
)
def run_starts_in_time(run: LoggedRun) -> Violations:
    """run_start, and not only init_stop, comes within the init limit of the first init_start."""
    begins = run.all("init_start")
    start = run.start
    stop = run.first("init_stop")
    if not begins or not start:
        return
    first_ms = min(event.time_ms for event in begins)
    limit_ms = _limit_ms(run)
    if stop and stop.time_ms - first_ms >= limit_ms:
        return  # init-too-long says it
    gap_ms = start.time_ms - first_ms
    if first_ms > 0 and gap_ms > limit_ms:
        yield against(
            start,
            f"is {gap_ms / 1000:.1f} s after init_start",
            f"at most {limit_ms / 1000:g} s",
        )


@rule(
    "MLP505",
    "run-start-before-init-stop",
    CLOSED_POLICY,
    f"{RULES_TEXT} lines 489, 491",
    follows_from=CLOCK,
)
def init_before_run(run: LoggedRun) -> Violations:
    """run_start is not stamped before init_stop: else the init times are those of another time."""
    stop = run.first("init_stop")
    start = run.start
    if not stop or not start or start.time_ms <= 0 or stop.time_ms <= 0:
        return
    ahead_ms = stop.time_ms - start.time_ms
    if start.order > stop.order and ahead_ms >= SAME_MS:
        yield against(
            start,
            f"is stamped {ahead_ms / 1000:.3f} s before init_stop",
            "it later",
            "the init limit is not proven",
        )


@rule(
    "MLP506",
    "cache-not-cleared",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 220",
    why=(
        "Images that earlier runs left in the system's cache make the first epoch faster than"
        " the disk allows."
    ),
    example='`{"key": "cache_clear", "value": false}`',
)
def caches_cleared(run: LoggedRun) -> Violations:
    """cache_clear is true; null or a text is a note."""
    wrong = [event for event in run.all("cache_clear") if event.value != True]  # noqa: E712 (or 1)
    for event in wrong[:1]:
        severity = only_if(event.value != False, NOTE)  # noqa: E712 (or 0)
        yield against(event, f"is {shown(event.value)}", "true", severity=severity)


@rule(
    "MLP507",
    "cache-clear-after-init-start",
    CLOSED_POLICY,
    f"{RULES_TEXT} line 220",
    why="The caches have to be cold when the benchmark begins, and it begins with initialisation.",
    example="`cache_clear` after `init_start`.",
)
def caches_cleared_first(run: LoggedRun) -> Violations:
    """cache_clear is logged before init_start."""
    clear = run.first("cache_clear")
    begin = run.first("init_start")
    if clear and begin and clear.order > begin.order:
        yield against(clear, f"is logged after {begin.place}", "it before init_start")


@rule(
    "MLP509",
    "resumed-run",
    POLICY,
    "key of this harness; the clock may not be paused",
    keys=("run_resumed",),
)
def resumed(run: LoggedRun) -> Violations:
    """The run was not interrupted; one resumed from a checkpoint logs `run_resumed`."""
    for event in run.all("run_resumed"):
        actual = f"resumed after step {shown(event.value)}; its clock ran on meanwhile"
        ranks = [
            f"{name} {shown(event.metadata[name])}"
            for name in ("ranks_before", "ranks")
            if name in event.metadata
        ]
        if ranks:
            actual += f" ({', '.join(ranks)})"
        yield against(
            "interrupted and", actual, "an uninterrupted run", line=event.line
        )


@rule(
    "MLP510",
    "wall-clock-jump",
    NOTE,
    "key of this harness; training_rules.adoc line 491",
    keys=("wall_clock_jump",),
)
def clock_jump(run: LoggedRun) -> Violations:
    """The host's wall clock did not jump during the run, which would log `wall_clock_jump`."""
    for event in run.all("wall_clock_jump"):
        yield against(
            "the host's wall clock",
            f"jumped by {shown(event.value)} s",
            "one that runs evenly",
            "the stamps follow the monotonic clock and did not",
            line=event.line,
        )
