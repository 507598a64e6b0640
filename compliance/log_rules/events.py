"""Rules on events: are they there, in order, with the values and metadata they must carry."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain, shown
from ...logging.events import Event, type_name
from ..rule import CHECKER, ERROR, POLICY, Case, Found, as_official, between, rule

_LOG_IT = "log it once, from rank 0"
_FROM_070 = between("0.7.0")
_NAMES = ("submission_org", "submission_platform")


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
    """org and platform are not empty (other values that name nobody, null or blanks, are policy);
    division, status and benchmark are allowed words."""
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
        elif key in _NAMES and not (isinstance(event.value, str) and event.value.strip()):
            text = shown(event.value)
            yield Found(
                f"{key} (line {event.line}) is {text}, no name",
                event.line,
                "a name",
                text,
                "",
                POLICY,
            )
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
    if case.log.truncated:
        return  # RECORDS says it
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
        if start is None or event.order < start.order:
            yield Found(
                f"run_stop (line {event.line}) stands before any run_start",
                event.line,
                "run_start first",
                "run_stop",
                caused_by="RUN_START" if start is None else "",
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
    if event is not None and stop is not None and event.order < stop.order:
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
    ends = [e for e in (stop, start) if e is not None]
    end = min(ends, key=lambda e: e.order, default=None)
    for event in case.all("init_start"):
        if end is not None and event.order > end.order:
            yield Found(
                f"init_start (line {event.line}) stands after {end.key} (line {end.line})",
                event.line,
                "before init_stop and run_start",
                "after",
            )
            break
    begin = case.first("init_start")
    for event in case.all("init_stop"):
        if begin is not None and event.order < begin.order:
            yield Found(
                f"init_stop (line {event.line}) stands before init_start (line {begin.line})",
                event.line,
                "init_start first",
                "init_stop",
            )
            break
        if start is not None and event.order > start.order:
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
    start = case.start.order if case.start else None
    for event in case.all("block_start"):
        if start is None or event.order < start:
            yield Found(
                f"block_start (line {event.line}) stands before run_start",
                event.line,
                "run_start first",
                "block_start",
                caused_by="RUN_START" if case.start is None else "",
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
    count = as_official(data["epoch_count"])
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
    """eval_accuracy is logged, as numbers (0.6.0: policy, as its checker takes anything)."""
    if case.absent("eval_accuracy"):
        yield Found("no eval_accuracy in the log", None, "at least one", "none")
    for event in case.all("eval_accuracy"):
        if not isinstance(event.value, int | float):  # NO_NUMBER says it of true and false
            what = f"text {shown(event.value)}" if isinstance(event.value, str) else ""
            yield Found(
                f"eval_accuracy (line {event.line}) is {what or type_name(event.value)}, "
                "expected a number",
                event.line,
                "a fraction such as 0.7592",
                shown(event.value),
                "log the top-1 accuracy itself",
                POLICY if case.ruleset == "0.6.0" else None,
            )
            break


RULES = (
    submission_keys,
    submission_values,
    run_stop_exists,
    run_stop,
    run_start,
    init,
    cache_clear,
    epoch_events,
    epoch_metadata,
    samples,
    eval_accuracy,
)
