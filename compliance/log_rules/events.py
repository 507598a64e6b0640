"""Rules on events: are they there, in order, with the values and metadata they must carry."""

from __future__ import annotations

from collections.abc import Iterator

from ...config import benchmark
from ...config.finding import number, plain, shown
from ...logging.events import Event, type_name
from ..logged_run import INTERVAL_KEYS, LoggedRun
from ..rule import CHECKER, ERROR, POLICY, Violation, as_official, between, rule

_LOG_IT = "log it once, from rank 0"
_FROM_070 = between("0.7.0")
_NAMES = ("submission_org", "submission_platform")


@rule(
    *("MLP101", "missing-submission-key", ERROR, f"{CHECKER}, common.yaml"),
    keys=benchmark.SUBMISSION_KEYS_060,
)
def submission_keys(run: LoggedRun) -> Iterator[Violation]:
    """submission_org, _platform, _division, _status and _benchmark are logged (0.6.0: also
    _poc_name and _entry)."""
    wanted = benchmark.SUBMISSION_KEYS
    if run.ruleset == "0.6.0":
        wanted = benchmark.SUBMISSION_KEYS_060
    missing = [key for key in wanted if run.absent(key)]
    if missing:
        names = ", ".join(missing)
        yield Violation(
            f"no {names} in the log", None, names, "none", f"log each of them ({_LOG_IT})"
        )


@rule("MLP107", "no-cache-clear", ERROR, f"{CHECKER}, common.yaml", keys=("cache_clear",))
def cache_clear(run: LoggedRun) -> Iterator[Violation]:
    """cache_clear is logged at least once."""
    if run.absent("cache_clear"):
        yield Violation(
            "no cache_clear in the log", None, "at least one", "none", "log it before init"
        )


@rule("MLP103", "no-run-stop", ERROR, f"{CHECKER}, common.yaml", keys=("run_stop", "eval_accuracy"))
def run_stop_exists(run: LoggedRun) -> Iterator[Violation]:
    """The run ended: run_stop is there."""
    if run.all("run_stop") or run.log.lost_keys & {"run_stop"}:
        return
    if run.log.truncated:
        return  # broken-record says it
    best = run.best
    text = "run did not finish: no run_stop"
    if best is not None:
        text += f". Best accuracy {plain(best.accuracy)}{_at_epoch(best.epoch)}"
    yield Violation(
        text, run.log.lines, "run_stop", "none", "the job was killed: one such run in five may be"
    )


def _at_epoch(epoch: float | None) -> str:
    return "" if epoch is None else f" at epoch {plain(epoch)}"


@rule(
    "MLP104", "misplaced-run-stop", ERROR, f"{CHECKER}, common.yaml", keys=("run_start", "run_stop")
)
def run_stop(run: LoggedRun) -> Iterator[Violation]:
    """run_stop comes after run_start and carries metadata.status."""
    start = run.start
    for event in run.all("run_stop"):
        if start is None or event.order < start.order:
            yield Violation(
                f"run_stop (line {event.line}) stands before any run_start",
                event.line,
                "run_start first",
                "run_stop",
                caused_by="misplaced-run-start" if start is None else "",
            )
            return
        if "status" not in event.metadata:
            text = f"run_stop (line {event.line}) has no status: expected success or aborted"
            yield Violation(text, event.line, "metadata.status", "none")
            return


@rule(
    *("MLP105", "misplaced-run-start", ERROR, f"{CHECKER}, common.yaml"),
    keys=("run_start", "init_stop"),
)
def run_start(run: LoggedRun) -> Iterator[Violation]:
    """run_start is there, after init_stop."""
    if run.absent("run_start"):
        yield Violation("no run_start: the clock never started", None, "run_start", "none")
        return
    stop = run.first("init_stop")
    event = run.start
    if event is not None and stop is not None and event.order < stop.order:
        text = f"run_start (line {event.line}) stands before init_stop (line {stop.line})"
        yield Violation(text, event.line, "init_stop first", "run_start")


@rule(
    *("MLP106", "misplaced-init", ERROR, f"{CHECKER}, common.yaml"),
    keys=("init_start", "init_stop", "run_start"),
)
def init(run: LoggedRun) -> Iterator[Violation]:
    """init_start and init_stop are logged, in this order and before run_start."""
    missing = [key for key in ("init_start", "init_stop") if run.absent(key)]
    if missing:
        yield Violation(
            f"no {' and '.join(missing)} in the log", None, " and ".join(missing), "none"
        )
    stop, start = run.first("init_stop"), run.start
    ends = [e for e in (stop, start) if e is not None]
    end = min(ends, key=lambda e: e.order, default=None)
    for event in run.all("init_start"):
        if end is not None and event.order > end.order:
            text = f"init_start (line {event.line}) stands after {end.key} (line {end.line})"
            yield Violation(text, event.line, "before init_stop and run_start", "after")
            break
    begin = run.first("init_start")
    for event in run.all("init_stop"):
        if begin is not None and event.order < begin.order:
            text = f"init_stop (line {event.line}) stands before init_start (line {begin.line})"
            yield Violation(text, event.line, "init_start first", "init_stop")
            break
        if start is not None and event.order > start.order:
            text = f"init_stop (line {event.line}) stands after run_start (line {start.line})"
            yield Violation(text, event.line, "init_stop first", "run_start")
            break


@rule(
    *("MLP108", "missing-epoch-event", ERROR, f"{CHECKER}, common.yaml"),
    rulesets=_FROM_070,
    keys=INTERVAL_KEYS,
)
def epoch_events(run: LoggedRun) -> Iterator[Violation]:
    """Blocks or epochs start and stop; evaluations lie between their own or block events."""
    for one, other in (
        ("block_start", "epoch_start"),
        ("block_stop", "epoch_stop"),
        ("eval_start", "block_start"),
        ("eval_stop", "block_stop"),
    ):
        if run.absent(one) and run.absent(other):
            yield Violation(
                f"neither {one} nor {other} in the log", None, f"{one} or {other}", "none"
            )


_OTHER_COUNT = {"3.1.0": "step_num", "4.0.0": "samples_count"}
"""What rounds accept beside epoch numbers."""


@rule(
    *("MLP109", "missing-epoch-metadata", ERROR, f"{CHECKER}, common.yaml and *_resnet.yaml"),
    rulesets=_FROM_070,
    keys=(*INTERVAL_KEYS, "eval_accuracy", "run_start"),
)
def epoch_metadata(run: LoggedRun) -> Iterator[Violation]:
    """Epoch and evaluation events carry their epoch; blocks start after run_start and have a count
    of epochs above 0."""
    other = _OTHER_COUNT.get(run.ruleset)
    start = run.start.order if run.start else None
    for event in run.all("block_start"):
        if start is None or event.order < start:
            yield Violation(
                f"block_start (line {event.line}) stands before run_start",
                event.line,
                "run_start first",
                "block_start",
                caused_by="misplaced-run-start" if run.start is None else "",
            )
            break
    for event in run.all("block_start"):
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
        ("eval_accuracy", "epoch_num", None if run.division else other),
    ):
        for event in run.all(key):
            if name not in event.metadata and alternative not in event.metadata:
                text = f"{key} (line {event.line}) has no {name}"
                yield Violation(text, event.line, f"metadata.{name}", "none")
                break


def _block_problem(event: Event, other: str | None) -> Violation | None:
    place = f"block_start (line {event.line})"
    data = event.metadata
    if "epoch_count" not in data:
        if other is not None and other in data:
            value = number(data[other])
            if value is None or value < 0:
                return Violation(
                    f"{place}: {other} is {shown(data[other])}", event.line, "0 or more", ""
                )
            return None
        return Violation(f"{place} has no epoch_count", event.line, "metadata.epoch_count", "none")
    if "first_epoch_num" not in data:
        return Violation(
            f"{place} has no first_epoch_num", event.line, "metadata.first_epoch_num", "none"
        )
    count = as_official(data["epoch_count"])
    if count is None or count <= 0:
        text = shown(data["epoch_count"])
        return Violation(f"{place}: epoch_count is {text}", event.line, "above 0", text)
    return None


@rule(
    *("MLP110", "missing-samples", ERROR, f"{CHECKER}, common.yaml"),
    rulesets=_FROM_070,
    keys=("train_samples", "eval_samples"),
)
def samples(run: LoggedRun) -> Iterator[Violation]:
    """train_samples and eval_samples are logged and not empty."""
    for key in ("train_samples", "eval_samples"):
        event = run.first(key)
        if run.absent(key):
            yield Violation(f"no {key} in the log", None, key, "none", _LOG_IT)
        elif event is not None and event.value == "":
            yield Violation(f"{key} (line {event.line}) is empty", event.line, "a count", '""')


@rule("MLP111", "missing-accuracy", ERROR, f"{CHECKER}, *_resnet.yaml", keys=("eval_accuracy",))
def eval_accuracy(run: LoggedRun) -> Iterator[Violation]:
    """eval_accuracy is logged, as numbers (0.6.0: policy, as its checker takes anything)."""
    if run.absent("eval_accuracy"):
        yield Violation("no eval_accuracy in the log", None, "at least one", "none")
    for event in run.all("eval_accuracy"):
        if not isinstance(event.value, int | float):  # not-a-number says it of true and false
            what = f"text {shown(event.value)}" if isinstance(event.value, str) else ""
            yield Violation(
                f"eval_accuracy (line {event.line}) is {what or type_name(event.value)}, "
                "expected a number",
                event.line,
                "a fraction such as 0.7592",
                shown(event.value),
                "log the top-1 accuracy itself",
                POLICY if run.ruleset == "0.6.0" else None,
            )
            break
