"""Rules on events: are they there, in order, with the values and metadata they must carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...config import benchmark
from ...config.finding import number, plain, shown
from ...logging.events import Event, type_name
from ..logged_run import LoggedRun
from ..rule import CHECKER, ERROR, FROM_070, POLICY, Violation, as_official, missing, rule

_COMMON = f"{CHECKER}, common.yaml"
LOG_IT = "log it once, from rank 0"
_SAMPLES = ("train_samples", "eval_samples")


@rule("MLP101", "missing-submission-key", ERROR, _COMMON, keys=benchmark.submission_keys("0.6.0"))
def submission_keys(run: LoggedRun) -> Iterator[Violation]:
    """submission_org, _platform, _division, _status and _benchmark are logged (0.6.0: also
    _poc_name and _entry)."""
    keys = benchmark.submission_keys(run.ruleset)
    yield from missing(run, keys, advice=f"log each of them ({LOG_IT})")


@rule("MLP107", "no-cache-clear", ERROR, _COMMON)
def cache_clear(run: LoggedRun) -> Iterator[Violation]:
    """cache_clear is logged at least once."""
    yield from missing(run, ["cache_clear"], "at least one", "log it before init")


@rule("MLP103", "no-run-stop", ERROR, _COMMON)
def run_stop_exists(run: LoggedRun) -> Iterator[Violation]:
    """The run ended: run_stop is there."""
    if run.all("run_stop") or "run_stop" in run.log.lost_keys or run.log.truncated:
        return  # broken-record says it of a log that was cut
    text = "run did not finish: no run_stop"
    if run.best is not None:
        at = "" if run.best.epoch is None else f" at epoch {plain(run.best.epoch)}"
        text += f". Best accuracy {plain(run.best.accuracy)}{at}"
    advice = "the job was killed: one such run in five may be"
    yield Violation(text, run.log.lines, "run_stop", "none", advice)


def _first(found: Iterable[Violation | None]) -> Iterator[Violation]:
    yield from [violation for violation in found if violation is not None][:1]


def _without(event: Event, name: str, why: str = "") -> Violation:
    return Violation.at(event, f"has no {name}{why}", f"metadata.{name}", "none")


def _stands(event: Event, where: str, other: Event, first: str) -> Violation:
    """That a record stands `where`, before or after, in relation to another, and should not."""
    last = other if event.key == first else event
    return Violation.at(event, f"stands {where} {other.place}", f"{first} first", last.key)


def _before_run_start(run: LoggedRun, event: Event, what: str) -> Violation | None:
    if run.start is not None and event.order > run.start.order:
        return None
    cause = "misplaced-run-start" if run.start is None else ""
    before = f"stands before {what}"
    return Violation.at(event, before, "run_start first", event.key, caused_by=cause)


@rule("MLP104", "misplaced-run-stop", ERROR, _COMMON)
def run_stop(run: LoggedRun) -> Iterator[Violation]:
    """run_stop comes after run_start and carries metadata.status."""

    def problem(event: Event) -> Violation | None:
        statusless = "status" not in event.metadata
        return _before_run_start(run, event, "any run_start") or (
            _without(event, "status", ": expected success or aborted") if statusless else None
        )

    yield from _first(map(problem, run.all("run_stop")))


@rule("MLP105", "misplaced-run-start", ERROR, _COMMON)
def run_start(run: LoggedRun) -> Iterator[Violation]:
    """run_start is there, after init_stop."""
    if run.absent("run_start"):
        yield Violation("no run_start: the clock never started", None, "run_start", "none")
    event, stop = run.start, run.first("init_stop")
    if event is not None and stop is not None and event.order < stop.order:
        yield _stands(event, "before", stop, "init_stop")


@rule("MLP106", "misplaced-init", ERROR, _COMMON)
def init(run: LoggedRun) -> Iterator[Violation]:
    """init_start and init_stop are logged, in this order and before run_start."""
    yield from missing(run, ["init_start", "init_stop"])
    begin, stop, start = run.first("init_start"), run.first("init_stop"), run.start
    end = min((e for e in (stop, start) if e), key=lambda e: e.order, default=None)
    for event in run.all("init_start"):
        if end is not None and event.order > end.order:
            expected = "before init_stop and run_start"
            yield Violation.at(event, f"stands after {end.place}", expected, "after")
            break
    for event in run.all("init_stop"):
        if begin is not None and event.order < begin.order:
            yield _stands(event, "before", begin, "init_start")
            break
        if start is not None and event.order > start.order:
            yield _stands(event, "after", start, "init_stop")
            break


@rule("MLP108", "missing-epoch-event", ERROR, _COMMON, rulesets=FROM_070)
def epoch_events(run: LoggedRun) -> Iterator[Violation]:
    """Blocks or epochs start and stop; evaluations lie between their own or block events."""
    for one, other in (
        ("block_start", "epoch_start"),
        ("block_stop", "epoch_stop"),
        ("eval_start", "block_start"),
        ("eval_stop", "block_stop"),
    ):
        if run.absent(one) and run.absent(other):
            text = f"neither {one} nor {other} in the log"
            yield Violation(text, None, f"{one} or {other}", "none")


_OTHER_COUNT = {"3.1.0": "step_num", "4.0.0": "samples_count"}
"""What rounds accept beside epoch numbers."""


@rule(
    *("MLP109", "missing-epoch-metadata", ERROR, f"{CHECKER}, common.yaml and *_resnet.yaml"),
    rulesets=FROM_070,
)
def epoch_metadata(run: LoggedRun) -> Iterator[Violation]:
    """Epoch and evaluation events carry their epoch; blocks start after run_start and have a count
    of epochs above 0."""
    other = _OTHER_COUNT.get(run.ruleset)
    blocks = run.all("block_start")
    yield from _first(_before_run_start(run, event, "run_start") for event in blocks)
    yield from _first(_block_problem(event, other) for event in blocks)
    for key, name, alternative in (
        ("block_stop", "first_epoch_num", other),
        ("epoch_start", "epoch_num", None),
        ("epoch_stop", "epoch_num", None),
        ("eval_start", "epoch_num", other),
        ("eval_stop", "epoch_num", other),
        ("eval_accuracy", "epoch_num", None if run.division else other),
    ):
        named = {name, alternative}
        yield from _first(_without(e, name) for e in run.all(key) if not named & e.metadata.keys())


def _block_problem(event: Event, other: str | None) -> Violation | None:
    data = event.metadata
    if "epoch_count" not in data and other is not None and other in data:
        value = number(data[other])
        if value is not None and value >= 0:
            return None
        text = f"{event.place}: {other} is {shown(data[other])}"
        return Violation(text, event.line, "0 or more", "")
    for name in ("epoch_count", "first_epoch_num"):
        if name not in data:
            return _without(event, name)
    count = as_official(data["epoch_count"])
    if count is not None and count > 0:
        return None
    found = shown(data["epoch_count"])
    return Violation(f"{event.place}: epoch_count is {found}", event.line, "above 0", found)


@rule("MLP110", "missing-samples", ERROR, _COMMON, rulesets=FROM_070, keys=_SAMPLES)
def samples(run: LoggedRun) -> Iterator[Violation]:
    """train_samples and eval_samples are logged and not empty."""
    for key in _SAMPLES:
        yield from missing(run, [key], advice=LOG_IT)
        for event in run.all(key)[:1]:
            if event.value == "":
                yield Violation.at(event, "is empty", "a count", '""')


@rule("MLP111", "missing-accuracy", ERROR, f"{CHECKER}, *_resnet.yaml")
def eval_accuracy(run: LoggedRun) -> Iterator[Violation]:
    """eval_accuracy is logged, as numbers (0.6.0: policy, as its checker takes anything)."""
    yield from missing(run, ["eval_accuracy"], "at least one")
    for event in run.all("eval_accuracy"):
        if not isinstance(event.value, int | float):  # not-a-number says it of true and false
            actual = shown(event.value)
            what = f"text {actual}" if isinstance(event.value, str) else type_name(event.value)
            yield Violation.at(
                event,
                f"is {what}, expected a number",
                *("a fraction such as 0.7592", actual, "log the top-1 accuracy itself"),
                POLICY if run.ruleset == "0.6.0" else None,
            )
            break
