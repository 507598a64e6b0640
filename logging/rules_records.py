"""Rules on records: can they be read, are they there, once, in order, with what they must carry."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import benchmark
from ..config.finding import number, plain, printable, shown
from .case import SAME_MS
from .parse import Event, type_name
from .rule import CHECKER, ERROR, NOTE, RULES_TEXT, Case, Found, between, rule

_FROM_070 = between("0.7.0")
_LOG_IT = "log it once, from rank 0"


@rule("RECORDS", ERROR, f"{CHECKER}, mlp_parser")
def records(case: Case) -> Iterator[Found]:
    """Every record is whole: JSON with key, value, metadata and time, and nothing after it."""
    for problem in case.log.problems:
        if problem.kind == "joined":
            continue
        if problem.kind == "truncated":
            yield Found(
                _truncated(case, problem.line, problem.key),
                problem.line,
                "a whole record",
                "the end of the file",
                "the job was killed or the disk was full: run again",
            )
        else:
            yield Found(
                f"line {problem.line}: {printable(problem.message)}",
                problem.line,
                "a whole record",
                printable(problem.message),
                "write from rank 0 alone, one record a line, nothing else on that line",
            )
    more = case.log.problem_count - len(case.log.problems)
    if more > 0:
        yield Found(f"{more} more records cannot be read", found=str(more), expected="0")


def _truncated(case: Case, line: int, key: str | None) -> str:
    parts = [f"truncated: line {line} ends inside a record" + (f" ({key})" if key else "")]
    if case.log.events:
        last = case.log.events[-1]
        epoch = number(last.metadata.get("epoch_num"))
        at = f" epoch {plain(epoch)}" if epoch is not None else ""
        parts.append(f"last complete record {printable(last.key)}{at}")
    if not case.all("run_stop"):
        parts.append("no run_stop")
    return "; ".join(parts)


@rule("JOINED", NOTE, "a newline that was lost between two writers")
def joined(case: Case) -> Iterator[Found]:
    """One record a line. (The official checker reads the last record of a line alone.)"""
    for problem in case.log.problems:
        if problem.kind == "joined":
            yield Found(
                f"line {problem.line} {problem.message}; the official checker sees the last alone",
                problem.line,
                "one record a line",
                "two or more",
                "write every record with its newline in one call",
            )


@rule("TWO_RUNS", ERROR, f"{CHECKER}, init_start before init_stop")
def two_runs(case: Case) -> Iterator[Found]:
    """A file holds one run."""
    second = case.second_run_line
    if second is None:
        return
    lines = [event.line for event in case.log.events]
    before = max((line for line in lines if line < second), default=second)
    yield Found(
        f"two runs in one file: lines {lines[0]}-{before} and {second}-{lines[-1]}",
        second,
        "one run",
        "another one starts here",
        "give each run its own result_N.txt; the first one is judged here",
    )


@rule("MISSING_SUBMISSION_KEYS", ERROR, f"{CHECKER}, common.yaml")
def submission_keys(case: Case) -> Iterator[Found]:
    """submission_org, _platform, _division, _status and _benchmark are logged (0.6.0: also
    _poc_name and _entry)."""
    wanted = benchmark.SUBMISSION_KEYS
    if case.ruleset == "0.6.0":
        wanted = benchmark.SUBMISSION_KEYS_060
    missing = [key for key in wanted if case.absent(key)]
    if missing:
        names = ", ".join(missing)
        yield Found(f"no {names} in the log", None, names, "none", f"log each of them ({_LOG_IT})")


@rule("SUBMISSION_VALUES", ERROR, f"{CHECKER}, common.yaml")
def submission_values(case: Case) -> Iterator[Found]:
    """org and platform are not empty; division, status and benchmark are allowed words."""
    allowed = {
        "submission_division": benchmark.DIVISIONS,
        "submission_status": benchmark.statuses(case.ruleset),
        "submission_benchmark": (benchmark.BENCHMARK,),
    }
    names = benchmark.SUBMISSION_KEYS
    if case.ruleset == "0.6.0":
        names = benchmark.SUBMISSION_KEYS_060
    for key in names:
        event = case.first(key)
        if event is None:
            continue
        words = allowed.get(key)
        if words is None and event.value == "":
            yield Found(f"{key} (line {event.line}) is empty", event.line, "a name", '""')
        elif words is not None and event.value not in words:
            yield _wrong_word(event, words)


def _wrong_word(event: Event, words: tuple[str, ...]) -> Found:
    hint = ""
    if isinstance(event.value, str) and event.value.lower() in words:
        hint = f' (did you mean "{event.value.lower()}"?)'
    must = " or ".join(words)
    return Found(
        f"{event.key} (line {event.line}) is {shown(event.value)}, must be {must}{hint}",
        event.line,
        must,
        shown(event.value),
        "the case of letters counts",
    )


_ONCE = (
    *benchmark.SUBMISSION_KEYS_060,
    "init_stop",
    "run_start",
    "run_stop",
    "train_samples",
    "eval_samples",
)
_ONCE_CLOSED = ("global_batch_size", "opt_name", "gradient_accumulation_steps")


def once_keys(case: Case) -> list[str]:
    """Keys that the checker wants exactly once in this case."""
    keys = [key for key in _ONCE if key not in ("submission_poc_name", "submission_entry")]
    if case.ruleset == "0.6.0":
        keys = [key for key in _ONCE if not key.endswith("_samples")]
        return [*keys, "global_batch_size", "opt_name", "model_bn_span"]
    if case.division != "open":
        keys += [key for key in _ONCE_CLOSED if case.at_least("1.0.0") or "gradient" not in key]
        keys += {"lars": benchmark.LARS_KEYS, "sgd": benchmark.SGD_KEYS}.get(
            case.optimizer or "", ()
        )
    return keys


@rule("DIFFERENT_VALUES", ERROR, f"{CHECKER}, EXACTLY_ONE")
def different_values(case: Case) -> Iterator[Found]:
    """A key that may come once does not come again with another value."""
    for key in once_keys(case):
        events = case.all(key)
        if len(events) < 2:
            continue
        other = next((e for e in events if e.value != events[0].value), None)
        if other is not None:
            yield Found(
                f"{key} is {shown(events[0].value)} in line {events[0].line} "
                f"and {shown(other.value)} in line {other.line}",
                other.line,
                "one value",
                f"{shown(events[0].value)} and {shown(other.value)}",
                "the ranks disagree, or two runs were mixed",
            )


@rule("COPIES", NOTE, f"{CHECKER}, warnings of EXACTLY_ONE")
def copies(case: Case) -> Iterator[Found]:
    """Records that may come once do so; copies with the same value are the ranks' or nodes'."""
    if case.second_run_line is not None:
        return
    repeated = [
        key
        for key in once_keys(case)
        if len(case.all(key)) > 1 and (key not in _CLOCK or _alike(case.all(key)))
    ]
    if not repeated:
        return
    count = max(case.log.counts[key] for key in repeated)
    spread = max(_spread_ms(case.all(key)) for key in repeated)
    first = case.all(repeated[0])[1]
    what = f"{len(repeated)} keys" if len(repeated) > 3 else ", ".join(repeated)
    who = f"{count} ranks wrote" if case.copies > 1 else f"{count} writers logged"
    yield Found(
        f"{who} the same records ({what}; spread {spread:g} ms)",
        first.line,
        "one record of each",
        f"up to {count}",
        _LOG_IT,
    )


@rule("UNKEPT", NOTE, "bounded memory of this checker")
def unkept(case: Case) -> Iterator[Found]:
    """The log is short enough for every record to be kept."""
    from .wanted import CHECKED

    more = {key: n for key, n in case.log.unkept.items() if key in CHECKED}
    if more:
        total = sum(more.values())
        names = ", ".join(sorted(more)[:4])
        yield Found(
            f"{total:,} repeated records were counted, not kept ({names} ...)",
            found=f"{total:,}",
        )


@rule("CACHE_CLEAR", ERROR, f"{CHECKER}, common.yaml")
def cache_clear(case: Case) -> Iterator[Found]:
    """cache_clear is logged at least once."""
    if case.absent("cache_clear"):
        yield Found("no cache_clear in the log", None, "at least one", "none", "log it before init")


@rule("NO_RUN_STOP", ERROR, f"{CHECKER}, common.yaml")
def run_stop_exists(case: Case) -> Iterator[Found]:
    """The run ended: run_stop is there."""
    if case.all("run_stop") or case.log.lost_keys & {"run_stop"}:
        return
    if any(problem.kind == "truncated" for problem in case.log.problems):
        return  # that finding says it
    best = case.best
    text = "run did not finish: no run_stop"
    if best is not None:
        text += f". Best accuracy {plain(best.accuracy)}{_at_epoch(best.epoch)}"
    yield Found(
        text, case.log.lines, "run_stop", "none", "the job was killed: one such run in five may be"
    )


def _at_epoch(epoch: float | None) -> str:
    return "" if epoch is None else f" at epoch {plain(epoch)}"


@rule("RUN_STOP", ERROR, f"{CHECKER}, common.yaml")
def run_stop(case: Case) -> Iterator[Found]:
    """run_stop comes after run_start and carries metadata.status."""
    start = case.start
    for event in case.all("run_stop"):
        if start is None or event.line < start.line:
            yield Found(
                f"run_stop (line {event.line}) stands before any run_start",
                event.line,
                "run_start first",
                "run_stop",
            )
            return
        if "status" not in event.metadata:
            yield Found(
                f"run_stop (line {event.line}) has no status: expected success or aborted",
                event.line,
                "metadata.status",
                "none",
            )
            return


@rule("RUN_START", ERROR, f"{CHECKER}, common.yaml")
def run_start(case: Case) -> Iterator[Found]:
    """run_start is there, after init_stop."""
    if case.absent("run_start"):
        yield Found("no run_start: the clock never started", None, "run_start", "none")
        return
    stop = case.first("init_stop")
    event = case.start
    if event is not None and stop is not None and event.line < stop.line:
        yield Found(
            f"run_start (line {event.line}) stands before init_stop (line {stop.line})",
            event.line,
            "init_stop first",
            "run_start",
        )


@rule("INIT", ERROR, f"{CHECKER}, common.yaml")
def init(case: Case) -> Iterator[Found]:
    """init_start and init_stop are logged, in this order and before run_start."""
    missing = [key for key in ("init_start", "init_stop") if case.absent(key)]
    if missing:
        yield Found(f"no {' and '.join(missing)} in the log", None, " and ".join(missing), "none")
    stop, start = case.first("init_stop"), case.start
    ends = [e.line for e in (stop, start) if e is not None]
    for event in case.all("init_start"):
        if ends and event.line > min(ends):
            yield Found(
                f"init_start (line {event.line}) stands after line {min(ends)}, where init ended",
                event.line,
                "before init_stop and run_start",
                "after",
            )
            break
    begin = case.first("init_start")
    for event in case.all("init_stop"):
        if begin is not None and event.line < begin.line:
            yield Found(
                f"init_stop (line {event.line}) stands before init_start (line {begin.line})",
                event.line,
                "init_start first",
                "init_stop",
            )
            break
        if start is not None and event.line > start.line:
            yield Found(
                f"init_stop (line {event.line}) stands after run_start (line {start.line})",
                event.line,
                "init_stop first",
                "run_start",
            )
            break


@rule("MISSING_EPOCH_EVENTS", ERROR, f"{CHECKER}, common.yaml", rulesets=_FROM_070)
def epoch_events(case: Case) -> Iterator[Found]:
    """Blocks or epochs start and stop; evaluations lie between their own or block events."""
    for one, other in (
        ("block_start", "epoch_start"),
        ("block_stop", "epoch_stop"),
        ("eval_start", "block_start"),
        ("eval_stop", "block_stop"),
    ):
        if case.absent(one) and case.absent(other):
            yield Found(f"neither {one} nor {other} in the log", None, f"{one} or {other}", "none")


_OTHER_COUNT = {"3.1.0": "step_num", "4.0.0": "samples_count"}
"""What rounds accept beside epoch numbers."""


@rule("EPOCH_METADATA", ERROR, f"{CHECKER}, common.yaml and *_resnet.yaml", rulesets=_FROM_070)
def epoch_metadata(case: Case) -> Iterator[Found]:
    """Epoch and evaluation events carry their epoch; blocks start after run_start and have a count
    of epochs above 0."""
    other = _OTHER_COUNT.get(case.ruleset)
    start = case.start.line if case.start else None
    for event in case.all("block_start"):
        if start is None or event.line < start:
            yield Found(
                f"block_start (line {event.line}) stands before run_start",
                event.line,
                "run_start first",
                "block_start",
            )
            break
    for event in case.all("block_start"):
        found = _block_problem(event, other)
        if found is not None:
            yield found
            break
    for key, name, alternative in (
        ("block_stop", "first_epoch_num", other),
        ("epoch_start", "epoch_num", None),
        ("epoch_stop", "epoch_num", None),
        ("eval_start", "epoch_num", other),
        ("eval_stop", "epoch_num", other),
        ("eval_accuracy", "epoch_num", None if case.division else other),
    ):
        for event in case.all(key):
            if name not in event.metadata and alternative not in event.metadata:
                yield Found(
                    f"{key} (line {event.line}) has no {name}",
                    event.line,
                    f"metadata.{name}",
                    "none",
                )
                break


def _block_problem(event: Event, other: str | None) -> Found | None:
    place = f"block_start (line {event.line})"
    data = event.metadata
    if "epoch_count" not in data:
        if other is not None and other in data:
            value = number(data[other])
            if value is None or value < 0:
                return Found(
                    f"{place}: {other} is {shown(data[other])}", event.line, "0 or more", ""
                )
            return None
        return Found(f"{place} has no epoch_count", event.line, "metadata.epoch_count", "none")
    if "first_epoch_num" not in data:
        return Found(
            f"{place} has no first_epoch_num", event.line, "metadata.first_epoch_num", "none"
        )
    count = number(data["epoch_count"])
    if count is None or count <= 0:
        text = shown(data["epoch_count"])
        return Found(f"{place}: epoch_count is {text}", event.line, "above 0", text)
    return None


@rule("SAMPLES", ERROR, f"{CHECKER}, common.yaml", rulesets=_FROM_070)
def samples(case: Case) -> Iterator[Found]:
    """train_samples and eval_samples are logged and not empty."""
    for key in ("train_samples", "eval_samples"):
        event = case.first(key)
        if case.absent(key):
            yield Found(f"no {key} in the log", None, key, "none", _LOG_IT)
        elif event is not None and event.value == "":
            yield Found(f"{key} (line {event.line}) is empty", event.line, "a count", '""')


@rule("EVAL_ACCURACY", ERROR, f"{CHECKER}, *_resnet.yaml")
def eval_accuracy(case: Case) -> Iterator[Found]:
    """eval_accuracy is logged, as numbers."""
    if case.absent("eval_accuracy"):
        yield Found("no eval_accuracy in the log", None, "at least one", "none")
    if case.ruleset == "0.6.0":
        return
    for event in case.all("eval_accuracy"):
        if isinstance(event.value, bool) or not isinstance(event.value, int | float):
            what = f"text {shown(event.value)}" if isinstance(event.value, str) else ""
            yield Found(
                f"eval_accuracy (line {event.line}) is {what or type_name(event.value)}, "
                "expected a number",
                event.line,
                "a fraction such as 0.7592",
                shown(event.value),
                "log the top-1 accuracy itself",
            )
            break


_CLOCK = ("run_start", "run_stop")


def _alike(events: list[Event]) -> bool:
    """One status, and stamps within a second."""
    states = {str(event.metadata.get("status")) for event in events}
    return len(states) == 1 and _spread_ms(events) <= SAME_MS


def _spread_ms(events: list[Event]) -> float:
    return max(e.time_ms for e in events) - min(e.time_ms for e in events)


@rule("R17", ERROR, f"{RULES_TEXT} lines 487-491: one clock")
def one_clock(case: Case) -> Iterator[Found]:
    """run_start and run_stop come once; copies agree in status and lie within a second."""
    for key in _CLOCK:
        events = case.all(key)
        if len(events) < 2:
            continue
        first = events[0]
        states = {str(e.metadata.get("status")) for e in events}
        spread = _spread_ms(events)
        if len(states) > 1:
            said = " and ".join(
                f"{printable(str(e.metadata.get('status')))[:40]} (line {e.line})"
                for e in events[:3]
            )
            yield Found(
                f"{len(events)} {key}: {said}; an official score would use the first",
                events[1].line,
                "one status",
                said,
                "the log must say once how the run ended",
            )
        elif spread > SAME_MS:
            yield Found(
                f"{len(events)} {key}, {spread / 1000:.3f} s apart (lines {first.line} and "
                f"{events[-1].line}): an official score would use the first",
                events[1].line,
                "one, or copies within 1 s",
                f"{spread / 1000:.3f} s apart",
                "write it from rank 0 alone",
            )


@rule("HIDDEN", NOTE, "v1.0 Intel logs")
def hidden(case: Case) -> Iterator[Found]:
    """No value hides under a renamed key (duplicate_...)."""
    keys = [key for key in case.logged_keys() if key.startswith("duplicate_")]
    if keys:
        event = case.all(keys[0])[0]
        names = ", ".join(printable(key)[:60] for key in keys[:4])
        more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
        yield Found(
            f"{names}{more} (from line {event.line} on) hide second values",
            event.line,
            "one value under its own key",
            shown(event.value),
        )


RULES = (
    records,
    joined,
    two_runs,
    submission_keys,
    submission_values,
    run_stop_exists,
    run_stop,
    run_start,
    init,
    one_clock,
    different_values,
    copies,
    unkept,
    cache_clear,
    epoch_events,
    epoch_metadata,
    samples,
    eval_accuracy,
    hidden,
)
